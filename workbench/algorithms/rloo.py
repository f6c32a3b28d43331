"""RLOO: REINFORCE against the mean of the other rollouts of the prompt."""

from workbench.algorithms.reinforce import REINFORCE
from workbench.objective.advantage import Rloo

RLOO = REINFORCE.but(
    name="rloo",
    title="RLOO",
    paper="https://arxiv.org/abs/2402.14740",
    formula=r"A_{it} = R_i - \mathrm{mean}_{j \ne i} R_j",
    advantage=Rloo(),  # token mean as verl; the paper sums over the sequence
    family="reinforce",
    claim="outperforms PPO in learning from preferences, with less machinery",
)
