"""SAPO of Qwen: a sigmoid gate in place of the clip, steeper for negative advantages."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.aggregate import SeqMeanTokenMean
from workbench.objective.clip_adaptive import SoftSigmoid

SAPO = GRPO.but(
    name="sapo",
    title="SAPO (soft adaptive)",
    paper="https://arxiv.org/abs/2511.20347",
    formula=r"L_{it} = -A_{it}\,\tfrac{4}{\tau}\,\sigma(\tau(r_{it} - 1)),\quad \tau = 1 \text{ or } 1.05",
    clip=SoftSigmoid(tau_positive=1.0, tau_negative=1.05),
    aggregate=SeqMeanTokenMean(),
    family="weight",
    claim="more stable than GSPO and GRPO on mixture-of-experts models",
)
