-- One row: first and last step of the chosen runs, counted from each run's origin.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin)
SELECT min(step - origin) AS first, max(step - origin) AS last FROM step JOIN chosen USING (run_id)
