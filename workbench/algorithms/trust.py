"""GRPO without the tokens or sequences that are too far from the policy that sampled them."""

from sorl.algorithms.group import GRPO
from sorl.objective.advantage import MeanOnly
from sorl.objective.aggregate import SeqMeanTokenMean
from sorl.objective.kl import SamplerSquare
from sorl.objective.trust import SecondMoment, SequenceMask, SequenceTrust, TvGate

M2PO = GRPO.but(
    name="m2po",
    title="M2PO",
    summary="M2PO: no clip; the tokens with the farthest ratios go until their second moment is in budget.",
    paper="https://arxiv.org/abs/2510.01161",
    formula=r"L_{it} = -M_{it} A_{it} r_{it},\quad M_{it} = 0 \text{ for the largest } (\log r_{it})^2"
    r"\text{ in } S \text{ until } \langle(\log r)^2\rangle_S \le 0.04",
    clip=SecondMoment(budget=0.04, tokens="trust_region"),  # algorithm 1; 0.04: the scripts of its code
    claim="stable with data stale by 256 updates, six models from 1.7B to 32B",
)

TRM = GRPO.but(
    name="trm",
    title="TRM",
    summary="TRM: trust region masking; a sequence with one token too far from the sampler is left out.",
    paper="https://arxiv.org/abs/2512.23075",
    formula=r"L_{it} = -M_i A_{it} (\pi_\theta / \mu)_{it}"
    r",\quad M_i = \mathbb 1[\max_t D_{it}(\mu \| \pi_\theta) \le 2.5]",
    clip=SequenceTrust(bound=2.5, estimator="k2"),  # seq_max_k2 of verl's example
    experimental=(
        "the paper bounds a divergence that has to be estimated from the sampled token; estimate and bound"
        " are those of verl's example (`seq_max_k2`), the paper's own bound was not read; verl masks once a"
        " step, by the policy before the updates"
    ),
    claim="the first monotone improvement guarantee for long sequences that is not vacuous",
)

OPSM = GRPO.but(
    name="opsm",
    title="OPSM",
    summary="OPSM: off-policy sequence masking; bad responses that have become unlikely are let go.",
    paper="https://arxiv.org/abs/2512.02556",
    formula=r"M_{it} = 0 \text{ if } A_{it} < 0 \text{ and } \tfrac{1}{|y_i|}\sum_t m_{it}"
    r"\log(\pi_{\mathrm{old}} / \pi_\theta)_{it} > 10^{-4}",
    clip=SequenceMask(low=0.2, high=0.2, delta=1e-4),  # slime's --use-opsm with its defaults
    aggregate=SeqMeanTokenMean(),  # slime's mean of the samples' means
    claim="DeepSeek-V3.2: tolerates more off-policy data; no numbers given",
)

PRIME_RL = GRPO.but(
    name="prime-rl",
    title="prime-rl's default loss",
    summary="prime-rl's default: DPPO's mask by probabilities, and a square pull towards the sampler.",
    paper="https://arxiv.org/abs/2602.04879",
    formula=r"L_{it} = -M_{it} A_{it} (\pi_\theta / \mu)_{it} + 10^{-3} \log^2(\pi_\theta / \mu)_{it}",
    advantage=MeanOnly(),
    clip=TvGate(low=0.2, high=0.2),
    kl=SamplerSquare(tau=1e-3),
    # read in prime-rl 559b447 (August 2026), whose docstring names DPPO and Kimi K2.5 (2602.02276)
    claim="none in a paper: it is what prime-rl trains with unless told otherwise",
)
