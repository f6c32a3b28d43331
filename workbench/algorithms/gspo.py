"""GSPO: one geometric ratio and one clip for the whole sequence."""

from workbench.algorithms.grpo import GRPO
from workbench.objective import Pool
from workbench.objective.aggregate import SeqMeanTokenMean
from workbench.objective.clip import Ppo

GSPO = GRPO.but(
    name="gspo",
    title="GSPO",
    paper="https://arxiv.org/abs/2507.18071",
    formula=r"s_i = \exp\big(\tfrac{1}{|y_i|}\sum_t m_{it}\log r_{it}\big)"
    r",\quad L = \tfrac{1}{B}\sum_i \max(-A_i s_i, -A_i\,\mathrm{clip}(s_i))",
    ratio=Pool("sequence", mean="geometric", grad="shared"),
    clip=Ppo(low=3e-4, high=4e-4),
    aggregate=SeqMeanTokenMean(),
    family="unit",
    claim="stable where GRPO fails on mixture-of-experts models, though it clips far more tokens",
)
