"""Dr. GRPO: neither the group's std nor the length of a response divides."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.advantage import MeanOnly
from workbench.objective.aggregate import SeqMeanTokenSumNorm

DR_GRPO = GRPO.but(
    name="dr-grpo",
    title="Dr. GRPO",
    paper="https://arxiv.org/abs/2503.20783",
    formula=r"A_{it} = R_i - \mathrm{mean}_g R,\quad L = \frac{1}{B H}\sum_{i,t} m_{it} L_{it}",
    advantage=MeanOnly(),
    aggregate=SeqMeanTokenSumNorm(),  # H, the tokens that an episode may have, as TRL's max_completion_length
    family="group",
    claim="removes the bias to long wrong answers and to easy and hard prompts",
)
