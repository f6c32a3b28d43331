-- One row per table that a run wrote: ingested segments, their rows and bytes, and the segments that could not be read.
SELECT table_name, count(*) FILTER (status = 'ingested') AS segments, sum(rows) FILTER (status = 'ingested') AS rows,
       sum(bytes) FILTER (status = 'ingested') AS bytes, count(*) FILTER (status <> 'ingested') AS corrupt
FROM segment
WHERE run_id = $run
GROUP BY table_name
ORDER BY bytes DESC NULLS LAST, table_name
