-- One row per chosen run and bucket of steps: the sum of a column of `step` from the run's beginning to its end.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin, unnest(range(len($runs))) AS run),
spent AS (
    SELECT run, (step - origin - $first) // $width AS bucket, COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM step JOIN chosen USING (run_id)
)
SELECT run, bucket, sum(sum(value)) OVER (PARTITION BY run ORDER BY bucket) AS x
FROM spent
GROUP BY run, bucket
ORDER BY run, bucket
