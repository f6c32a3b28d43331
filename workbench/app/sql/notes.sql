-- One row per note on a run or a part of it that was not taken back, in the order of the parts.
SELECT note, step, trajectory, first_token, last_token, tag, text, written_at
FROM current_note WHERE run_id = $run
ORDER BY step NULLS FIRST, trajectory NULLS FIRST, first_token NULLS FIRST, written_at
