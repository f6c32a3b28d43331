"""Clips: from ratios and advantages to the surrogate of each token, with what was clipped.

Losses are to be minimised. L1 = -A w is the unclipped surrogate; "active" means that the clip stopped the
gradient. Some clips weigh the log-prob instead of the ratio, L = -sg[g] A l with l = log pi_theta: where g is
not 0 a token keeps its gradient, whatever its ratio. Where log-ratios are clamped, and in which parts,
follows each method's authors: DPPO clamps l - log mu as a whole, VESPO both of its parts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from sorl.batch import Batch, masked_mean
from sorl.objective.ratio import LOG_LIMIT, Pool, sampler_gap, unit_mean
from sorl.objective.slot import AtLeastOne, DualBound, Fraction, NonNegative, Positive, Share, Slot
from sorl.tensors import Tensor, torch

Gate = Literal["token", "unit"]
Bounds = tuple[float, float]


@dataclass(frozen=True)
class Ratios:
    """What clips and stabilisers look at; every tensor is (B, T), and the advantage is 0 off the mask."""

    batch: Batch
    pool: Pool
    clip: "Clip"
    units: Tensor | None  # int64, 0 = no unit; None = each token is its own
    log_ratio: Tensor  # of the token, clamped, with gradient, 0 off the mask
    entering: Tensor  # what the ratio pools: the log-ratio, or what a guard made of it
    ratio: Tensor  # pooled, with gradient
    log_prob: Tensor  # with gradient, 0 off the mask
    advantages: Tensor
    # what the clip's `measure` adds up to over the minibatch; None where the clip compares nothing
    clip_sums: Tensor | None = None

    @property
    def sign(self) -> Tensor:
        """The advantage whose sign decides which bound acts: the token's, or by the clip's `gate` its unit's
        mean.
        """
        unit = getattr(self.clip, "gate", "token") == "unit"
        return unit_mean(self.advantages, self.units) if unit else self.advantages

    @cached_property
    def token_ratio(self) -> Tensor:
        """exp of the clamped token log-ratio, detached, (B, T)."""
        return self.log_ratio.detach().exp()

    @cached_property
    def sampler_log_ratio(self) -> Tensor:
        """log pi_theta - log mu of the token, clamped once, detached, (B, T); 0 off the mask."""
        moved = self.log_prob.detach() - self.batch.need("log_prob_behaviour")
        return torch.where(self.batch.mask, moved, 0).clamp(-LOG_LIMIT, LOG_LIMIT)

    @cached_property
    def out_of_range(self) -> Tensor:
        """True where a policy token's own ratio lies outside the clip's bounds, (B, T)."""
        low, high = self.clip.bounds
        return self.batch.mask & ((self.token_ratio < low) | (self.token_ratio > high))

    def energy(self, add: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """|C|, sum_C (r A)^2, |N|, sum_N (r A)^2 by unit, (4, *units); C out of range, N the others; `add`
        sums.
        """
        add = torch.sum if add is None else add
        squares = (self.token_ratio * self.advantages).square().double()
        sets = (self.out_of_range, self.batch.mask & ~self.out_of_range)
        sums = []
        for inside in sets:
            sums.append(add(inside.double()))
            sums.append(add(torch.where(inside, squares, 0)))
        return torch.stack(sums)


class Surrogate(NamedTuple):
    """Token losses (B, T) with and without the clip, the ratio that entered them, and the bool flags of the
    clip.
    """

    loss: Tensor
    unclipped: Tensor
    ratio: Tensor
    low: Tensor | bool = False
    high: Tensor | bool = False
    dual: Tensor | bool = False


class Clip(Slot):
    """Base of the clips: max(-A w, -A clip(w)) between `bounds`, unless a clip says otherwise."""

    @property
    def bounds(self) -> Bounds:
        """Lowest and highest ratio in range, outside of which a token counts as out of range."""
        return 0.0, math.inf

    @property
    def sums_size(self) -> int:
        """Length of what `measure` gives, where it is summed over the minibatch; 0 = it compares nothing."""
        return 0

    def measure(self, ratios: Ratios) -> Tensor | None:
        """Sums over this batch, (k,) float64, additive over micro-batches; None where it needs none."""
        return None

    def surrogate(self, ratios: Ratios) -> Surrogate:
        """Token losses and flags."""
        return gated(ratios, *self.bounds)


def stopped(sign: Tensor, x: Tensor, low: float | Tensor, high: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return where a clip stops the gradient of `x`: below `low` for a negative sign, above `high` for a
    positive.
    """
    return (sign < 0) & (x < low), (sign > 0) & (x > high)


def gated(ratios: Ratios, lowest: float | Tensor, highest: float | Tensor) -> Surrogate:
    """L = max(-A w, -A clip(w)); with dual clip c and A < 0, min(-c A, L). Bounds are scalars or one a token,
    (B, T).

    The bounds are compared with the ratio, not the two losses with each other: the same in exact arithmetic,
    and a clipped token's gradient is then exactly 0.
    """
    ratio = ratios.ratio
    sign = ratios.sign
    dual = getattr(ratios.clip, "dual", None)
    low, high = stopped(sign, ratio, lowest, highest)
    kept = torch.where(high, highest, torch.where(low, lowest, ratio))
    capped: Tensor | bool = False
    if dual is not None:
        over = (sign < 0) & (ratio > dual)
        kept = torch.where(over, dual, kept)
        capped = over
    return Surrogate(-ratios.advantages * kept, -ratios.advantages * ratio, ratio, low, high, capped)


class Window(Clip):
    """Base of the clips whose range is 1 - low to 1 + high."""

    low: Fraction = 0.2
    high: NonNegative = 0.2

    @property
    def bounds(self) -> Bounds:
        return 1 - self.low, 1 + self.high


class Ppo(Window, kind="ppo"):
    """PPO's clip: max(-A w, -A clamp(w, 1 - low, 1 + high)); 1707.06347 eq. 7.

    `dual` c > 1 bounds the loss of negative advantages by -c A (1912.09729; verl has it on with 3, Search-R1
    off). `gate`: token, the sign of the token's advantage decides (the fork of 2511.20718); unit, the sign of
    the unit's mean advantage, for all tokens that share the ratio.
    """

    dual: DualBound = None
    gate: Gate = "token"


class Recip(Clip, kind="recip"):
    """Multiplicatively symmetric clip: bounds 1 / (1 + epsilon) and 1 + epsilon; LOOP, 2502.01600 (epsilon
    0.1).
    """

    epsilon: NonNegative = 0.1
    gate: Gate = "token"

    @property
    def bounds(self) -> Bounds:
        return 1 / (1 + self.epsilon), 1 + self.epsilon


class LogClip(Clip, kind="log"):
    """Clip of the log-ratio to +-epsilon; GMPO, 2507.20673 (epsilon 0.4, `at = token`, sequence geometric
    ratio).

    `at`: token, each token's log-ratio is clipped (and flagged) before it is pooled, s = sign(A):
    s min(s d, s clamp(d, +-epsilon)); unit, the pooled ratio is clipped to [exp(-epsilon), exp(epsilon)].
    """

    epsilon: NonNegative = 0.4
    at: Literal["token", "unit"] = "token"
    gate: Gate = "token"

    @property
    def bounds(self) -> Bounds:
        return math.exp(-self.epsilon), math.exp(self.epsilon)

    def surrogate(self, ratios: Ratios) -> Surrogate:
        if self.at == "unit":
            return super().surrogate(ratios)
        low, high = stopped(ratios.sign, ratios.entering, -self.epsilon, self.epsilon)
        closed = ratios.entering.detach().clamp(-self.epsilon, self.epsilon)
        ratio = ratios.pool.ratio(torch.where(low | high, closed, ratios.entering), ratios.units)
        return Surrogate(-ratios.advantages * ratio, -ratios.advantages * ratios.ratio, ratio, low, high)


class Hard(Window, kind="hard"):
    """Log-prob loss with a detached weight, clipped or not: max(-sg[w] A l, -sg[clamp(w)] A l), l = log
    pi_theta.

    An earlier mode of the fork of 2511.20718. Since l < 0, the maximum keeps the larger weight for A > 0 and
    the smaller one for A < 0: the reverse of PPO's pessimism. No token loses its gradient, so none is
    flagged.
    """

    def surrogate(self, ratios: Ratios) -> Surrogate:
        weight = ratios.ratio.detach()
        step = -ratios.advantages * ratios.log_prob
        unclipped = weight * step
        clipped = weight.clamp(*self.bounds) * step
        return Surrogate(torch.where(clipped > unclipped, clipped, unclipped), unclipped, ratios.ratio)


class Symmetric(Clip):
    """Base of the clips whose range is 1 - epsilon to 1 + epsilon."""

    epsilon: NonNegative = 0.2

    @property
    def bounds(self) -> Bounds:
        return 1 - self.epsilon, 1 + self.epsilon


class Soft(Symmetric, kind="soft"):
    """Log-prob loss with a detached weight that fades outside the range: -sg[w d(w)] A l, l = log pi_theta.

    d = 1 inside [1 - e, 1 + e]; (w - (1 - 1.05 e)) / e below it, ((1 + 1.3 e) - w) / e above it, never under
    0; so d jumps from 1 to 0.05 and to 0.3 at the edges. An earlier mode of the fork of 2511.20718, whatever
    the sign of A. The flags say where d is 0; between the edges and there the gradient fades.
    """

    epsilon: Share = 0.2

    def surrogate(self, ratios: Ratios) -> Surrogate:
        weight = ratios.ratio.detach()
        e = self.epsilon
        low = weight < self.bounds[0]
        high = weight > self.bounds[1]
        fade = torch.where(low, (weight - (1 - 1.05 * e)) / e, ((1 + 1.3 * e) - weight) / e).clamp(min=0)
        unclipped = -weight * ratios.advantages * ratios.log_prob
        loss = torch.where(low | high, unclipped * fade, unclipped)
        acts = (ratios.advantages != 0) & (fade == 0)
        return Surrogate(loss, unclipped, ratios.ratio, low & acts, high & acts)


class NoClip(Clip, kind="none"):
    """The plain surrogate -A w; no token is ever out of range."""


# Clips that weigh the log-prob: -sg[g] A l.


def weighted(ratios: Ratios, weight: Tensor, plain: Tensor, *flags: Tensor) -> Surrogate:
    """Return the surrogate -sg[weight] A l, its unclipped form -sg[plain] A l and its flags; (B, T) each."""
    step = -ratios.advantages * ratios.log_prob
    return Surrogate(weight.detach() * step, plain.detach() * step, ratios.ratio, *flags)


def by_sign(positive: Tensor, a: float, b: float, like: Tensor) -> Tensor:
    """`a` where `positive`, else `b`, in the precision of `like`."""
    return torch.where(positive, like.new_tensor(a), like.new_tensor(b))


class SgClip(Window, kind="sg_clip"):
    """-sg[clamp(w, 1 - low, 1 + high)] A l: every token keeps a gradient; CISPO, 2506.13585.

    verl clamps on both sides of 1. TRL's `epsilon_high` is the highest ratio itself, and there is no lowest
    one: with it `high` = epsilon_high - 1 and `low` = 1 (as MiniMax). No gradient is stopped, so no token is
    flagged: where the ratio is the token's own, the clamped weights are the tokens out of range.
    """

    def surrogate(self, ratios: Ratios) -> Surrogate:
        ratio = ratios.ratio.detach()
        return weighted(ratios, ratio.clamp(*self.bounds), ratio)


class PpoMask(Window, kind="ppo_mask"):
    """-M sg[w] A l with M = 0 where PPO's clip is active: MiniRL, 2512.01374.

    M = 0 for A > 0 and w > 1 + high, and for A < 0 and w < 1 - low. The weight against the sampler is the
    product with that of a rollout correction without a cap: w is pi_theta / pi_old, the correction's omega is
    pi_old / mu, each with its log clamped to +-20.
    """

    def surrogate(self, ratios: Ratios) -> Surrogate:
        ratio = ratios.ratio.detach()
        low, high = stopped(ratios.advantages, ratio, *self.bounds)
        return weighted(ratios, torch.where(low | high, 0, ratio), ratio, low, high)


class TvMask(Clip, kind="tv_mask"):
    """-M sg[min(w, cap)] A l, M by probabilities instead of ratios: DPPO with total variation, 2602.04879.

    M = 0 for A > 0 and p_theta - p > high, and for A < 0 and p_theta - p < -low, p the probability of the
    token before. `against`: behaviour, p and the ratio w are against the sampler mu (`dppo_binary_tv` of
    sail-sg/Stable-RL); recompute, p is of the proximal policy, w still against the sampler (its
    `dppo_binary_tv_recompute`); old, both are against the proximal policy (verl's `dppo_tv`). A ratio of 5 at
    p = 0.001 moves little probability and stays, a ratio of 1.3 at p = 0.8 goes. The cap counts as dual clip.
    Against the sampler w = exp(clamp(l - log mu, +-20)) (the authors clamp above only) carries staleness and
    mismatch, so do not combine it with a rollout correction.
    """

    low: Fraction = 0.2
    high: Fraction = 0.2
    cap: AtLeastOne = 20.0
    against: Literal["behaviour", "recompute", "old"] = "behaviour"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        batch = ratios.batch
        if self.against != "old":
            entering = ratios.pool.entering(ratios.sampler_log_ratio, batch)
            ratios = replace(ratios, ratio=ratios.pool.ratio(entering, ratios.units))
        ratio = ratios.ratio.detach()
        before = batch.need("log_prob_behaviour") if self.against == "behaviour" else batch.log_prob_old
        moved = ratios.log_prob.detach().exp() - torch.where(batch.mask, before, 0).exp()
        low, high = stopped(ratios.advantages, moved, -self.low, self.high)
        closed = low | high
        plain = ratio.clamp(max=self.cap)
        return weighted(ratios, torch.where(closed, 0, plain), plain, low, high, (ratio > self.cap) & ~closed)


class Gamma(Clip, kind="gamma"):
    """-sg[phi(W)] A l, phi(W) = e^lam W^k e^(-lam W), W the product ratio of the sequence: VESPO, 2602.10693.

    phi(1) = 1, its peak is at W = k / lam; k and lam by the sign of A. log W = sum_t clamp(l - log pi_old,
    +-20) + clamp(log pi_old - log mu, +-20), as the authors and TRL fold a correction into W, clamped to [log
    1e-8, 20]. Against the sampler (`behaviour`, as the paper), W carries staleness and mismatch; do not
    combine it with a rollout correction.
    """

    k_positive: Positive = 2.0
    lam_positive: Positive = 3.0
    k_negative: Positive = 3.0
    lam_negative: Positive = 2.0
    against: Literal["old", "behaviour"] = "behaviour"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        log_ratio = ratios.log_ratio.detach()
        if self.against == "behaviour":
            log_ratio = log_ratio + sampler_gap(ratios.batch).clamp(-LOG_LIMIT, LOG_LIMIT)
        log_weight = log_ratio.sum(1, keepdim=True).clamp(math.log(1e-8), LOG_LIMIT)
        good = ratios.advantages >= 0
        k = by_sign(good, self.k_positive, self.k_negative, log_ratio)
        lam = by_sign(good, self.lam_positive, self.lam_negative, log_ratio)
        weight = (lam + k * log_weight - lam * log_weight.exp()).exp()
        return weighted(ratios, weight, weight)


# Clips whose edge is soft, or whose bounds follow the batch.


class SoftSigmoid(Clip, kind="soft_sigmoid"):
    """-A (4 / tau) sigmoid(tau (w - 1)): a gate that closes smoothly on both sides; SAPO, 2511.20347.

    tau is `tau_positive` for A > 0, else `tau_negative`. The gradient's weight 4 p (1 - p) w, p the sigmoid,
    is 1 at w = 1. Nothing is ever clipped, so no token is flagged.
    """

    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05

    def surrogate(self, ratios: Ratios) -> Surrogate:
        tau = by_sign(ratios.advantages > 0, self.tau_positive, self.tau_negative, ratios.ratio)
        loss = -ratios.advantages * torch.sigmoid(tau * (ratios.ratio - 1)) * 4 / tau
        return Surrogate(loss, loss, ratios.ratio)


class Bapo(Clip, kind="bapo"):
    """PPO's clip between bounds that rise until positive advantages have their share; BAPO, 2510.18927.

    P = sum over A > 0 of min(r, high) A, Q = sum over A < 0 of max(r, low) |A|. While P / (P + Q) < `share`:
    `low` rises by `step` up to `low_max`, then `high` up to `high_max`. Ranges as the paper; its yaml has 0.6
    to 0.8 and 1.2 to 2. A higher `low` makes Q larger as well: what it changes is that more negative tokens
    are clipped. P and Q are those of the whole minibatch, over its micro-batches and ranks; the authors' code
    adds them up over the ranks, for one micro-batch at a time. A is the advantage before a stabiliser changes
    it. `dual` as in PPO's clip. A token counts as out of range by the bounds at the start.
    """

    low: float = 0.6
    low_max: Fraction = 0.9
    high: float = 1.2
    high_max: Positive = 3.0
    step: Positive = 0.05
    share: float = 0.5
    dual: DualBound = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 <= self.low <= self.low_max, "low", "a number in [0, low_max]")
        self._require(1 <= self.high <= self.high_max, "high", "a number in [1, high_max]")
        self._require(0 <= self.share < 1, "share", "a number in [0, 1)")

    @property
    def bounds(self) -> Bounds:
        return self.low, self.high

    @cached_property
    def _lows(self) -> list[float]:
        """The lower bounds that the search may end at, rising."""
        return self._climb(self.low, self.low_max)

    @cached_property
    def _highs(self) -> list[float]:
        """The upper bounds that the search may end at, rising."""
        return self._climb(self.high, self.high_max)

    def _climb(self, start: float, end: float) -> list[float]:
        steps = math.ceil((end - start) / self.step - 1e-9)
        return [start + i * self.step for i in range(steps)] + [end]

    @property
    def sums_size(self) -> int:
        return len(self._highs) + len(self._lows)

    def measure(self, ratios: Ratios) -> Tensor:
        return self.weights(ratios.ratio.detach(), ratios.advantages)

    def weights(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """Return P at each upper bound of the search, then Q at each lower one, (k,) float64.

        The search asks for no other number of a batch, and these add up over batches. `ratio` and
        `advantages` (B, T) are detached, the advantages 0 off the mask.
        """
        gain = advantages.double().clamp(min=0)
        loss = (-advantages.double()).clamp(min=0)
        positive = [(ratio.clamp(max=high) * gain).sum() for high in self._highs]
        negative = [(ratio.clamp(min=low) * loss).sum() for low in self._lows]
        return torch.stack(positive + negative)

    def search(self, weights: Tensor) -> Bounds:
        """Return the bounds for the sums of `weights`."""
        numbers = weights.tolist()
        positive = numbers[: len(self._highs)]
        negative = numbers[len(self._highs) :]
        tried = [(low, self.high, positive[0], q) for low, q in zip(self._lows, negative, strict=True)]
        tried += [
            (self.low_max, high, p, negative[-1]) for high, p in zip(self._highs, positive, strict=True)
        ]
        for low, high, p, q in tried:
            if p >= self.share * (p + q):
                return low, high
        return self.low_max, self.high_max

    def surrogate(self, ratios: Ratios) -> Surrogate:
        sums = self.measure(ratios) if ratios.clip_sums is None else ratios.clip_sums
        return gated(ratios, *self.search(sums))


class EntropyBand(Symmetric, kind="entropy_band"):
    """PPO's clip, wider for units of high entropy and tighter for those of low; SSPO, 2511.04256, at sentence
    level.

    epsilon_u = epsilon clamp(H_u / H, narrowest, widest), H_u and H the mean surprisal -log pi_old of the
    unit and of the (micro-)batch: its expectation is the entropy. The paper gives no formula for the width:
    this one is ours. Out of range is judged by the width of a unit of average entropy.
    """

    narrowest: Fraction = 0.5
    widest: AtLeastOne = 2.0
    gate: Gate = "token"

    @property
    def micro_statistic(self) -> str:
        return "the mean surprisal that widths are measured by"

    def surrogate(self, ratios: Ratios) -> Surrogate:
        mask = ratios.batch.mask
        surprisal = torch.where(mask, -ratios.batch.log_prob_old, 0)
        mean = masked_mean(surprisal, mask)
        relative = torch.where(mean > 0, unit_mean(surprisal, ratios.units) / mean.clamp(min=1e-12), 1.0)
        width = self.epsilon * relative.clamp(self.narrowest, self.widest)
        return gated(ratios, 1 - width, 1 + width)
