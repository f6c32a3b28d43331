-- One row per bucket of steps of a run: the highest ($lowest: lowest) finite value of a column of `step`, and its step.
WITH point AS (
    SELECT step, (step - $first) // $width AS bucket, COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM step
    WHERE run_id = $run
)
SELECT bucket,
       CASE WHEN $lowest THEN arg_min(step, value) FILTER (isfinite(value))
            ELSE arg_max(step, value) FILTER (isfinite(value)) END AS step,
       CASE WHEN $lowest THEN min(value) FILTER (isfinite(value)) ELSE max(value) FILTER (isfinite(value)) END AS value,
       min(step) FILTER (NOT isfinite(value)) AS broken_step
FROM point
WHERE value IS NOT NULL
GROUP BY bucket
ORDER BY bucket
