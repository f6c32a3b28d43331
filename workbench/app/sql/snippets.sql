-- One row per given trajectory of a run: the first match of a regular expression, and what stands around it.
WITH places AS (SELECT unnest($steps) AS step, unnest($trajectories) AS trajectory)
SELECT step, trajectory, regexp_extract(text, $around) AS around, regexp_extract(text, $pattern) AS match
FROM transcript
JOIN places USING (step, trajectory)
WHERE run_id = $run AND step BETWEEN list_min($steps) AND list_max($steps)
