-- One row: a run with all that table `run` says of it, and the grid file of its experiment as it was run.
SELECT run.*, (SELECT any_value(toml ORDER BY written_at DESC NULLS LAST)
               FROM experiment WHERE experiment.experiment = run.experiment) AS toml
FROM run
WHERE run_id = $run
