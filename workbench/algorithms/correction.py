"""GRPO with a correction of the rollout: the sampler is not the policy that the trainer computes."""

from sorl.algorithms.group import GRPO
from sorl.objective.ratio import IcePop, Mis, Tis

TIS = GRPO.but(
    name="tis",
    title="GRPO + TIS",
    summary="Truncated importance sampling: GRPO whose token losses are weighed by min(pi_old / mu, 2).",
    paper="https://arxiv.org/abs/1802.01561",
    formula=r"L_{it} \to \min(\omega_{it}, 2)\,L_{it},\quad \omega = \pi_{\mathrm{old}} / \mu",
    correction=Tis(cap=2.0),  # the truncation is IMPALA's; 2 as verl, TRL caps at 3
    claim="repairs the gap between inference and training engines",
)

MIS = TIS.but(
    name="mis",
    title="GRPO + masked IS",
    summary=(
        "Masked importance sampling: GRPO whose token losses are weighed by pi_old / mu, and dropped above 2."
    ),
    paper="https://arxiv.org/abs/2510.26788",
    formula=r"L_{it} \to \omega_{it}\,\mathbb 1[\omega_{it} \le 2]\,L_{it}",
    correction=Mis(high=2.0),  # TRL drops above 3
    experimental=(
        "the mask from above is a blog post's (When Speed Kills Stability, 2025), not read; the paper named"
        " tests it, says TRL's issue 4493, and was read in its abstract alone; IcePop (2510.18855) masks on"
        " both sides"
    ),
    claim="as TIS, without the bias of the cap",
)

ICEPOP = TIS.but(
    name="icepop",
    title="GRPO + IcePop",
    summary="IcePop: GRPO whose token losses are weighed by pi_old / mu, and dropped outside [0.5, 5].",
    paper="https://arxiv.org/abs/2510.18855",
    formula=r"L_{it} \to \omega_{it}\,\mathbb 1[0.5 \le \omega_{it} \le 5]\,L_{it}",
    correction=IcePop(low=0.5, high=5.0),
    claim="keeps mixture-of-experts models stable that diverge without it",
)
