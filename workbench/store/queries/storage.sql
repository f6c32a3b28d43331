-- How much does a run record? Rows and bytes by run and table, and segments that were set aside.
SELECT run_id, table_name, sum(rows) AS rows, sum(bytes) AS bytes, count(*) AS segments,
       count(*) FILTER (status = 'corrupt') AS corrupt
FROM segment
GROUP BY run_id, table_name
ORDER BY bytes DESC, run_id, table_name
