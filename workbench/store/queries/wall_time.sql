-- Where does the time go? Seconds by phase and run, and tokens trained a second.
SELECT run.experiment, run.arm, run.seed, run_id, sum(step.seconds_rollout) AS rollout,
       sum(step.seconds_update) AS "update", sum(step.seconds_evaluation) AS evaluation,
       sum(step.seconds_record) AS record, sum(step.seconds_total) AS total,
       sum(step.tokens_trained) / nullif(sum(step.seconds_total), 0) AS tokens_per_second
FROM step
JOIN run USING (run_id)
GROUP BY ALL
ORDER BY total DESC
