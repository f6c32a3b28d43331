"""Ratios of whole sentences, turns and sequences."""

from sorl.algorithms.group import GRPO
from sorl.objective import Pool
from sorl.objective.advantage import GroupBatchZ
from sorl.objective.aggregate import SeqMeanTokenMean
from sorl.objective.clip import EntropyBand, LogClip, Ppo
from sorl.objective.select import ReverseTurns

GSPO = GRPO.but(
    name="gspo",
    title="GSPO",
    summary="GSPO: one geometric ratio and one clip for the whole sequence.",
    paper="https://arxiv.org/abs/2507.18071",
    formula=r"s_i = \exp\big(\tfrac{1}{|y_i|}\sum_t m_{it}\log r_{it}\big)"
    r",\quad L = \tfrac{1}{B}\sum_i \max(-A_i s_i, -A_i\,\mathrm{clip}(s_i))",
    ratio=Pool("sequence", mean="geometric", grad="shared"),
    clip=Ppo(low=3e-4, high=4e-4),
    aggregate=SeqMeanTokenMean(),
    claim="stable where GRPO fails on mixture-of-experts models, though it clips far more tokens",
)

GSPO_TOKEN = GSPO.but(
    name="gspo-token",
    title="GSPO-token",
    summary=(
        "GSPO-token: GSPO whose gradient stays with each token; the same update with one advantage a"
        " sequence."
    ),
    formula=r"s_{it} = \mathrm{sg}[s_i]\,\pi_\theta / \mathrm{sg}[\pi_\theta]",
    ratio=Pool("sequence", mean="geometric", grad="token"),  # what verl computes as gspo
    claim="equal to GSPO in objective and gradient where advantages are constant; for token advantages",
)

SSPO = GRPO.but(
    name="sspo",
    title="SSPO",
    summary="SSPO: one ratio a sentence, clipped more widely where the policy is uncertain.",
    paper="https://arxiv.org/abs/2511.04256",
    formula=r"w_{is} = \exp\big(\tfrac{1}{n_{is}}\sum_{t \in s}\log r_{it}\big)"
    r",\quad \epsilon_s = \epsilon\,\mathrm{clamp}(\bar H_s / \bar H, \tfrac12, 2)",
    ratio=Pool("sentence", mean="geometric"),
    clip=EntropyBand(epsilon=0.2),
    experimental="no code of the authors; the map from entropy to the width of the clip is ours",
    claim="46.6 on average over five maths sets, GRPO 43.0, GSPO 44.4 (Qwen2.5-Math-1.5B)",
)

GMPO = GRPO.but(
    name="gmpo",
    title="GMPO",
    summary="GMPO: the geometric mean of token ratios, each clipped in log space before the mean.",
    paper="https://arxiv.org/abs/2507.20673",
    formula=r"L_i = -A_i \exp\big(\tfrac{1}{|y_i|}\sum_t m_{it}\,\mathrm{clip}_{0.4}(\log r_{it})\big)",
    ratio=Pool("sequence", mean="geometric"),
    clip=LogClip(epsilon=0.4, at="token"),
    aggregate=SeqMeanTokenMean(),
    claim="fewer extreme ratios than GRPO, and better on maths",
)

SEEUPO = GSPO.but(
    name="seeupo",
    title="SeeUPO",
    summary="SeeUPO: updates turns one by one, the last first, each weighed by how far the later ones moved.",
    paper="https://arxiv.org/abs/2602.06554",
    formula=(
        r"h = K..1:\ A^{(h)}_i = \mathrm{sg}[M_i] A_i,\ M_i \to \mathrm{clip}(M_i\,\mathrm{clip}(w_{ih}))"
    ),
    advantage=GroupBatchZ(limit=3.0),
    schedule=ReverseTurns(epsilon=0.2),  # and its group mean and whitening per turn: dy-liang/seeupo_v2
    experimental="the width of its clip is not known to us: GSPO's",
    claim="restores guarantees for many turns; +43 to +55 % relative on AppWorld and BFCL v4 (Qwen3-14B)",
)
