"""REINFORCE and its relatives: no ratio in the gradient, or a baseline in place of a critic."""

from sorl.algorithms.critic import PPO
from sorl.objective import Pool
from sorl.objective.advantage import BatchMean, Grpo, ReinforcePp, Rloo
from sorl.objective.aggregate import SeqMeanTokenMean
from sorl.objective.clip import NoClip
from sorl.objective.rate import EffectiveSamples
from sorl.objective.ratio import Tis

REINFORCE = PPO.but(
    name="reinforce",
    title="REINFORCE",
    summary=(
        "REINFORCE with a batch baseline: no ratio and no clip, so whatever is off-policy stays uncorrected."
    ),
    paper="https://arxiv.org/abs/2602.19526",
    formula=r"L = -\frac{1}{N}\sum_{i,t} m_{it}\,(R_i - \bar R)\,\log\pi_\theta",
    advantage=BatchMean(),
    ratio=Pool("none"),
    clip=NoClip(),
    claim="Search-R1++ ranks its stability and quality above PPO and GRPO",
)

RLOO = REINFORCE.but(
    name="rloo",
    title="RLOO",
    summary="RLOO: REINFORCE against the mean of the other rollouts of the prompt.",
    paper="https://arxiv.org/abs/2402.14740",
    formula=r"A_{it} = R_i - \mathrm{mean}_{j \ne i} R_j",
    advantage=Rloo(),  # token mean as verl; the paper sums over the sequence
    claim="outperforms PPO in learning from preferences, with less machinery",
)

REINFORCE_PP = PPO.but(
    name="reinforce-pp",
    title="REINFORCE++",
    summary="REINFORCE++: returns whitened over the whole batch, PPO's clip, no critic.",
    paper="https://arxiv.org/abs/2501.03262",
    formula=r"A_{it} = \mathrm{whiten}\big(\sum_{t' \ge t} \gamma^{t'-t} u_{it'}\big)",
    advantage=ReinforcePp(gamma=1.0),
    claim="more stable than GRPO, by its own report",
)

VCPO = REINFORCE.but(
    name="vcpo",
    title="VCPO",
    summary=(
        "VCPO: REINFORCE weighed by the sequence's capped ratio, with a smaller step where few sequences"
        ' carry it; give it `learn.old_log_prob = "update"`.'
    ),
    paper="https://arxiv.org/abs/2602.17616",
    formula=r"\eta \to \eta\sqrt{\mathrm{ESS} / B}"
    r",\quad \mathrm{ESS} = \frac{(\sum_i w_i)^2}{\sum_i w_i^2}"
    r",\quad w_i = \tfrac{\pi_\theta}{\mu}(y_i)",
    advantage=Grpo(eps=1e-6),
    aggregate=SeqMeanTokenMean(),
    correction=Tis(cap=8.0, level="seq_prod"),  # as the scripts of mit-han-lab/vcpo
    rate=EffectiveSamples(power=0.5),
    experimental=(
        "of its two parts this is the step size; its baseline, which weighs rewards by the squared norm of"
        " each sequence's gradient, is left out, and the group's mean stands in"
    ),
    claim="stable 128 updates off-policy; the accuracy of synchronous training 2.5 times as fast",
)
