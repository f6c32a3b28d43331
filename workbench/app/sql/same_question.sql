-- One row per trajectory that was asked a question: all of a run, and those of its experiment whose text was kept.
SELECT run.arm, run.seed, trajectory.run_id, trajectory.step, trajectory.trajectory, trajectory.success,
       trajectory.answer, trajectory.reward, trajectory.advantage, token.trajectory IS NOT NULL AS kept,
       coalesce(token.trajectory, transcript.trajectory) IS NOT NULL AS has_text
FROM trajectory
JOIN run USING (run_id)
LEFT JOIN token USING (run_id, step, trajectory)
LEFT JOIN transcript USING (run_id, step, trajectory)
WHERE run.experiment = $experiment AND trajectory.question = $question
  AND (run_id = $run OR token.trajectory IS NOT NULL OR transcript.trajectory IS NOT NULL)
ORDER BY run.arm, run.seed, trajectory.step, trajectory.trajectory
