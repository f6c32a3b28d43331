"""IcePop: GRPO whose token losses are weighed by pi_old / mu, and dropped outside [0.5, 5]."""

from workbench.algorithms.tis import TIS
from workbench.objective.rollout_correction import IcePop

ICEPOP = TIS.but(
    name="icepop",
    title="GRPO + IcePop",
    paper="https://arxiv.org/abs/2510.18855",
    formula=r"L_{it} \to \omega_{it}\,\mathbb 1[0.5 \le \omega_{it} \le 5]\,L_{it}",
    correction=IcePop(low=0.5, high=5.0),
    family="correction",
    claim="keeps mixture-of-experts models stable that diverge without it",
)
