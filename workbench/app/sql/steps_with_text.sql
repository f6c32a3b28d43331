-- One row per step of a run with the text of a trajectory, as tokens or whole.
SELECT step FROM token WHERE run_id = $run UNION SELECT step FROM transcript WHERE run_id = $run ORDER BY step
