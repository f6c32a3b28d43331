-- One row per chosen run whose alarms were recorded: one of curves alone has neither events nor trajectories.
SELECT DISTINCT run_id
FROM segment
WHERE list_contains($runs, run_id) AND table_name IN ('event', 'trajectory')
ORDER BY run_id
