-- One row per alarm: how many steps it came before the collapse; NULL lead in a run that did not collapse.
SELECT run.experiment, run.algorithm, run.arm, run.seed, run.outcome, event.run_id, event.diagnostic, event.severity,
       event.step AS alarm_step, event.value, event.threshold, run.collapse_step, run.detection_step,
       run.collapse_step - event.step AS lead, run.detection_step - event.step AS lead_to_detection
FROM event
JOIN run USING (run_id)
WHERE event.kind = 'alarm'
