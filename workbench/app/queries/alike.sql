-- One row per trajectory of a run with a question; kept: whether its tokens are.
SELECT step, trajectory, question, answer, success, token.trajectory IS NOT NULL AS kept
FROM trajectory
LEFT JOIN token USING (run_id, step, trajectory)
WHERE run_id = $run AND question = $question
ORDER BY step, trajectory
