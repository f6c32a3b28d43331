-- One row per evaluation of a run: success on a held-out set with its 95 % interval (fractions).
SELECT data, step, episodes, success, success_low, success_high
FROM evaluation
WHERE run_id = $run AND step BETWEEN $first AND $last
ORDER BY data, step
