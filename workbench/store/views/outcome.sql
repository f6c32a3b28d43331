-- One row per run: how it ended, and what its optimizer updates and alarms looked like on the way.
WITH updates AS (
    SELECT run_id, count(*) AS updates, median(clip_frac) AS clip_frac_median, median(grad_norm) AS grad_norm_median,
           max(grad_norm) AS grad_norm_max, max(ratio_max) AS ratio_max, min(ess_frac) AS ess_frac_min
    FROM minibatch GROUP BY run_id
),
alarms AS (
    SELECT run_id, count(*) AS alarms, min(step) AS first_alarm_step, arg_min(diagnostic, step) AS first_alarm
    FROM event WHERE kind = 'alarm' GROUP BY run_id
)
SELECT run.run_id, run.experiment, run.algorithm, run.arm, run.seed, run.status, run.outcome, run.collapse_step,
       run.detection_step, run.peak_success, run.final_success, run.steps, run.seconds,
       updates.updates, updates.clip_frac_median, updates.grad_norm_median, updates.grad_norm_max, updates.ratio_max,
       updates.ess_frac_min,
       coalesce(alarms.alarms, 0) AS alarms, alarms.first_alarm_step, alarms.first_alarm
FROM run
LEFT JOIN updates USING (run_id)
LEFT JOIN alarms USING (run_id)
