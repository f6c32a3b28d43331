-- One row: a trajectory of a run's step with one LIST entry per token; none where its tokens were not kept.
SELECT * FROM token WHERE run_id = $run AND step = $step AND trajectory = $trajectory
