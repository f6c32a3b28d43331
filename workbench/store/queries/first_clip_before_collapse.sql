-- When did clipping take off before the collapse? First step above three times the run's own first ten steps.
WITH clipping AS (
    SELECT run_id, step, avg(clip_frac) AS clip_frac FROM minibatch GROUP BY run_id, step
),
baseline AS (
    SELECT run_id, median(clip_frac) AS clip_frac FROM clipping WHERE step < 10 GROUP BY run_id
),
takeoff AS (
    SELECT clipping.run_id, min(clipping.step) AS first_clip_step
    FROM clipping
    JOIN baseline USING (run_id)
    JOIN run USING (run_id)
    WHERE clipping.step BETWEEN 10 AND run.collapse_step AND clipping.clip_frac > 3 * baseline.clip_frac
    GROUP BY clipping.run_id
)
SELECT run.experiment, run.arm, run.seed, run.run_id, run.collapse_step, takeoff.first_clip_step,
       run.collapse_step - takeoff.first_clip_step AS steps_before_collapse
FROM run
JOIN takeoff USING (run_id)
ORDER BY steps_before_collapse DESC
