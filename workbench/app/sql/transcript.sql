-- One row: the text of a trajectory of a run's step, in parts; none where it was not kept.
SELECT text, part_start, part_turn FROM transcript WHERE run_id = $run AND step = $step AND trajectory = $trajectory
