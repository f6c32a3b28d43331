-- In what order did things go wrong? Every event of the runs that collapsed, recovered, diverged or were falling.
SELECT event.run_id, event.step, event.step - run.collapse_step AS steps_after_collapse, event.kind, event.severity,
       event.diagnostic, event.value, event.threshold, event.message
FROM event
JOIN run USING (run_id)
WHERE run.outcome IN ('collapsed', 'recovered', 'diverged', 'falling')
ORDER BY event.run_id, event.step NULLS FIRST, event.kind
