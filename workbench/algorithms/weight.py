"""Another weight than the clipped ratio."""

from sorl.algorithms.group import GRPO
from sorl.objective import Pool
from sorl.objective.advantage import MeanOnly
from sorl.objective.aggregate import SeqMeanTokenMean, SeqMeanTokenSum
from sorl.objective.clip import Bapo, Gamma, PpoMask, SgClip, SoftSigmoid, TvMask
from sorl.objective.ratio import Tis
from sorl.objective.trust import Flipped, Taper

CISPO = GRPO.but(
    name="cispo",
    title="CISPO",
    summary="CISPO: the ratio is clipped as a weight, so no token loses its gradient.",
    paper="https://arxiv.org/abs/2506.13585",
    formula=r"L_{it} = -\mathrm{sg}[\mathrm{clip}(r_{it})]\,A_{it}\,\log\pi_\theta",
    # both sides as verl; MiniMax has no lower bound and does not give the upper one
    clip=SgClip(low=0.2, high=0.2),
    claim="reaches DAPO's accuracy on AIME 2024 in half of the steps (Qwen2.5-32B)",
)

MINIRL = GRPO.but(
    name="minirl",
    title="MiniRL",
    summary=(
        "MiniRL: the raw importance weight against the sampler, masked by PPO's gate, summed over the"
        " sequence."
    ),
    paper="https://arxiv.org/abs/2512.01374",
    formula=(
        r"L = -\tfrac{1}{B}\sum_{i,t} M_{it}\,\mathrm{sg}\big[\tfrac{\pi_\theta}{\mu}\big]_{it} A_i"
        r" \log\pi_\theta"
    ),
    clip=PpoMask(low=0.2, high=0.2),
    aggregate=SeqMeanTokenSum(),
    correction=Tis(cap=None),
    experimental=(
        "its clip widths were not read, nor whether its group normalisation divides by the std, as it does "
        "here; the sum makes a step as many times larger as a response has tokens"
    ),
    claim=(
        "on-policy the weight alone is the most stable, length normalisation hurts; off-policy the mask is"
        " needed"
    ),
)

DPPO = GRPO.but(
    name="dppo",
    title="DPPO",
    summary=(
        "DPPO: a token is masked when its probability, not its ratio, has moved too far from the sampler's."
    ),
    paper="https://arxiv.org/abs/2602.04879",
    formula=r"M_{it} = 0 \text{ if } \Delta = \mathrm{sgn}(A_{it})\,(p_\theta - p_\mu)_{it} > 0.2"
    r",\quad w_{it} = (\pi_\theta / \mu)_{it}",
    # mask and ratio against the sampler: sail-sg/Stable-RL, whose cap is 10 unless set; 20 as verl
    clip=TvMask(low=0.2, high=0.2, cap=20.0, against="behaviour"),
    claim="a ratio clip over-penalises rare tokens and under-penalises common ones",
)

VESPO = GRPO.but(
    name="vespo",
    title="VESPO",
    summary=(
        "VESPO: each sequence weighs by a smooth function of its product ratio, which fades on both sides"
        " of 1."
    ),
    paper="https://arxiv.org/abs/2602.10693",
    formula=r"L_{it} = -\mathrm{sg}[e^{\lambda} W_i^{k} e^{-\lambda W_i}]\,A_i\,\log\pi_\theta"
    r",\quad W_i = \prod_t (\pi_\theta / \mu)_{it}",
    ratio=Pool("sequence", mean="product"),
    clip=Gamma(),
    claim="stable up to a staleness of 64 and fully asynchronous, where GRPO and SAPO collapse at 4",
)

SAPO = GRPO.but(
    name="sapo",
    title="SAPO (soft adaptive)",
    summary="SAPO of Qwen: a sigmoid gate in place of the clip, steeper for negative advantages.",
    paper="https://arxiv.org/abs/2511.20347",
    formula=r"L_{it} = -A_{it}\,\tfrac{4}{\tau}\,\sigma(\tau(r_{it} - 1)),\quad \tau = 1 \text{ or } 1.05",
    clip=SoftSigmoid(tau_positive=1.0, tau_negative=1.05),
    aggregate=SeqMeanTokenMean(),
    claim="more stable than GSPO and GRPO on mixture-of-experts models",
)

BAPO = GRPO.but(
    name="bapo",
    title="BAPO",
    summary=(
        "BAPO: the bounds of the clip follow the batch until positive advantages have half of the weight."
    ),
    paper="https://arxiv.org/abs/2510.18927",
    formula=(
        r"\mathrm{clip}(r, c_l, c_h) \text{ with } c_l, c_h \text{ raised until } P / (P + Q) \ge \tfrac12"
    ),
    clip=Bapo(),
    claim="keeps entropy up and negative samples from dominating under staleness",
)

TOPR = GRPO.but(
    name="topr",
    title="TOPR",
    summary=(
        "TOPR: tapered off-policy REINFORCE; good responses at full weight, bad ones by their product ratio,"
        " at most 1."
    ),
    paper="https://arxiv.org/abs/2503.14286",
    formula=r"L = -\tfrac{1}{B}\sum_i g_i A_i \log\pi_\theta(y_i)"
    r",\quad g_i = 1 \text{ if } A_i \ge 0 \text{ else } \min\big(\tfrac{\pi_\theta}{\mu}(y_i), 1\big)",
    advantage=MeanOnly(),
    ratio=Pool("sequence", mean="product"),
    clip=Taper(cap=1.0),
    aggregate=SeqMeanTokenSum(),
    experimental=(
        "the paper takes rewards of -1 and +1 less a constant baseline; here, where rewards are 0 to 1, the"
        " baseline is the mean of the group; its authors' code was not found"
    ),
    claim="bounded for any data, no KL term needed; matches 70B models with 8B ones on GSM8K and MATH",
)

ASPO = GRPO.but(
    name="aspo",
    title="ASPO",
    summary="ASPO: the ratio of good tokens is turned over, so that unlikely ones are pushed hardest.",
    paper="https://arxiv.org/abs/2510.06062",
    formula=r"L_{it} = -A_{it}\,r_{it} / \mathrm{sg}[r_{it}]^2 \text{ for } A_{it} > 0"
    r",\ \text{weights above 3 on } \log\pi_\theta",
    clip=Flipped(low=0.2, high=0.2, cap=3.0),
    experimental=(
        "its code (wizard-III/Archer2.0) clips the fifth of the tokens with the highest entropy at 0.4"
        " instead of 0.2; here all have 0.2"
    ),
    claim="less premature convergence, and better than GRPO on code and mathematics",
)
