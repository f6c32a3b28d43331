-- One row: how many of the chosen runs were watched for alarms. One that raised none has no event but trajectories;
-- shipped curves come without either.
SELECT count(DISTINCT run_id) AS watched FROM segment
WHERE list_contains($runs, run_id) AND table_name IN ('event', 'trajectory')
