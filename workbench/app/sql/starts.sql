-- One row per step of the earlier starts of a run that its guard rolled back, the latest start first: what came before
-- the checkpoint is part of the run, what came after it was given up. The starts of a cell have rising generations; the
-- first of a chain was not made by a rollback (draw 0).
WITH this AS (
    SELECT experiment, arm, seed, config_hash, coalesce(generation, 1) AS last FROM run WHERE run_id = $run
),
starts AS (
    SELECT run.run_id, run.forked_at, run.draw, coalesce(run.generation, 1) AS generation
    FROM run JOIN this USING (experiment, arm, seed, config_hash)
    WHERE coalesce(run.generation, 1) <= this.last
),
chain AS (
    SELECT run_id, generation,
           min(forked_at) OVER (
               ORDER BY generation ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
           ) AS trained_again_from
    FROM starts
    WHERE generation >= (SELECT max(generation) FROM starts WHERE draw IS DISTINCT FROM 0)
)
SELECT chain.run_id AS start, step, success, step >= trained_again_from AS abandoned,
       coalesce(seconds_total, 0) + coalesce(seconds_record, 0) AS seconds
FROM chain JOIN step ON step.run_id = chain.run_id
WHERE chain.run_id <> $run
ORDER BY generation DESC, step
