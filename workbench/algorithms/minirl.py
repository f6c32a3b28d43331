"""MiniRL: the raw importance weight against the sampler, masked by PPO's gate, summed over the sequence."""

from workbench.algorithms.grpo import GRPO
from workbench.objective.aggregate import SeqMeanTokenSum
from workbench.objective.clip_weighted import PpoMask
from workbench.objective.rollout_correction import Tis

MINIRL = GRPO.but(
    name="minirl",
    title="MiniRL",
    paper="https://arxiv.org/abs/2512.01374",
    formula=r"L = -\tfrac{1}{B}\sum_{i,t} M_{it}\,\mathrm{sg}\big[\tfrac{\pi_\theta}{\mu}\big]_{it} A_i \log\pi_\theta",
    clip=PpoMask(low=0.2, high=0.2),
    aggregate=SeqMeanTokenSum(),
    correction=Tis(cap=None),
    family="weight",
    experimental="its clip widths were not read, nor whether its group normalisation divides by the std, as it does "
    "here; the sum makes a step as many times larger as a response has tokens",
    claim="on-policy the weight alone is the most stable, length normalisation hurts; off-policy the mask is needed",
)
