-- One row per chosen run with values of a column of `step`: median of the first $points (NULL with fewer), first step that is judged by it.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest(range(len($runs))) AS run),
point AS (
    SELECT run, step, COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM step JOIN chosen USING (run_id)
    WHERE step < 50 * $points
),
numbered AS (
    SELECT run, step, value,
           coalesce(sum(isfinite(value)::INT) OVER (PARTITION BY run ORDER BY step
                                                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS earlier
    FROM point
    WHERE NOT isnan(value)
)
SELECT run,
       CASE WHEN max(earlier + isfinite(value)::INT) >= $points
            THEN median(value) FILTER (isfinite(value) AND earlier < $points) END AS baseline,
       min(step) FILTER (earlier >= $points) AS ready
FROM numbered
GROUP BY run
ORDER BY run
