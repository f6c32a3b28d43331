-- One row per bucket of steps of a run: its first step, how many steps, and the seconds that they spent on each part.
SELECT min(step) AS step, count(*) AS steps, sum(seconds_rollout) AS rollout, sum(seconds_update) AS "update",
       sum(seconds_evaluation) AS evaluation, sum(seconds_record) AS record, sum(seconds_total) AS total
FROM step
WHERE run_id = $run AND step BETWEEN $first AND $last
GROUP BY (step - $first) // $width
ORDER BY step
