"""GMPO: the geometric mean of token ratios, each clipped in log space before the mean."""

from workbench.algorithms.grpo import GRPO
from workbench.objective import Pool
from workbench.objective.aggregate import SeqMeanTokenMean
from workbench.objective.clip import LogClip

GMPO = GRPO.but(
    name="gmpo",
    title="GMPO",
    paper="https://arxiv.org/abs/2507.20673",
    formula=r"L_i = -A_i \exp\big(\tfrac{1}{|y_i|}\sum_t m_{it}\,\mathrm{clip}_{0.4}(\log r_{it})\big)",
    ratio=Pool("sequence", mean="geometric"),
    clip=LogClip(epsilon=0.4, at="token"),
    aggregate=SeqMeanTokenMean(),
    family="unit",
    claim="fewer extreme ratios than GRPO, and better on maths",
)
