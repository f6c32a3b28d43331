"""CISPO: the ratio is clipped as a weight, so no token loses its gradient."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.clip_weighted import SgClip

CISPO = GRPO.but(
    name="cispo",
    title="CISPO",
    paper="https://arxiv.org/abs/2506.13585",
    formula=r"L_{it} = -\mathrm{sg}[\mathrm{clip}(r_{it})]\,A_{it}\,\log\pi_\theta",
    clip=SgClip(low=0.2, high=0.2),  # both sides as verl; MiniMax has no lower bound and does not give the upper one
    family="weight",
    claim="reaches DAPO's accuracy on AIME 2024 in half of the steps (Qwen2.5-32B)",
)
