"""LOOP: leave-one-out advantages, a reciprocal clip, no critic, and an early stop by trajectory KL."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.advantage import Rloo
from workbench.objective.aggregate import SeqMeanTokenMean
from workbench.objective.clip import Recip
from workbench.objective.early_stop import TrajectoryKL
from workbench.objective.select import LargeAdvantage

LOOP = GRPO.but(
    name="loop",
    title="LOOP",
    paper="https://arxiv.org/abs/2502.01600",
    formula=r"A_{it} = R_i - \mathrm{mean}_{j \ne i} R_j,\quad \mathrm{clip}(r, \tfrac{1}{1.1}, 1.1)",
    advantage=Rloo(),
    clip=Recip(epsilon=0.1),
    aggregate=SeqMeanTokenMean(),
    select=LargeAdvantage(threshold=0.01),
    early_stop=TrajectoryKL(limit=20.0),  # gradient-norm clip 0.1 is a setting: learn.policy.max_grad_norm
    family="group",
    claim="beats larger models on AppWorld, stable",
)
