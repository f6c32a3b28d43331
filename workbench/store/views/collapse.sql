-- One row per collapse event: peak, onset, detection, depth (lowest median of five steps until recovery) and recovery.
-- The onset is known for the first collapse of a run only; a later one (after a recovery) has NULL there.
WITH smooth AS (
    SELECT run_id, step, median(success) OVER (PARTITION BY run_id ORDER BY step ROWS 4 PRECEDING) AS success FROM step
),
fall AS (
    SELECT event.run_id, event.step AS detection_step, event.message,
           CASE WHEN event.step = run.detection_step THEN run.collapse_step END AS onset_step,
           (SELECT min(back.step) FROM event AS back
            WHERE back.run_id = event.run_id AND back.kind = 'recovered' AND back.step > event.step) AS recovered_step
    FROM event
    JOIN run USING (run_id)
    WHERE event.kind = 'collapse'
),
level AS (
    SELECT fall.run_id, fall.detection_step,
           max(smooth.success) FILTER (smooth.step <= fall.detection_step) AS peak,
           min(smooth.success) FILTER (
               smooth.step >= coalesce(fall.onset_step, fall.detection_step)
               AND (fall.recovered_step IS NULL OR smooth.step <= fall.recovered_step)
           ) AS depth
    FROM fall
    JOIN smooth USING (run_id)
    GROUP BY fall.run_id, fall.detection_step
)
SELECT run.experiment, run.algorithm, run.arm, run.seed, fall.run_id,
       fall.onset_step, fall.detection_step, fall.detection_step - fall.onset_step AS steps_to_detection,
       level.peak, level.depth, (level.peak - level.depth) / nullif(level.peak, 0) AS drop_frac,
       fall.recovered_step, fall.message
FROM fall
JOIN run USING (run_id)
LEFT JOIN level ON level.run_id = fall.run_id AND level.detection_step = fall.detection_step
