-- One row per experiment: its question, how many runs it has, are running and have fallen, the one begun last first.
SELECT run.experiment, any_value(experiment.question) AS question, count(*) AS runs,
       count(*) FILTER (run.status = 'running') AS running, count(coalesce(run.collapse_step, run.onset_low)) AS collapsed,
       max(run.started_at) AS started_at
FROM run
LEFT JOIN experiment USING (experiment)
GROUP BY run.experiment
ORDER BY started_at DESC NULLS LAST, run.experiment
