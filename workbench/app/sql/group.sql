-- One row per trajectory of the prompt group that a trajectory belongs to, with its text where that was kept.
WITH mine AS (
    SELECT prompt_group, question FROM trajectory
    WHERE run_id = $run AND step = $step AND trajectory = $trajectory
)
SELECT trajectory.trajectory, reward, advantage, success, answer, ended, n_turns, gradient_share,
       text, part_start, part_turn
FROM trajectory
JOIN mine ON coalesce(trajectory.prompt_group = mine.prompt_group, trajectory.question = mine.question)
LEFT JOIN transcript USING (run_id, step, trajectory)
WHERE run_id = $run AND step = $step
ORDER BY trajectory.trajectory
