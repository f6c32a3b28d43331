-- One row per run, step, epoch, trajectory and turn: its rank in the step by ratio mass, gradient share and drift.
-- Ranks start at 1; NaN ranks first because it is the worst there is, what was not measured ranks last.
SELECT run_id, step, epoch, "update", trajectory, turn_index, status, n_tokens, ratio_geo, ratio_max, log_ratio_sum,
       clip_frac, approx_kl, entropy, advantage, ratio_mass_frac, gradient_share,
       row_number() OVER (at_step ORDER BY ratio_mass_frac DESC NULLS LAST, epoch, trajectory, turn_index)
           AS mass_rank,
       row_number() OVER (at_step ORDER BY gradient_share DESC NULLS LAST, epoch, trajectory, turn_index)
           AS gradient_rank,
       row_number() OVER (at_step ORDER BY abs(log_ratio_sum) DESC NULLS LAST, epoch, trajectory, turn_index)
           AS drift_rank
FROM turn
WINDOW at_step AS (PARTITION BY run_id, step)
