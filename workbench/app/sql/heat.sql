-- One row per arm, bucket of steps and turn index of the chosen runs: a column of `turn_step`, mean and extremes.
-- $log averages logarithms (of at least e^-20, where trainers clamp), as ratios want it; NULL and NaN are counted apart.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin, unnest($arms) AS arm),
point AS (
    SELECT arm, (step - origin - $first) // $width AS bucket, turn_index, n_turns,
           COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM turn_step JOIN chosen USING (run_id)
    WHERE step BETWEEN list_min($origins) + $first AND list_max($origins) + $last  -- whole row groups are skipped by it
          AND step - origin BETWEEN $first AND $last
)
SELECT arm, bucket, turn_index,
       CASE WHEN $log THEN exp(avg(ln(greatest(value, exp(-20)))) FILTER (isfinite(value)))
            ELSE avg(value) FILTER (isfinite(value)) END AS mean,
       min(value) FILTER (isfinite(value)) AS low, max(value) FILTER (isfinite(value)) AS high,
       count(value) FILTER (NOT isfinite(value)) AS non_finite, count(value) AS measured, sum(n_turns) AS turns
FROM point
GROUP BY arm, bucket, turn_index
ORDER BY arm, bucket, turn_index
