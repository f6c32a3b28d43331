-- One row: first and last step of the chosen runs, counted from each run's origin.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin)
SELECT min(first_step - origin) AS first, max(last_step - origin) AS last
FROM span JOIN chosen USING (run_id)
WHERE table_name = 'step'
