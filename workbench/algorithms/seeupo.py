"""SeeUPO: turns are updated one after the other, the last first, each weighed by how far the later ones moved."""

from workbench.algorithms.gspo import GSPO
from workbench.objective.advantage import GroupBatchZ
from workbench.objective.schedule import ReverseTurns

SEEUPO = GSPO.but(
    name="seeupo",
    title="SeeUPO",
    paper="https://arxiv.org/abs/2602.06554",
    formula=r"h = K..1:\ A^{(h)}_i = \mathrm{sg}[M_i] A_i,\ M_i \to \mathrm{clip}(M_i\,\mathrm{clip}(w_{ih}))",
    advantage=GroupBatchZ(limit=3.0),
    schedule=ReverseTurns(epsilon=0.2),  # and its group mean and whitening per turn: dy-liang/seeupo_v2
    family="unit",
    experimental="the width of its clip is not known to us: GSPO's",
    claim="restores guarantees for many turns; +43 to +55 % relative on AppWorld and BFCL v4 (Qwen3-14B)",
)
