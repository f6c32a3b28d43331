"""A proximal policy apart from the sampler: the clip is around the one, the weight corrects to the other."""

from sorl.algorithms.group import GRPO
from sorl.objective.proximal import Averaged, Interpolated
from sorl.objective.ratio import Tis

DECOUPLED_PPO = GRPO.but(
    name="decoupled-ppo",
    title="Decoupled PPO",
    summary=(
        "Decoupled PPO of AReaL: the clip is around a proximal policy, a weight corrects from it to the"
        ' sampler; give it `learn.old_log_prob = "update"`.'
    ),
    paper="https://arxiv.org/abs/2505.24298",
    formula=r"L_{it} = \tfrac{\pi_{\mathrm{prox}}}{\mu}\max\big(-A u, -A\,\mathrm{clip}(u)\big)_{it}"
    r",\quad u = \pi_\theta / \pi_{\mathrm{prox}}",
    correction=Tis(cap=None),  # AReaL caps or masks the weight only where it is told to
    claim="up to 2.77 times as fast as synchronous training, at the same or better accuracy",
)

A_3PO = DECOUPLED_PPO.but(
    name="a-3po",
    title="A-3PO",
    summary=(
        "A-3PO: decoupled PPO whose proximal policy is interpolated between sampler and policy, by staleness."
    ),
    paper="https://arxiv.org/abs/2512.06547",
    formula=r"\log\pi_{\mathrm{prox}} = \tfrac1d \log\mu + \tfrac{d-1}{d}\,\mathrm{sg}[\log\pi_\theta]"
    r",\quad d = \text{staleness}",
    proximal=Interpolated(),
    claim="1.8 times as fast as decoupled PPO, which takes a pass for the proximal policy; as accurate",
)

PPO_EWMA = DECOUPLED_PPO.but(
    name="ppo-ewma",
    title="PPO-EWMA",
    summary="PPO-EWMA: decoupled PPO whose proximal policy is the moving average of the policy's weights.",
    paper="https://arxiv.org/abs/2605.12070",
    formula=r"\bar\theta_n = \frac{\sum_j \beta^{n-j} \theta_j}{\sum_j \beta^{n-j}}"
    r",\quad \pi_{\mathrm{prox}} = \pi_{\bar\theta_n},\ \beta = 0.889",
    proximal=Averaged(decay=0.889),
    experimental=(
        "average and objective are those of the first PPO-EWMA (2110.00641, openai/ppo-ewma); what the paper"
        " named revises was not read, nor its decay"
    ),
    claim="repairs the correction of agents whose old log-probs are lost, at no extra cost of the system",
)
