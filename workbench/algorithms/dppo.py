"""DPPO: a token is masked when its probability, not its ratio, has moved too far."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.clip_weighted import TvMask

DPPO = GRPO.but(
    name="dppo",
    title="DPPO",
    paper="https://arxiv.org/abs/2602.04879",
    formula=r"M_{it} = 0 \text{ if } \Delta = \mathrm{sgn}(A_{it})\,(p_\theta - p_{\mathrm{old}})_{it} > 0.2",
    clip=TvMask(low=0.2, high=0.2, cap=20.0),  # as verl; prime-rl compares with the sampler and adds a penalty
    family="weight",
    claim="a ratio clip over-penalises rare tokens and under-penalises common ones",
)
