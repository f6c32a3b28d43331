"""REINFORCE++: returns whitened over the whole batch, PPO's clip, no critic."""

from workbench.algorithms.ppo import PPO
from workbench.objective.advantage import ReinforcePp

REINFORCE_PP = PPO.but(
    name="reinforce-pp",
    title="REINFORCE++",
    paper="https://arxiv.org/abs/2501.03262",
    formula=r"A_{it} = \mathrm{whiten}\big(\sum_{t' \ge t} \gamma^{t'-t} u_{it'}\big)",
    advantage=ReinforcePp(gamma=1.0),
    family="reinforce",
    claim="more stable than GRPO, by its own report",
)
