"""GRPO and its relatives: advantages against the other rollouts of a prompt."""

from sorl.algorithms.critic import PPO
from sorl.objective.advantage import Grpo, MeanOnly, Rloo
from sorl.objective.aggregate import SeqMeanTokenMean, SeqMeanTokenSumNorm
from sorl.objective.baseline import Otb
from sorl.objective.clip import Ppo, Recip
from sorl.objective.select import DynamicSampling, LargeAdvantage, Overlong, TrajectoryKL

GRPO = PPO.but(
    name="grpo",
    title="GRPO",
    summary="GRPO: no critic, advantages against the other rollouts of the prompt.",
    paper="https://arxiv.org/abs/2402.03300",
    formula=r"A_{it} = (R_i - \mathrm{mean}_g R) / (\mathrm{std}_g R + 10^{-6})",
    # eps 1e-6 and the token mean as verl and Search-R1; the paper averages per sequence and adds a k3 term
    advantage=Grpo(eps=1e-6),
    claim="faster than PPO on search agents, and collapses late (Search-R1)",
)

DR_GRPO = GRPO.but(
    name="dr-grpo",
    title="Dr. GRPO",
    summary="Dr. GRPO: neither the group's std nor the length of a response divides.",
    paper="https://arxiv.org/abs/2503.20783",
    formula=r"A_{it} = R_i - \mathrm{mean}_g R,\quad L = \frac{1}{B H}\sum_{i,t} m_{it} L_{it}",
    advantage=MeanOnly(),
    aggregate=SeqMeanTokenSumNorm(),  # H, the tokens that an episode may have, as TRL's max_completion_length
    claim="removes the bias to long wrong answers and to easy and hard prompts",
)

DAPO = GRPO.but(
    name="dapo",
    title="DAPO",
    summary=(
        "DAPO: GRPO with a wider upper clip, groups drawn until they disagree, and a penalty for overlong"
        " answers."
    ),
    paper="https://arxiv.org/abs/2503.14476",
    formula=(
        r"\mathrm{clip}(r, 0.8, 1.28),\ \mathrm{std}_{i \in g} R_i > 0,\ R_i \to R_i + \text{penalty}(|y_i|)"
    ),
    clip=Ppo(low=0.2, high=0.28),
    select=DynamicSampling(),
    shaping=Overlong(limit=20480, margin=4096),
    claim="prevents entropy collapse; 50 points on AIME 2024 with Qwen2.5-32B",
)

LOOP = GRPO.but(
    name="loop",
    title="LOOP",
    summary=(
        "LOOP: leave-one-out advantages, a reciprocal clip, no critic, and an early stop by trajectory KL."
    ),
    paper="https://arxiv.org/abs/2502.01600",
    formula=r"A_{it} = R_i - \mathrm{mean}_{j \ne i} R_j,\quad \mathrm{clip}(r, \tfrac{1}{1.1}, 1.1)",
    advantage=Rloo(),
    clip=Recip(epsilon=0.1),
    aggregate=SeqMeanTokenMean(),
    select=LargeAdvantage(threshold=0.01),
    early_stop=TrajectoryKL(limit=20.0),  # gradient-norm clip 0.1 is a setting: learn.policy.max_grad_norm
    claim="beats larger models on AppWorld, stable",
)

OTB = GRPO.but(
    name="otb",
    title="Optimal token baseline",
    summary="Optimal token baseline: each token's own baseline, weighed by how much the score has grown.",
    paper="https://arxiv.org/abs/2602.07078",
    formula=r"A_{in} = G_{in} - \frac{\sum_j G_{jn} W_{jn}}{\sum_j W_{jn}}"
    r",\quad W_n = \sum_{m \le n} \big(1 - 2 p_m + \sum_v p_{mv}^2\big)",
    advantage=Otb(),  # verl's tir_optimal_token_baseline
    claim="as stable with 4 rollouts a prompt as GRPO with 32; saves over 65 % of the tokens",
)
