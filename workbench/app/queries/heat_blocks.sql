-- One row per arm, bucket of steps and turn index, as `heat`: from the roll-up by turn index, and from what is not in it.
-- A block of $block steps belongs to the bucket that holds its middle.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin, unnest($arms) AS arm),
late AS (
    SELECT arm, run_id, origin, rolled_to FROM chosen JOIN span USING (run_id)
    WHERE table_name = 'turn_step' AND last_step >= rolled_to
),
rolled AS (
    SELECT arm, (block * $block + $block // 2 - origin - $first) // $width AS bucket, turn_index, n_turns.total AS turns,
           COLUMNS(lambda c: c = $column) AS value
    FROM query_table($rollup) JOIN chosen USING (run_id)
    WHERE block BETWEEN (list_min($origins) + $first) // $block AND (list_max($origins) + $last) // $block  -- as in `heat`
          AND block * $block + $block // 2 - origin BETWEEN $first AND $last
),
single AS (
    SELECT arm, (step - origin - $first) // $width AS bucket, turn_index, n_turns AS turns,
           COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM turn_step JOIN late USING (run_id)
    WHERE step >= rolled_to AND step - origin BETWEEN $first AND $last
),
part AS (
    SELECT arm, bucket, turn_index, turns, value.n AS n, value.total AS total, value.log AS log, value.low AS low,
           value.high AS high, value.broken AS broken
    FROM rolled
    UNION ALL
    SELECT arm, bucket, turn_index, turns, coalesce(isfinite(value), false)::BIGINT,
           CASE WHEN isfinite(value) THEN value END, CASE WHEN isfinite(value) THEN ln(greatest(value, exp(-20))) END,
           CASE WHEN isfinite(value) THEN value END, CASE WHEN isfinite(value) THEN value END,
           coalesce(NOT isfinite(value), false)::BIGINT
    FROM single
)
SELECT arm, bucket, turn_index,
       CASE WHEN $log THEN exp(sum(log) / nullif(sum(n), 0)) ELSE sum(total) / nullif(sum(n), 0) END AS mean,
       min(low) AS low, max(high) AS high, sum(broken)::BIGINT AS non_finite, sum(n + broken)::BIGINT AS measured,
       sum(turns) AS turns
FROM part
GROUP BY arm, bucket, turn_index
ORDER BY arm, bucket, turn_index
