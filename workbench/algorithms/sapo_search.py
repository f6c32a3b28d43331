"""SAPO for search agents: GRPO and a push on tokens of good responses whose ratio has fallen."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.kl import PositiveLow

SAPO_SEARCH = GRPO.but(
    name="sapo-search",
    title="SAPO (search agents)",
    paper="https://arxiv.org/abs/2603.10069",
    formula=r"L - w\,\big\langle \log r\,\mathbb 1[r \le t]\big\rangle_{m,\,A_i \ge 0}",
    kl=PositiveLow(weight=0.1, threshold=1.0),
    family="guard",
    experimental="its weight and threshold are not known to us",
    claim="stops ratios from drifting to 0; +10.6 points over Search-R1 on seven question sets",
)
