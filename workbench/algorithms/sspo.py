"""SSPO: one ratio a sentence, clipped more widely where the policy is uncertain."""

from workbench.algorithms.grpo import GRPO
from workbench.objective import Pool
from workbench.objective.clip_adaptive import EntropyBand

SSPO = GRPO.but(
    name="sspo",
    title="SSPO",
    paper="https://arxiv.org/abs/2511.04256",
    formula=r"w_{is} = \exp\big(\tfrac{1}{n_{is}}\sum_{t \in s}\log r_{it}\big)"
    r",\quad \epsilon_s = \epsilon\,\mathrm{clamp}(\bar H_s / \bar H, \tfrac12, 2)",
    ratio=Pool("sentence", mean="geometric"),
    clip=EntropyBand(epsilon=0.2),
    family="unit",
    experimental="no code of the authors; the map from entropy to the width of the clip is ours",
    claim="46.6 on average over five maths sets, GRPO 43.0, GSPO 44.4 (Qwen2.5-Math-1.5B)",
)
