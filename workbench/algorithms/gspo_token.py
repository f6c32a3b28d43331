"""GSPO-token: GSPO whose gradient stays with each token; with one advantage a sequence the very update of GSPO."""

from workbench.algorithms.gspo import GSPO
from workbench.objective import Pool

GSPO_TOKEN = GSPO.but(
    name="gspo-token",
    title="GSPO-token",
    paper="https://arxiv.org/abs/2507.18071",
    formula=r"s_{it} = \mathrm{sg}[s_i]\,\pi_\theta / \mathrm{sg}[\pi_\theta]",
    ratio=Pool("sequence", mean="geometric", grad="token"),  # what verl computes as gspo
    family="unit",
    claim="equal to GSPO in objective and gradient where advantages are constant; for token advantages",
)
