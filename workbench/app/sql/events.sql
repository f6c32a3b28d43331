-- One row per event of the chosen runs that has a step, counted from each run's origin; the onset of a collapse too.
WITH chosen AS MATERIALIZED (SELECT unnest($runs) AS run_id, unnest($origins) AS origin, unnest(range(len($runs))) AS run)
SELECT run, step - origin AS x, kind, severity, diagnostic, value, message
FROM event JOIN chosen USING (run_id)
WHERE step IS NOT NULL
UNION ALL
SELECT run, collapse_step - origin, 'onset', 'critical', 'success', NULL, 'last step before the collapse'
FROM run JOIN chosen USING (run_id)
WHERE collapse_step IS NOT NULL
ORDER BY run, x, kind, diagnostic
