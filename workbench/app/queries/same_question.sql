-- One row per kept trajectory of an experiment that was asked this question: where, by which run, and how it ended.
SELECT run.arm, run.seed, trajectory.run_id, trajectory.step, trajectory.trajectory, trajectory.success,
       trajectory.answer, run.collapse_step
FROM trajectory
JOIN token USING (run_id, step, trajectory)
JOIN run USING (run_id)
WHERE run.experiment = $experiment AND trajectory.question = $question
ORDER BY run.arm, run.seed, trajectory.step, trajectory.trajectory
