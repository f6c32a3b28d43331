-- In which turns is the critic no better than a constant? 1 - Var(error) / Var(return) by arm and turn index.
SELECT run.experiment, run.arm, turn.turn_index, count(turn.value_error) AS turns,
       1 - var_pop(turn.value_error) / nullif(var_pop(turn.value - turn.value_error), 0) AS explained_variance,
       avg(abs(turn.value_error)) AS value_mae, avg(turn.value_error) AS value_bias
FROM turn
JOIN run USING (run_id)
WHERE turn.epoch = 0 AND isfinite(turn.value) AND isfinite(turn.value_error)
GROUP BY run.experiment, run.arm, turn.turn_index
ORDER BY run.experiment, run.arm, turn.turn_index
