"""VESPO: each sequence weighs by a smooth function of its product ratio, which fades on both sides of 1."""

from workbench.algorithms.grpo import GRPO
from workbench.objective import Pool
from workbench.objective.clip_weighted import Gamma

VESPO = GRPO.but(
    name="vespo",
    title="VESPO",
    paper="https://arxiv.org/abs/2602.10693",
    formula=r"L_{it} = -\mathrm{sg}[e^{\lambda} W_i^{k} e^{-\lambda W_i}]\,A_i\,\log\pi_\theta"
    r",\quad W_i = \prod_t (\pi_\theta / \mu)_{it}",
    ratio=Pool("sequence", mean="product"),
    clip=Gamma(),
    family="weight",
    claim="stable up to a staleness of 64 and fully asynchronous, where GRPO and SAPO collapse at 4",
)
