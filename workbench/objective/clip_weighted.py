"""Clips that weigh the log-prob instead of the ratio: L = -sg[g] A l, l = log pi_theta, so g decides the gradient.

The weight g is bounded, gated or faded; where it is not 0 a token keeps its gradient whatever its ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from workbench.objective.clip import Clip, Ratios, Surrogate, Window
from workbench.objective.ratio import LOG_LIMIT
from workbench.tensors import Tensor, torch

EVERYTHING = (0.0, math.inf)
Against = Literal["old", "behaviour"]


def weighted(seen: Ratios, weight: Tensor, plain: Tensor, low: Tensor, high: Tensor, capped: Tensor) -> Surrogate:
    """Return the surrogate -sg[weight] A l beside -sg[plain] A l, with these flags; (B, T) each."""
    step = -seen.advantages * seen.log_prob
    return Surrogate(weight.detach() * step, plain.detach() * step, seen.ratio, low, high, capped)


def by_sign(positive: Tensor, a: float, b: float, like: Tensor) -> Tensor:
    """`a` where `positive`, else `b`, in the precision of `like`."""
    return torch.where(positive, like.new_tensor(a), like.new_tensor(b))


@dataclass(frozen=True)
class SgClip(Window):
    """-sg[clamp(w, 1 - low, 1 + high)] A l: every token keeps a gradient; CISPO, 2506.13585.

    verl clamps on both sides of 1. TRL's `epsilon_high` is the highest ratio itself, and there is no lowest one: with
    it `high` = epsilon_high - 1 and `low` = 1 (as MiniMax). No gradient is stopped, so no token is flagged: where the
    ratio is the token's own, the clamped weights are the tokens out of range.
    """

    kind: ClassVar[str] = "sg_clip"

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags (all false)."""
        ratio = seen.ratio.detach()
        never = torch.zeros_like(ratio, dtype=torch.bool)
        return weighted(seen, ratio.clamp(*self.bounds), ratio, never, never, never)


@dataclass(frozen=True)
class PpoMask(Window):
    """-M sg[w] A l with M = 0 where PPO's clip is active: MiniRL, 2512.01374.

    M = 0 for A > 0 and w > 1 + high, and for A < 0 and w < 1 - low. The weight against the sampler is the product with
    that of a rollout correction without a cap: w is pi_theta / pi_old, the correction's omega is pi_old / mu.
    """

    kind: ClassVar[str] = "ppo_mask"

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags."""
        ratio = seen.ratio.detach()
        low = (seen.advantages < 0) & (ratio < self.bounds[0])
        high = (seen.advantages > 0) & (ratio > self.bounds[1])
        return weighted(seen, torch.where(low | high, 0, ratio), ratio, low, high, torch.zeros_like(low))


@dataclass(frozen=True)
class TvMask(Clip):
    """-M sg[min(w, cap)] A l, M by probabilities instead of ratios: DPPO with total variation, 2602.04879.

    M = 0 for A > 0 and p_theta - p > high, and for A < 0 and p_theta - p < -low, p the probability of the token before.
    `against`: behaviour, p and the ratio w are against the sampler mu (`dppo_binary_tv` of sail-sg/Stable-RL);
    recompute, p is of the proximal policy, w still against the sampler (its `dppo_binary_tv_recompute`); old, both are
    against the proximal policy (verl's `dppo_tv`). A ratio of 5 at p = 0.001 moves little probability and stays, a
    ratio of 1.3 at p = 0.8 goes. The cap counts as dual clip. Against the sampler w carries staleness and mismatch, so
    do not combine it with a rollout correction.
    """

    kind: ClassVar[str] = "tv_mask"

    low: float = 0.2
    high: float = 0.2
    cap: float = 20.0
    against: Literal["behaviour", "recompute", "old"] = "behaviour"

    def __post_init__(self) -> None:
        for option in ("low", "high"):
            self._require(0 <= getattr(self, option) <= 1, option, "a number in [0, 1]")
        self._require(1 <= self.cap < math.inf, "cap", "a finite number of at least 1")

    @property
    def bounds(self) -> tuple[float, float]:
        """Everything: no ratio is out of range by itself."""
        return EVERYTHING

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags."""
        batch = seen.batch
        if self.against != "old":
            gap = torch.where(batch.mask, batch.log_prob_old - batch.log_prob_behaviour, 0)
            entering = (seen.entering + gap).clamp(-LOG_LIMIT, LOG_LIMIT)
            seen = replace(seen, ratio=seen.pool.ratio(entering, seen.units))
        ratio = seen.ratio.detach()
        before = batch.log_prob_behaviour if self.against == "behaviour" else batch.log_prob_old
        moved = seen.log_prob.detach().exp() - torch.where(batch.mask, before, 0).exp()
        low = (seen.advantages < 0) & (moved < -self.low)
        high = (seen.advantages > 0) & (moved > self.high)
        gate = torch.where(low | high, 0, 1)
        capped = (ratio > self.cap) & ~(low | high)
        return weighted(seen, gate * ratio.clamp(max=self.cap), ratio.clamp(max=self.cap), low, high, capped)


@dataclass(frozen=True)
class Gamma(Clip):
    """-sg[phi(W)] A l, phi(W) = e^lam W^k e^(-lam W), W the product ratio of the sequence: VESPO, 2602.10693.

    phi(1) = 1, its peak is at W = k / lam; k and lam by the sign of A. log W is clamped to [log 1e-8, 20]. Against the
    sampler (`behaviour`, as the paper), W carries staleness and mismatch; do not combine it with a rollout correction.
    """

    kind: ClassVar[str] = "gamma"

    k_positive: float = 2.0
    lam_positive: float = 3.0
    k_negative: float = 3.0
    lam_negative: float = 2.0
    against: Against = "behaviour"

    def __post_init__(self) -> None:
        for option in ("k_positive", "lam_positive", "k_negative", "lam_negative"):
            self._require(0 < getattr(self, option) < math.inf, option, "a finite number above 0")

    @property
    def bounds(self) -> tuple[float, float]:
        """Everything: the weight fades, nothing is cut."""
        return EVERYTHING

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses; no flags."""
        log_ratio, batch = seen.log_ratio.detach(), seen.batch
        if self.against == "behaviour":
            gap = torch.where(batch.mask, batch.log_prob_old - batch.log_prob_behaviour, 0)
            log_ratio = log_ratio + gap.clamp(-LOG_LIMIT, LOG_LIMIT)
        log_weight = log_ratio.sum(1, keepdim=True).clamp(math.log(1e-8), LOG_LIMIT)
        good = seen.advantages >= 0
        k = by_sign(good, self.k_positive, self.k_negative, log_ratio)
        lam = by_sign(good, self.lam_positive, self.lam_negative, log_ratio)
        weight = (lam + k * log_weight - lam * log_weight.exp()).exp()
        never = torch.zeros_like(good)
        return weighted(seen, weight, weight, never, never, never)


WEIGHTED: tuple[type[Clip], ...] = (SgClip, PpoMask, TvMask, Gamma)
