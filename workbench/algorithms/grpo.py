"""GRPO: no critic, advantages against the other rollouts of the prompt."""

from workbench.algorithms.ppo import PPO
from workbench.objective.advantage import Grpo

GRPO = PPO.but(
    name="grpo",
    title="GRPO",
    paper="https://arxiv.org/abs/2402.03300",
    formula=r"A_{it} = (R_i - \mathrm{mean}_g R) / (\mathrm{std}_g R + 10^{-6})",
    # eps 1e-6 and the token mean as verl and Search-R1; the paper averages per sequence and adds a k3 term
    advantage=Grpo(eps=1e-6),
    family="group",
    claim="faster than PPO on search agents, and collapses late (Search-R1)",
)
