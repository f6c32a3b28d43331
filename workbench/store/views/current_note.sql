-- One row per note on a run or a part of it that was not taken back.
SELECT run_id, note, step, trajectory, first_token, last_token, tag, text, written_at
FROM note AS n
WHERE withdraws IS NULL
  AND NOT EXISTS (SELECT 1 FROM note AS later WHERE later.run_id = n.run_id AND later.withdraws = n.note)
