-- Which turns carry the most ratio mass? The fifty heaviest of all runs, with their question.
SELECT culprit.run_id, culprit.step, culprit.trajectory, culprit.turn_index, culprit.status, culprit.ratio_mass_frac,
       culprit.gradient_share, culprit.log_ratio_sum, culprit.advantage, culprit.clip_frac, trajectory.question
FROM culprit
LEFT JOIN trajectory USING (run_id, step, trajectory)
WHERE culprit.mass_rank = 1
ORDER BY culprit.ratio_mass_frac DESC NULLS LAST, culprit.run_id, culprit.step, culprit.trajectory
LIMIT 50
