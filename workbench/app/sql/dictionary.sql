-- One row per declared diagnostic and table: what the column means, its unit, its alarm as words and as numbers.
SELECT name, table_name, level, unit, formula, source, description, sql_type, alarm, alarm_when, alarm_value,
       alarm_baseline_points
FROM diagnostic
ORDER BY table_name, name
