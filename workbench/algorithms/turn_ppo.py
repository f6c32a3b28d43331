"""Turn-PPO as in 2511.20718: one ratio a turn, advantages still per token."""

from workbench.algorithms.ppo import PPO
from workbench.objective import Pool

TURN_PPO = PPO.but(
    name="turn-ppo",
    title="Turn-PPO",
    paper="https://arxiv.org/abs/2511.20718",
    formula=r"r_{it} \to w_{ik} = \exp\big(\tfrac{1}{n_{ik}} \sum_{s \in k} \log r_{is}\big),\ t \in \text{turn } k",
    ratio=Pool("turn", mean="geometric", grad="shared"),  # and a token gate: the authors' development fork
    experimental="of 2511.20718 this is the authors' development fork, not the paper's text, which could not be read: "
    "geometric turn ratios, token advantages; a note on the paper has arithmetic ratios and A_k = R_k - V(s_k)",
    claim="more stable than token PPO on 7B search agents; overlapping error bars in its own figure 3a",
)
