-- One row per trajectory of a run's step: its share of the batch's ratio mass and gradient, and its worst turn.
-- step_gradient is the largest gradient norm of the step: where it is 0 no trajectory has a share.
-- ratio_mass is the mean over the step's updates of sum r of the trajectory / sum r of the update: the shares add up to 1.
WITH ledger AS (
    SELECT trajectory,
           sum(ratio_mass_frac) / any_value(updates) AS ratio_mass,
           max(ratio_max) AS ratio_max,
           arg_max(turn_index, abs(log_ratio_sum)) AS worst_turn,
           arg_max(log_ratio_sum, abs(log_ratio_sum)) AS worst_log_ratio
    FROM turn, (SELECT count(DISTINCT "update") AS updates FROM turn WHERE run_id = $run AND step = $step)
    WHERE run_id = $run AND step = $step
    GROUP BY trajectory
),
told AS (  -- the columns exist even in a log that has no such measurement
    SELECT * FROM trajectory WHERE run_id = $run AND step = $step
    UNION ALL BY NAME
    SELECT NULL::DOUBLE AS gradient_share, NULL::DOUBLE AS reward WHERE false
),
whole AS (
    SELECT * FROM step WHERE run_id = $run AND step = $step
    UNION ALL BY NAME
    SELECT NULL::DOUBLE AS grad_norm_max WHERE false
)
SELECT coalesce(ledger.trajectory, told.trajectory) AS trajectory, told.gradient_share, ledger.ratio_mass,
       ledger.ratio_max, ledger.worst_turn, ledger.worst_log_ratio, told.success, told.reward, told.question, told.gold,
       told.answer, told.ended, token.trajectory IS NOT NULL AS kept,
       (SELECT max(grad_norm_max) FROM whole) AS step_gradient
FROM ledger
FULL JOIN told USING (trajectory)
LEFT JOIN token ON token.run_id = $run AND token.step = $step
                AND token.trajectory = coalesce(ledger.trajectory, told.trajectory)
ORDER BY 1
