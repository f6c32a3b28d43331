-- Does the clipping bias grow before the collapse? Its norm, and the gradient's, by steps to the collapse.
SELECT run.experiment, run.arm, minibatch.step - run.collapse_step AS steps_after_collapse,
       count(DISTINCT run_id) AS runs, median(minibatch.clip_bias_norm) AS clip_bias_norm,
       median(minibatch.grad_norm) AS grad_norm, median(minibatch.clip_frac) AS clip_frac
FROM minibatch
JOIN run USING (run_id)
WHERE run.collapse_step IS NOT NULL AND minibatch.step BETWEEN run.collapse_step - 30 AND run.collapse_step + 10
GROUP BY ALL
ORDER BY run.experiment, run.arm, steps_after_collapse
