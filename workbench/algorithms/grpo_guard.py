"""GRPO-Guard for language models: log-ratios centred in each turn before the clip."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.ratio import Guard

GRPO_GUARD = GRPO.but(
    name="grpo-guard",
    title="GRPO-Guard, centred",
    paper="https://arxiv.org/abs/2510.22319",
    formula=r"r_{it} = \exp(\delta_{it} - \mu_k),\ \mu_k = \mathrm{mean}_{t \in \text{turns } k}\,\delta",
    ratio=Guard(mode="center", bins="turn"),
    family="guard",
    experimental="the method is for flow matching; turns in place of denoising steps are our construction, and of its "
    "two parts only the ratio normalisation is here: the reweighting of gradients over the steps is left out",
    claim="over-optimisation of flow-matching models avoided; nothing for language models",
)
