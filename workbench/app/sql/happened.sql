-- One row per event of a run and the onset of its fall, in the order of the steps.
-- What happened to its process may have none: it stands behind the last step that was recorded before it.
-- episode, turns: whether trajectories and the ledger of turns were recorded at its step.
WITH happened AS (
    SELECT step, kind, severity, diagnostic, value, threshold, message, written_at
    FROM event WHERE run_id = $run
    UNION ALL BY NAME
    SELECT coalesce(collapse_step, onset_low) AS step, 'onset' AS kind, 'critical' AS severity,
           CASE WHEN collapse_step IS NULL THEN 'last step before the fall that the run ended in' ELSE 'last step before the collapse' END
               AS message
    FROM run WHERE run_id = $run AND coalesce(collapse_step, onset_low) IS NOT NULL
)
SELECT step, kind, severity, diagnostic, value, threshold, message,
       coalesce(step IN (SELECT t.step FROM trajectory t WHERE t.run_id = $run), false) AS episode,
       coalesce(step IN (SELECT t.step FROM turn_step t WHERE t.run_id = $run), false) AS turns,
       coalesce(step, (SELECT max(s.step) FROM step s
                       WHERE s.run_id = $run AND s.written_at <= happened.written_at), -1) AS after
FROM happened
ORDER BY after, step NULLS LAST, CASE kind WHEN 'alarm' THEN 0 WHEN 'onset' THEN 2 ELSE 1 END, kind, diagnostic
