"""GRPO-Guard for language models: log-ratios centred in each turn and scaled to one spread before the clip."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.ratio import Guard

GRPO_GUARD_FULL = GRPO.but(
    name="grpo-guard-full",
    title="GRPO-Guard, scaled",
    paper="https://arxiv.org/abs/2510.22319",
    formula=r"r_{it} = \exp(\sigma_0 (\delta_{it} - \mu_k) / \sigma_k)",
    ratio=Guard(mode="full", bins="turn"),
    family="guard",
    experimental="the method is for flow matching; turns in place of denoising steps are our construction, and of its "
    "two parts only the ratio normalisation is here: the reweighting of gradients over the steps is left out",
    claim="over-optimisation of flow-matching models avoided; nothing for language models",
)
