"""ST-PPO (SO-PPO in the paper's second version): turn ratios and the stabiliser of S-PPO."""

from workbench.algorithms.s_ppo import S_PPO
from workbench.algorithms.turn_ppo import TURN_PPO

ST_PPO = TURN_PPO.but(
    name="st-ppo",
    title="ST-PPO (SO-PPO)",
    formula=r"w_{ik} \text{ of Turn-PPO, and } L \to L / \rho \text{ of S-PPO, with } \rho \text{ from token ratios}",
    stabilise=S_PPO.stabilise,
    family="normalised",
    claim="prevents collapse on 7B runs, with a lower clip fraction",
)
