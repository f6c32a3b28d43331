-- One row per chosen run that has them: the median of the first $points finite values of a column of `step`.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest(range(len($runs))) AS run),
point AS (
    SELECT run, step, COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM step JOIN chosen USING (run_id)
    WHERE step < 50 * $points
),
start AS (
    SELECT run, value FROM point WHERE isfinite(value)
    QUALIFY row_number() OVER (PARTITION BY run ORDER BY step) <= $points
)
SELECT run, median(value) AS baseline FROM start GROUP BY run HAVING count(*) = $points ORDER BY run
