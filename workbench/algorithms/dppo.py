"""DPPO: a token is masked when its probability, not its ratio, has moved too far from the sampler's."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.clip_weighted import TvMask

DPPO = GRPO.but(
    name="dppo",
    title="DPPO",
    paper="https://arxiv.org/abs/2602.04879",
    formula=r"M_{it} = 0 \text{ if } \Delta = \mathrm{sgn}(A_{it})\,(p_\theta - p_\mu)_{it} > 0.2"
    r",\quad w_{it} = (\pi_\theta / \mu)_{it}",
    # mask and ratio against the sampler: sail-sg/Stable-RL, whose cap is 10 unless set; 20 as verl
    clip=TvMask(low=0.2, high=0.2, cap=20.0, against="behaviour"),
    family="weight",
    claim="a ratio clip over-penalises rare tokens and under-penalises common ones",
)
