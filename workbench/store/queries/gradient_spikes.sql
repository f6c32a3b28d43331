-- Which updates had a gradient five times the run's median, and was it clipped or stale data?
SELECT minibatch.run_id, minibatch.step, minibatch.epoch, minibatch."update", minibatch.grad_norm,
       minibatch.grad_norm / nullif(typical.grad_norm, 0) AS times_median, minibatch.clip_frac, minibatch.ratio_max,
       minibatch.ess_frac, minibatch.step - minibatch.rollout_step AS staleness
FROM minibatch
JOIN (SELECT run_id, median(grad_norm) AS grad_norm FROM minibatch GROUP BY run_id) AS typical USING (run_id)
WHERE minibatch.grad_norm > 5 * typical.grad_norm OR NOT isfinite(minibatch.grad_norm)
ORDER BY times_median DESC
LIMIT 200
