-- One row per experiment, algorithm, arm and step: the band of success over seeds.
SELECT cell.experiment, cell.algorithm, cell.arm, step.step,
       count(step.success) AS n,
       min(step.success) AS success_min,
       quantile_cont(step.success, 0.25) AS success_q25,
       median(step.success) AS success_median,
       quantile_cont(step.success, 0.75) AS success_q75,
       max(step.success) AS success_max
FROM step
JOIN cell USING (run_id)
GROUP BY cell.experiment, cell.algorithm, cell.arm, step.step
