-- One row per table and view: its grain and how many columns it has, tables first.
SELECT table_name AS name, 'table' AS kind, comment AS grain, column_count AS columns
FROM duckdb_tables() WHERE NOT internal
UNION ALL
SELECT view_name, 'view', comment, column_count FROM duckdb_views() WHERE NOT internal
ORDER BY kind, name
