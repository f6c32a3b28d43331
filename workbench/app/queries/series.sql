-- One row per chosen run and bucket of steps: mean, lowest and highest finite value of a column, and its other values.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin, unnest(range(len($runs))) AS run),
point AS (
    SELECT run, (step - origin - $first) // $width AS bucket, COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM query_table($table) JOIN chosen USING (run_id)
    WHERE step BETWEEN list_min($origins) + $first AND list_max($origins) + $last  -- whole row groups are skipped by it
          AND step - origin BETWEEN $first AND $last
)
SELECT run, bucket, avg(value) FILTER (isfinite(value)) AS mean, min(value) FILTER (isfinite(value)) AS low,
       max(value) FILTER (isfinite(value)) AS high, count(*) FILTER (NOT isfinite(value)) AS non_finite
FROM point
WHERE value IS NOT NULL
GROUP BY run, bucket
ORDER BY run, bucket
