-- One row per trajectory with that turn in the chosen runs and steps, those with tokens first, then the most extreme.
-- The values are those of its last epoch.
-- $column says by what: a ratio by the size of its logarithm ($log), anything else by its own size. NaN is the worst.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin),
found AS (
    SELECT run_id, step, trajectory, epoch, status, n_tokens, ratio_geo, log_ratio_sum, clip_frac, advantage,
           ratio_mass_frac, gradient_share, COLUMNS(lambda c: c = $column)::DOUBLE AS value
    FROM turn JOIN chosen USING (run_id)
    WHERE step - origin BETWEEN $first AND $last AND turn_index = $turn
    QUALIFY epoch = max(epoch) OVER (PARTITION BY run_id, step, trajectory)
)
SELECT found.*, run.seed, trajectory.question, trajectory.success, count(*) OVER () AS total,
       EXISTS (FROM token WHERE token.run_id = found.run_id AND token.step = found.step
                                AND token.trajectory = found.trajectory) AS kept
FROM found
JOIN run USING (run_id)
LEFT JOIN trajectory USING (run_id, step, trajectory)
ORDER BY kept DESC,
         CASE WHEN NOT isfinite(found.value) THEN 'inf'
              WHEN $log THEN abs(ln(greatest(found.value, exp(-20)))) ELSE abs(found.value) END DESC NULLS LAST,
         found.run_id, found.step, found.trajectory
LIMIT 20
