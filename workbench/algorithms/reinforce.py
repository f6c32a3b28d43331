"""REINFORCE and its relatives: no ratio in the gradient, or a baseline in place of a critic."""

from sorl.algorithms.critic import PPO
from sorl.objective import Pool
from sorl.objective.advantage import BatchMean, ReinforcePp, Rloo
from sorl.objective.clip import NoClip

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
