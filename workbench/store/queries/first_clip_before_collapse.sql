-- When did clipping take off before the collapse? First step above three times the run's own first ten steps.
WITH clipping AS (
    SELECT run_id, step, avg(clip_frac) AS clip_frac FROM minibatch GROUP BY run_id, step
),
baseline AS (
    SELECT run_id, median(clip_frac) AS clip_frac FROM clipping WHERE step < 10 GROUP BY run_id
)
SELECT run.experiment, run.arm, run.seed, run_id, run.collapse_step, min(clipping.step) AS first_clip_step,
       run.collapse_step - min(clipping.step) AS steps_before_collapse
FROM run
JOIN clipping USING (run_id)
JOIN baseline USING (run_id)
WHERE clipping.step <= run.collapse_step AND clipping.step >= 10 AND clipping.clip_frac > 3 * baseline.clip_frac
GROUP BY ALL
ORDER BY steps_before_collapse DESC
