"""LLDS: GRPO and a penalty on good responses that have become less likely."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.kl import Lld

LLDS = GRPO.but(
    name="llds",
    title="LLDS",
    paper="https://arxiv.org/abs/2512.04220",
    formula=r"L + 0.2\,\big\langle g_i \max(0, \ell^{\mathrm{old}} - \ell^\theta)\,\mathbb 1[A_i \ge 0]\big\rangle_m",
    kl=Lld(weight=0.2, gate="response"),
    family="guard",
    claim="stops the death spiral of lazy likelihood displacement; +45 % (3B), +37 % (7B) relative",
)
