-- Where does entropy go? First and last ten steps of each run by arm and turn index.
SELECT turn_heat.experiment, turn_heat.arm, turn_heat.turn_index,
       avg(turn_heat.entropy) FILTER (turn_heat.step < 10) AS first_ten_steps,
       avg(turn_heat.entropy) FILTER (turn_heat.step >= run.steps - 10) AS last_ten_steps
FROM turn_heat
JOIN run USING (run_id)
GROUP BY ALL
ORDER BY turn_heat.experiment, turn_heat.arm, turn_heat.turn_index
