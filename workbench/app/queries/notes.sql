-- One row per note on a run or a part of it that was not taken back, in the order of the parts.
SELECT note, step, trajectory, first_token, last_token, tag, text, written_at
FROM note AS n
WHERE run_id = $run AND withdraws IS NULL
  AND NOT EXISTS (SELECT 1 FROM note AS later WHERE later.run_id = $run AND later.withdraws = n.note)
ORDER BY step NULLS FIRST, trajectory NULLS FIRST, first_token NULLS FIRST, written_at
