-- One row per step of the earlier starts of a run that its guard rolled back, the latest start first: what came before
-- the checkpoint is part of the run, what came after it was given up.
WITH RECURSIVE chain AS (
    SELECT run_id, parent, forked_at, experiment, draw, 0 AS back FROM run WHERE run_id = $run
    UNION ALL
    SELECT run.run_id, run.parent, run.forked_at, run.experiment, run.draw, chain.back + 1
    FROM run JOIN chain ON run.run_id = chain.parent AND run.experiment = chain.experiment
    WHERE chain.draw = 0 AND chain.back < 100
)
SELECT earlier.run_id AS start, step, success, step >= later.forked_at AS abandoned,
       coalesce(seconds_total, 0) + coalesce(seconds_record, 0) AS seconds
FROM chain AS earlier
JOIN chain AS later ON later.back = earlier.back - 1
JOIN step ON step.run_id = earlier.run_id
ORDER BY earlier.back, step
