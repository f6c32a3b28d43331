-- What did the agent say after the collapse? Unsolved episodes of the last recorded step of each collapsed run.
SELECT trajectory.run_id, trajectory.step, trajectory.trajectory, trajectory.question, trajectory.gold,
       trajectory.answer, trajectory.ended
FROM trajectory
JOIN run USING (run_id)
WHERE run.outcome = 'collapsed' AND NOT trajectory.success
QUALIFY trajectory.step = max(trajectory.step) OVER (PARTITION BY trajectory.run_id)
ORDER BY trajectory.run_id, trajectory.trajectory
