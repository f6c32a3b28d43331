-- Does the ratio drift more in later turns? Geometric ratio, extremes and clipping by arm and turn index.
SELECT experiment, arm, turn_index,
       avg(ratio_geo) AS ratio_geo,
       max(ratio_max) AS ratio_max,
       avg(clip_frac) AS clip_frac,
       avg(approx_kl) AS approx_kl,
       sum(n_turns) AS turns
FROM turn_heat
GROUP BY experiment, arm, turn_index
ORDER BY experiment, arm, turn_index
