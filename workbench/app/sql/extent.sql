-- One row: the first and the last recorded step of the chosen runs, counted from the origin of each.
WITH chosen AS (SELECT unnest($runs) AS run_id, unnest($origins) AS origin)
SELECT min(first - origin) AS first, max(last - origin) AS last
FROM (SELECT run_id, min(step) AS first, max(step) AS last FROM step GROUP BY run_id) JOIN chosen USING (run_id)
