-- One row per step of a run with token rows: the trajectories whose tokens were kept.
SELECT step, list(trajectory ORDER BY trajectory) AS trajectories
FROM token
WHERE run_id = $run
GROUP BY step
ORDER BY step
