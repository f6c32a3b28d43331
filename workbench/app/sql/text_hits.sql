-- One row per trajectory of a run whose text holds a match of a regular expression (RE2).
SELECT step, trajectory FROM transcript WHERE run_id = $run AND regexp_matches(text, $pattern)
