-- One row per step of a run at which tokens of a trajectory were kept.
SELECT DISTINCT step FROM token WHERE run_id = $run ORDER BY step
