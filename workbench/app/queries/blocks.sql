-- One row per chosen run and bucket of steps, as `series`: from the roll-up $rollup (blocks of $block steps), and from $table.
-- What is not rolled up yet is read row by row; a block belongs to the bucket that holds its middle.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin, unnest(range(len($runs)))::INTEGER AS run),
late AS (
    SELECT run, run_id, origin, rolled_to FROM chosen JOIN span USING (run_id)
    WHERE table_name = $table AND last_step >= rolled_to
),
rolled AS (
    SELECT run, ((block * $block + $block // 2 - origin - $first) // $width)::INTEGER AS bucket,
           COLUMNS(lambda c: c = $column) AS value
    FROM query_table($rollup) JOIN chosen USING (run_id)
    WHERE block BETWEEN (list_min($origins) + $first) // $block AND (list_max($origins) + $last) // $block  -- as in `series`
          AND block * $block + $block // 2 - origin BETWEEN $first AND $last
),
single AS (
    SELECT run, ((step - origin - $first) // $width)::INTEGER AS bucket,
           COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM query_table($table) JOIN late USING (run_id)
    WHERE step >= rolled_to AND step - origin BETWEEN $first AND $last
),
part AS (
    SELECT run, bucket, value.n AS n, value.total AS total, value.low AS low, value.high AS high, value.broken AS broken
    FROM rolled
    UNION ALL
    SELECT run, bucket, isfinite(value)::BIGINT, CASE WHEN isfinite(value) THEN value END,
           CASE WHEN isfinite(value) THEN value END, CASE WHEN isfinite(value) THEN value END,
           (NOT isfinite(value))::BIGINT
    FROM single
)
SELECT run, bucket, sum(total) / nullif(sum(n), 0) AS mean, min(low) AS low, max(high) AS high,
       sum(broken)::BIGINT AS non_finite
FROM part
WHERE n + broken > 0
GROUP BY run, bucket
ORDER BY run, bucket
