-- One row per cell of a grid: its run, of several starts from nothing (--fresh) the newest.
SELECT run_id, experiment, algorithm, arm, seed, config_hash, coalesce(generation, 1) AS generation
FROM run
QUALIFY coalesce(generation, 1) = max(coalesce(generation, 1)) OVER (PARTITION BY experiment, arm, seed, config_hash)
