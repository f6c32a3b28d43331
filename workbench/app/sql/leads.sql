-- One row per alarm and chosen run, for alarms that any of them raised: step of the first one, steps before the onset.
-- step is NULL where the run never raised it; lead is NULL there and in a run that did not collapse. A run that was
-- falling at its end, or diverged without an onset, is left out: an alarm in it is neither early nor false.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest(range(len($runs))) AS run),
raised AS (
    SELECT run, diagnostic, min(alarm_step) AS step, arg_min(lead, alarm_step) AS lead,
           arg_min(value, alarm_step) AS value, arg_min(threshold, alarm_step) AS threshold
    FROM lead_time JOIN chosen USING (run_id)
    GROUP BY run, diagnostic
),
collapsed AS (SELECT run, collapse_step FROM chosen JOIN run USING (run_id)
              WHERE outcome IS DISTINCT FROM 'falling' AND (outcome IS DISTINCT FROM 'diverged' OR collapse_step IS NOT NULL))
SELECT diagnostic, collapsed.run, collapsed.collapse_step, raised.step, raised.lead, raised.value, raised.threshold
FROM (SELECT DISTINCT diagnostic FROM raised)
CROSS JOIN collapsed
LEFT JOIN raised USING (diagnostic, run)
ORDER BY diagnostic, collapsed.run
