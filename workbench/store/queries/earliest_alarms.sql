-- Which diagnostic warns first? Median lead over collapsed runs, and false alarms in runs that stayed up (healthy, mild).
SELECT diagnostic, count(DISTINCT run_id) FILTER (lead IS NOT NULL) AS collapsed_runs,
       median(lead) AS lead_median, min(lead) AS lead_min, max(lead) AS lead_max,
       count(*) FILTER (lead IS NULL AND outcome IN ('healthy', 'mild')) AS false_alarms
FROM lead_time
GROUP BY diagnostic
ORDER BY lead_median DESC NULLS LAST
