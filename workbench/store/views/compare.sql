-- One row per experiment, algorithm and arm: seeds as replicates (newest starts), collapses, medians over seeds.
-- `collapsed` counts runs that diverged or recovered as well; of `n`, those `falling` at their end count neither way.
SELECT experiment, algorithm, arm,
       count(*) AS seeds,
       count(*) FILTER (over) AS n,
       count(*) FILTER (over AND outcome IN ('collapsed', 'recovered', 'diverged')) AS collapsed,
       count(*) FILTER (over AND outcome = 'falling') AS falling,
       median(collapse_step) FILTER (over) AS collapse_step_median,
       median(peak_success) FILTER (over) AS peak_success_median,
       median(final_success) FILTER (over) AS final_success_median,
       min(final_success) FILTER (over) AS final_success_min,
       median(clip_frac_median) FILTER (over) AS clip_frac_median,
       median(grad_norm_median) FILTER (over) AS grad_norm_median,
       max(grad_norm_max) FILTER (over) AS grad_norm_max,
       sum(seconds) AS seconds
FROM (SELECT *, status = 'finished' AND outcome IS NOT NULL AS over FROM outcome SEMI JOIN cell USING (run_id))
GROUP BY experiment, algorithm, arm
