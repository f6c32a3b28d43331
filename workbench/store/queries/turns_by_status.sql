-- What do agents do in each turn? Share of searches, answers and broken turns by arm and tenth of the run.
SELECT run.experiment, run.arm, turn.turn_index, 10 * (10 * turn.step // greatest(run.steps, 1)) AS percent_of_run,
       count(*) AS turns, avg((turn.status = 'search')::INT) AS search_frac,
       avg((turn.status = 'answer')::INT) AS answer_frac, avg((turn.status = 'invalid')::INT) AS invalid_frac
FROM turn
JOIN run USING (run_id)
WHERE turn.epoch = 0
GROUP BY ALL
ORDER BY run.experiment, run.arm, turn.turn_index, percent_of_run
