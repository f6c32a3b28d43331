"""Masked importance sampling: GRPO whose token losses are weighed by pi_old / mu, and dropped above 2."""

from workbench.algorithms.tis import TIS
from workbench.objective.rollout_correction import Mis

MIS = TIS.but(
    name="mis",
    title="GRPO + masked IS",
    paper="https://arxiv.org/abs/2510.26788",
    formula=r"L_{it} \to \omega_{it}\,\mathbb 1[\omega_{it} \le 2]\,L_{it}",
    correction=Mis(high=2.0),  # TRL drops above 3
    family="correction",
    experimental="the mask from above is a blog post's (When Speed Kills Stability, 2025), not read; the paper named "
    "tests it, says TRL's issue 4493, and was read in its abstract alone; IcePop (2510.18855) masks on both sides",
    claim="as TIS, without the bias of the cap",
)
