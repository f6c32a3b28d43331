"""Masked importance sampling: GRPO whose token losses are weighed by pi_old / mu, and dropped above 2."""

from workbench.algorithms.tis import TIS
from workbench.objective.rollout_correction import Mis

MIS = TIS.but(
    name="mis",
    title="GRPO + masked IS",
    paper="https://arxiv.org/abs/2510.18855",
    formula=r"L_{it} \to \omega_{it}\,\mathbb 1[\omega_{it} \le 2]\,L_{it}",
    correction=Mis(high=2.0),  # TRL drops above 3
    family="correction",
    claim="as TIS, without the bias of the cap",
)
