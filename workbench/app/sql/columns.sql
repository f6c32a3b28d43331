-- One row per column of a table or view: its type and what it tells; a view's column tells what a table's of its name does.
WITH told AS (
    SELECT column_name, any_value(comment ORDER BY table_name) AS comment
    FROM duckdb_columns() WHERE NOT internal AND comment <> '' GROUP BY column_name
)
SELECT c.table_name AS "table", c.column_name AS name, c.data_type AS type,
       coalesce(nullif(c.comment, ''), told.comment, '') AS description
FROM duckdb_columns() c
LEFT JOIN told USING (column_name)
WHERE NOT c.internal
ORDER BY c.table_name, c.column_index
