-- How fast does the data go stale? Ratio, clipping and effective sample size by arm, staleness and epoch.
SELECT run.experiment, run.arm, minibatch.step - minibatch.rollout_step AS staleness, minibatch.epoch,
       avg(minibatch.clip_frac) AS clip_frac, max(minibatch.ratio_max) AS ratio_max,
       avg(minibatch.ess_frac) AS ess_frac, count(*) AS updates
FROM minibatch
JOIN run USING (run_id)
GROUP BY ALL
ORDER BY run.experiment, run.arm, staleness, minibatch.epoch
