-- One row per step of each fork of a run: success (a fraction), and of the fork its arm, draw and whether it fell.
SELECT run_id, child.experiment, arm, draw, forked_at, step, success,
       coalesce(outcome IN ('collapsed', 'diverged', 'falling') OR detection_step >= forked_at, false) AS down
FROM run AS child JOIN step USING (run_id)
WHERE parent = $run
ORDER BY forked_at, arm <> 'unchanged', arm, draw, run_id, step
