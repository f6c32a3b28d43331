"""BAPO: the bounds of the clip follow the batch until positive advantages have half of the weight."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.clip_adaptive import Bapo

BAPO = GRPO.but(
    name="bapo",
    title="BAPO",
    paper="https://arxiv.org/abs/2510.18927",
    formula=r"\mathrm{clip}(r, c_l, c_h) \text{ with } c_l, c_h \text{ raised until } P / (P + Q) \ge \tfrac12",
    clip=Bapo(),
    family="weight",
    claim="keeps entropy up and negative samples from dominating under staleness",
)
