-- One row per epoch and turn of a trajectory of a run's step, with every measured column of the turn ledger.
SELECT * FROM turn WHERE run_id = $run AND step = $step AND trajectory = $trajectory ORDER BY epoch, turn_index
