"""Turn-PPO as in 2512.17008: a turn is one action, with its own value, advantage, ratio and clip."""

from workbench.algorithms.ppo import PPO
from workbench.objective import Pool
from workbench.objective.advantage import TurnGae
from workbench.objective.aggregate import TurnMeanGlobal
from workbench.objective.clip import Ppo

TURN_PPO_MDP = PPO.but(
    name="turn-ppo-mdp",
    title="Turn-PPO (turn MDP)",
    paper="https://arxiv.org/abs/2512.17008",
    formula=r"L = \frac{1}{\sum_i K_i}\sum_{i,k} \max(-A_{ik} w_{ik}, -A_{ik}\,\mathrm{clip}(w_{ik}))",
    advantage=TurnGae(gamma=0.99, lam=0.9),
    ratio=Pool("turn", mean="geometric"),
    clip=Ppo(gate="unit"),
    aggregate=TurnMeanGlobal(),
    family="critic",
    experimental="whether the paper takes the product or the geometric mean of a turn is not known to us",
    claim="GRPO crashes on long reasoning, token PPO is better, turn PPO best (WebShop, Sokoban)",
)
