"""ST-PPO (SO-PPO in the paper's second version): turn ratios and the stabiliser of S-PPO."""

from dataclasses import replace

from workbench.algorithms.s_ppo import S_PPO
from workbench.algorithms.turn_ppo import TURN_PPO

ST_PPO = replace(
    TURN_PPO,
    name="st-ppo",
    title="ST-PPO (SO-PPO)",
    formula=r"w_{ik} \text{ of Turn-PPO, and } L \to L / \rho \text{ of S-PPO, with } \rho \text{ from token ratios}",
    differs_from="turn-ppo",
    stabilise=S_PPO.stabilise,
)
