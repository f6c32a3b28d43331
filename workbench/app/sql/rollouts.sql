-- One row per trajectory of a run, with what it is found by and whether its text was kept.
SELECT trajectory.step, trajectory.trajectory, reward, advantage, success, n_turns, n_searches, n_tokens,
       gradient_share, ended, answer, question, transcript.trajectory IS NOT NULL AS has_text
FROM trajectory
LEFT JOIN transcript USING (run_id, step, trajectory)
WHERE run_id = $run
ORDER BY trajectory.step, trajectory.trajectory
