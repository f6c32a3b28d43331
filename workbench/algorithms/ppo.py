"""Token PPO: the base that everything else is a difference to."""

from workbench.objective import Algorithm, Pool
from workbench.objective.advantage import Gae
from workbench.objective.aggregate import TokenMean
from workbench.objective.clip import Ppo

PPO = Algorithm(
    name="ppo",
    title="Token PPO",
    paper="https://arxiv.org/abs/1707.06347",
    formula=r"L = \frac{1}{N}\sum_{i,t} m_{it} \max(-A_{it} r_{it}, -A_{it}\,\mathrm{clip}(r_{it}))",
    differs_from=None,
    advantage=Gae(gamma=1.0, lam=1.0, skip_obs=True, whiten="m"),  # 1, 1: Search-R1; over policy tokens: verl
    ratio=Pool("token"),
    clip=Ppo(low=0.2, high=0.2, dual=None),  # Search-R1; verl adds a dual clip of 3
    aggregate=TokenMean(),  # Search-R1 and verl; counts of the minibatch as verl
    claim="the baseline; Search-R1 reports it slower and more stable than GRPO",
)
