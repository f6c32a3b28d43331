-- One row per chosen run and bucket of steps: mean of its measured steps (x) and values, extremes, and values that are NaN or Inf.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin, unnest(range(len($runs))) AS run),
point AS (
    SELECT run, step - origin AS x, (step - origin - $first) // $width AS bucket, COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM query_table($table) JOIN chosen USING (run_id)
    WHERE step BETWEEN list_min($origins) + $first AND list_max($origins) + $last  -- whole row groups are skipped by it
          AND step - origin BETWEEN $first AND $last
),
number AS (  -- one CASE costs a fraction of a FILTER on each aggregate
    SELECT run, bucket, x, value, CASE WHEN isfinite(value) THEN value END AS finite FROM point WHERE value IS NOT NULL
)
SELECT run, bucket, avg(x) AS x, avg(finite) AS mean, min(finite) AS low, max(finite) AS high, count(*) - count(finite) AS non_finite
FROM number
GROUP BY run, bucket
ORDER BY run, bucket
