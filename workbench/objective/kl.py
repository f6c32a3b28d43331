"""Terms besides the surrogate: KL to the reference in the reward or the loss, and guards of good responses.

A guard looks at d = log pi_theta - log pi_old and needs no reference: it pushes back what has become less
likely.
"""

import math
from typing import ClassVar, Literal

from sorl.batch import Batch, pool, spread
from sorl.objective.aggregate import Normaliser, good, weighted_sum
from sorl.objective.ratio import LOG_LIMIT
from sorl.objective.slot import NonNegative, Positive, Slot
from sorl.tensors import Tensor, torch

Estimator = Literal["k1", "k2", "k3", "k1+", "k3+", "abs"]
K3_LIMIT = 10.0  # nats, as verl's low_var_kl


def estimate(name: Estimator, log_ratio: Tensor, cap: float = K3_LIMIT) -> Tensor:
    """KL of each token (nats) from x = log p - log q of tokens sampled from p, clamped to +-20.

    k1 = x, k2 = x^2 / 2, k3 = min(exp(-x) - 1 + x, cap), abs = |x|. A trailing "+" keeps the value and takes
    the gradient of k2, which is unbiased. http://joschu.net/blog/kl-approx.html; verl `kl_penalty`.
    """
    x = log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT)
    k2 = 0.5 * x.square()
    values = {"k1": x, "k2": k2, "k3": ((-x).expm1() + x).clamp(max=cap), "abs": x.abs()}
    value = values[name.removesuffix("+")]
    return value.detach() + k2 - k2.detach() if name.endswith("+") else value


class KL(Slot, kind="none"):  # and base of the terms
    """No KL term."""

    needs_reference: ClassVar[bool] = False  # it needs log-probs of the frozen reference
    needs_sampler: ClassVar[bool] = False  # it needs log-probs of the sampler

    def in_reward(self, batch: Batch) -> Tensor | None:
        """Return what is taken off the reward of each token, (B, T), 0 off the mask; None = nothing."""
        return None

    def in_loss(self, batch: Batch, log_prob: Tensor, counts: Normaliser) -> Tensor | None:
        """Term added to the loss, a scalar; None = nothing."""
        return None


class RewardKL(KL, kind="reward"):
    """Token reward score_t - beta (log pi_old - log pi_ref)_t on policy tokens only; Search-R1's PPO, beta
    0.001.
    """

    needs_reference: ClassVar[bool] = True
    beta: NonNegative = 0.001

    def in_reward(self, batch: Batch) -> Tensor:
        gap = torch.where(batch.mask, batch.log_prob_old - batch.need("log_prob_ref"), 0)
        return self.beta * estimate("k1", gap)


class LossKL(KL, kind="loss"):
    """beta <k(log pi_theta - log pi_ref)>_m in the loss; GRPO (2402.03300) with k3, beta 0.001
    in Search-R1.
    """

    needs_reference: ClassVar[bool] = True
    estimator: Estimator = "k3"
    beta: NonNegative = 0.001

    def in_loss(self, batch: Batch, log_prob: Tensor, counts: Normaliser) -> Tensor:
        gap = torch.where(batch.mask, log_prob - batch.need("log_prob_ref"), 0)
        return self.beta * weighted_sum(batch.mask / counts.tokens, estimate(self.estimator, gap))


class SamplerSquare(KL, kind="sampler_square"):
    """tau <(log pi_theta - log mu)^2>_m, a pull towards the sampler; prime-rl's default loss (tau 1e-3).

    Its gradient is that of 2 tau times the KL estimate k2. The log-ratio is clamped to +-20.
    """

    needs_sampler: ClassVar[bool] = True
    tau: NonNegative = 1e-3

    def in_loss(self, batch: Batch, log_prob: Tensor, counts: Normaliser) -> Tensor:
        gap = torch.where(batch.mask, log_prob - batch.need("log_prob_behaviour"), 0)
        square = gap.clamp(-LOG_LIMIT, LOG_LIMIT).square()
        return self.tau * weighted_sum(batch.mask / counts.tokens, square)


class Lld(KL, kind="lld"):
    """weight <g max(0, log pi_old - log pi_theta)>_m over responses with mean A >= 0; LLDS, 2512.04220
    (weight 0.2).

    `gate` g, detached: response, 1 if the response as a whole has become less likely, sum m (l_old - l) > 0;
    turn, the same for each turn (the paper's action gate). The mean is over all policy tokens. 0 on the first
    update.
    """

    weight: NonNegative = 0.2
    gate: Literal["response", "turn"] = "response"

    def in_loss(self, batch: Batch, log_prob: Tensor, counts: Normaliser) -> Tensor:
        lost = torch.where(batch.mask, batch.log_prob_old - log_prob, 0)
        ids = batch.mask.long() if self.gate == "response" else batch.turn
        less_likely = spread(pool(lost.detach(), ids).total, ids) > 0
        penalised = less_likely & batch.mask & good(batch)
        return self.weight * weighted_sum(penalised / counts.tokens, lost.clamp(min=0))


class PositiveLow(KL, kind="positive_low"):
    """-weight <log r 1[r <= threshold]> over the tokens of responses with mean A >= 0; SAPO-search,
    2603.10069.

    Pushes up what good responses have lost. At threshold 1 the tokens with r = 1 are in it, so that its
    gradient on the first update is not 0. The paper's weight and threshold are not known to us.
    """

    weight: NonNegative = 0.1
    threshold: Positive = 1.0

    def in_loss(self, batch: Batch, log_prob: Tensor, counts: Normaliser) -> Tensor:
        gap = torch.where(batch.mask, log_prob - batch.log_prob_old, 0).clamp(-LOG_LIMIT, LOG_LIMIT)
        assert counts.good is not None
        kept = (gap.detach() <= math.log(self.threshold)) & batch.mask & good(batch)
        return self.weight * weighted_sum(kept / counts.good, -gap)
