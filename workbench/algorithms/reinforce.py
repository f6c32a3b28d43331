"""REINFORCE with a batch baseline: no ratio and no clip, so whatever is off-policy stays uncorrected."""

from workbench.algorithms.ppo import PPO
from workbench.objective import Pool
from workbench.objective.advantage import BatchMean
from workbench.objective.clip import NoClip

REINFORCE = PPO.but(
    name="reinforce",
    title="REINFORCE",
    paper="https://arxiv.org/abs/2602.19526",
    formula=r"L = -\frac{1}{N}\sum_{i,t} m_{it}\,(R_i - \bar R)\,\log\pi_\theta",
    advantage=BatchMean(),
    ratio=Pool("none"),
    clip=NoClip(),
    family="reinforce",
    claim="Search-R1++ ranks its stability and quality above PPO and GRPO",
)
