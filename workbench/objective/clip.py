"""Clips: from ratios and advantages to the surrogate of each token, with what was clipped.

Losses are to be minimised. L1 = -A w is the unclipped surrogate; "active" means that the clip stopped the gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.batch import Batch
from workbench.objective.ratio import Pool, Units
from workbench.objective.slot import Slot
from workbench.tensors import Tensor, torch

Gate = Literal["token", "unit"]


@dataclass(frozen=True)
class Ratios:
    """What a clip may look at; every tensor is (B, T), and the advantage is 0 off the mask."""

    batch: Batch
    pool: Pool
    units: Units
    log_ratio: Tensor  # of the token, clamped, with gradient, 0 off the mask
    entering: Tensor  # what the ratio pools: the log-ratio, or what a guard made of it
    ratio: Tensor  # pooled, with gradient
    log_prob: Tensor  # with gradient, 0 off the mask
    advantages: Tensor

    def sign(self, gate: Gate) -> Tensor:
        """Return the advantage whose sign decides which bound acts: the token's own, or the mean of its unit."""
        return self.advantages if gate == "token" else self.units.mean(self.advantages)


@dataclass(frozen=True)
class Surrogate:
    """Token losses (B, T) with and without the clip, the ratio that entered them, and the bool flags of the clip."""

    loss: Tensor
    unclipped: Tensor
    ratio: Tensor
    low: Tensor
    high: Tensor
    dual: Tensor


@dataclass(frozen=True)
class Clip(Slot):
    """Base of the clips: `bounds` of the ratio, outside of which a token counts as out of range."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest ratio inside the range."""
        raise NotImplementedError

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags."""
        raise NotImplementedError


def gated(
    seen: Ratios, bounds: tuple[float, float] | tuple[Tensor, Tensor], gate: Gate = "token", dual: float | None = None
) -> Surrogate:
    """L = max(-A w, -A clip(w)); with dual clip c and A < 0, min(-c A, L). Bounds are scalars or one a token, (B, T).

    The bounds are compared with the ratio, not the two losses with each other: the same in exact arithmetic, and a
    clipped token's gradient is then exactly 0.
    """
    ratio, sign = seen.ratio, seen.sign(gate)
    low = (sign < 0) & (ratio < bounds[0])
    high = (sign > 0) & (ratio > bounds[1])
    kept = torch.where(high, bounds[1], torch.where(low, bounds[0], ratio))
    if dual is None:
        capped = torch.zeros_like(low)
    else:
        capped = (sign < 0) & (ratio > dual)
        kept = torch.where(capped, dual, kept)
    unclipped = -seen.advantages * ratio
    return Surrogate(-seen.advantages * kept, unclipped, ratio, low, high, capped)


@dataclass(frozen=True)
class Window(Clip):
    """Base of the clips whose range is 1 - low to 1 + high."""

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        self._require(0 <= self.low <= 1, "low", "a number in [0, 1]")
        self._require(0 <= self.high < math.inf, "high", "a finite number of at least 0")

    @property
    def bounds(self) -> tuple[float, float]:
        """1 - low, 1 + high."""
        return 1 - self.low, 1 + self.high


@dataclass(frozen=True)
class Ppo(Window):
    """PPO's clip: max(-A w, -A clamp(w, 1 - low, 1 + high)); 1707.06347 eq. 7.

    `dual` c > 1 bounds the loss of negative advantages by -c A (1912.09729; verl has it on with 3, Search-R1 off).
    `gate`: token, the sign of the token's advantage decides (the fork of 2511.20718); unit, the sign of the unit's
    mean advantage, for all tokens that share the ratio.
    """

    kind: ClassVar[str] = "ppo"

    dual: float | None = None
    gate: Gate = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.dual is None or 1 < self.dual < math.inf, "dual", "none or a finite number above 1")

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags."""
        return gated(seen, self.bounds, self.gate, self.dual)


@dataclass(frozen=True)
class Recip(Clip):
    """Multiplicatively symmetric clip: bounds 1 / (1 + epsilon) and 1 + epsilon; LOOP, 2502.01600 (epsilon 0.1)."""

    kind: ClassVar[str] = "recip"

    epsilon: float = 0.1
    gate: Gate = "token"

    def __post_init__(self) -> None:
        self._require(0 <= self.epsilon < math.inf, "epsilon", "a finite number of at least 0")

    @property
    def bounds(self) -> tuple[float, float]:
        """1 / (1 + epsilon), 1 + epsilon."""
        return 1 / (1 + self.epsilon), 1 + self.epsilon

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags."""
        return gated(seen, self.bounds, self.gate, None)


@dataclass(frozen=True)
class LogClip(Clip):
    """Clip of the log-ratio to +-epsilon; GMPO, 2507.20673 (epsilon 0.4, `at = token`, sequence geometric ratio).

    `at`: token, each token's log-ratio is clipped before it is pooled, s = sign(A): s min(s d, s clamp(d, +-epsilon));
    unit, the pooled ratio is clipped to [exp(-epsilon), exp(epsilon)].
    """

    kind: ClassVar[str] = "log"

    epsilon: float = 0.4
    at: Literal["token", "unit"] = "token"
    gate: Gate = "token"

    def __post_init__(self) -> None:
        self._require(0 <= self.epsilon < math.inf, "epsilon", "a finite number of at least 0")

    @property
    def bounds(self) -> tuple[float, float]:
        """exp(-epsilon), exp(epsilon)."""
        return math.exp(-self.epsilon), math.exp(self.epsilon)

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags; with `at = token` the flags speak of the token's log-ratio."""
        if self.at == "unit":
            return gated(seen, self.bounds, self.gate, None)
        sign = seen.sign(self.gate)
        low = (sign < 0) & (seen.entering < -self.epsilon)
        high = (sign > 0) & (seen.entering > self.epsilon)
        closed = seen.entering.detach().clamp(-self.epsilon, self.epsilon)
        ratio = seen.pool.ratio(torch.where(low | high, closed, seen.entering), seen.units)
        unclipped = -seen.advantages * seen.ratio
        return Surrogate(-seen.advantages * ratio, unclipped, ratio, low, high, torch.zeros_like(low))


@dataclass(frozen=True)
class Hard(Window):
    """Log-prob loss with a detached weight, clipped or not: max(-sg[w] A l, -sg[clamp(w)] A l), l = log pi_theta.

    An earlier mode of the fork of 2511.20718. Since l < 0, the maximum keeps the larger weight for A > 0 and the
    smaller one for A < 0: the reverse of PPO's pessimism. No token loses its gradient, so none is flagged.
    """

    kind: ClassVar[str] = "hard"

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags (all false)."""
        weight = seen.ratio.detach()
        step = -seen.advantages * seen.log_prob
        unclipped = weight * step
        clipped = weight.clamp(*self.bounds) * step
        never = torch.zeros_like(weight, dtype=torch.bool)
        loss = torch.where(clipped > unclipped, clipped, unclipped)
        return Surrogate(loss, unclipped, seen.ratio, never, never, never)


@dataclass(frozen=True)
class Soft(Clip):
    """Log-prob loss with a detached weight that fades outside the range: -sg[w d(w)] A l, l = log pi_theta.

    d = 1 inside [1 - e, 1 + e]; (w - (1 - 1.05 e)) / e below it, ((1 + 1.3 e) - w) / e above it, never under 0; so d
    jumps from 1 to 0.05 and to 0.3 at the edges. An earlier mode of the fork of 2511.20718, whatever the sign of A. The
    flags say where d is 0; between the edges and there the gradient fades.
    """

    kind: ClassVar[str] = "soft"

    epsilon: float = 0.2

    def __post_init__(self) -> None:
        self._require(0 < self.epsilon <= 1, "epsilon", "a number in (0, 1]")

    @property
    def bounds(self) -> tuple[float, float]:
        """1 - epsilon, 1 + epsilon."""
        return 1 - self.epsilon, 1 + self.epsilon

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags."""
        weight, e = seen.ratio.detach(), self.epsilon
        low, high = weight < self.bounds[0], weight > self.bounds[1]
        fade = torch.where(low, (weight - (1 - 1.05 * e)) / e, ((1 + 1.3 * e) - weight) / e).clamp(min=0)
        unclipped = -weight * seen.advantages * seen.log_prob
        loss = torch.where(low | high, unclipped * fade, unclipped)
        acts = (seen.advantages != 0) & (fade == 0)
        return Surrogate(loss, unclipped, seen.ratio, low & acts, high & acts, torch.zeros_like(low))


@dataclass(frozen=True)
class NoClip(Clip):
    """The plain surrogate -A w; no token is ever out of range."""

    kind: ClassVar[str] = "none"

    @property
    def bounds(self) -> tuple[float, float]:
        """Everything."""
        return 0.0, math.inf

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags (all false)."""
        loss = -seen.advantages * seen.ratio
        never = torch.zeros_like(seen.ratio, dtype=torch.bool)
        return Surrogate(loss, loss, seen.ratio, never, never, never)


CLIPS: tuple[type[Clip], ...] = (Ppo, Recip, LogClip, Hard, Soft, NoClip)
