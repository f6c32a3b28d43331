"""StarPO (RAGEN) with a critic: bi-level GAE, between turns and inside each."""

from workbench.algorithms.ppo import PPO
from workbench.objective.advantage import Bilevel

STARPO = PPO.but(
    name="starpo",
    title="StarPO",
    paper="https://arxiv.org/abs/2504.20073",
    formula=r"A_{it}: \text{ GAE between turns } (\gamma_H = 0.95) \text{, then inside each turn}",
    advantage=Bilevel(gamma=1.0, lam=1.0, gamma_turn=0.95),  # the defaults of its code
    family="critic",
    claim="a framework: names the echo trap, in which rewards, entropy and diversity fall together",
)
