-- One row: the bytes that the texts of a run take on the disk, compressed.
SELECT coalesce(sum(bytes), 0)::BIGINT AS bytes FROM segment WHERE run_id = $run AND table_name = 'transcript'
