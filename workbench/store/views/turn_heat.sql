-- One row per run, step and turn index: the roll-up of the turn ledger with its run and its distance to the collapse.
SELECT run.experiment, run.algorithm, run.arm, run.seed, turn_step.run_id, turn_step.step, turn_step.turn_index,
       turn_step.step - run.collapse_step AS steps_after_collapse,
       turn_step.n_turns, turn_step.n_tokens, turn_step.ratio_geo, turn_step.ratio_max, turn_step.clip_frac,
       turn_step.approx_kl, turn_step.entropy, turn_step.advantage, turn_step.value_error, turn_step.ratio_mass_frac,
       turn_step.gradient_share
FROM turn_step
JOIN run USING (run_id)
