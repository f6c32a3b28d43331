"""Truncated importance sampling: GRPO whose token losses are weighed by min(pi_old / mu, 2)."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.rollout_correction import Tis

TIS = GRPO.but(
    name="tis",
    title="GRPO + TIS",
    paper="https://arxiv.org/abs/1802.01561",
    formula=r"L_{it} \to \min(\omega_{it}, 2)\,L_{it},\quad \omega = \pi_{\mathrm{old}} / \mu",
    correction=Tis(cap=2.0),  # the truncation is IMPALA's; 2 as verl, TRL caps at 3
    family="correction",
    claim="repairs the gap between inference and training engines",
)
