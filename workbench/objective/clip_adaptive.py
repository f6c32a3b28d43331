"""Clips whose edge is soft, or whose bounds follow the batch.

A statistic is that of the (micro-)batch that is being trained on, as the papers' codes have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from workbench.batch import masked_mean
from workbench.objective.clip import Clip, Gate, Ratios, Surrogate, gated
from workbench.objective.clip_weighted import EVERYTHING, by_sign
from workbench.tensors import Tensor, torch


@dataclass(frozen=True)
class SoftSigmoid(Clip):
    """-A (4 / tau) sigmoid(tau (w - 1)): a gate that closes smoothly on both sides; SAPO, 2511.20347.

    tau is `tau_positive` for A > 0, else `tau_negative`. The gradient's weight 4 p (1 - p) w, p the sigmoid, is 1 at
    w = 1. Nothing is ever clipped, so no token is flagged.
    """

    kind: ClassVar[str] = "soft_sigmoid"

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        for option in ("tau_positive", "tau_negative"):
            self._require(0 < getattr(self, option) < math.inf, option, "a finite number above 0")

    @property
    def bounds(self) -> tuple[float, float]:
        """Everything."""
        return EVERYTHING

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses; no flags."""
        tau = by_sign(seen.advantages > 0, self.tau_positive, self.tau_negative, seen.ratio)
        loss = -seen.advantages * torch.sigmoid(tau * (seen.ratio - 1)) * 4 / tau
        never = torch.zeros_like(seen.ratio, dtype=torch.bool)
        return Surrogate(loss, loss, seen.ratio, never, never, never)


@dataclass(frozen=True)
class Bapo(Clip):
    """PPO's clip between bounds that rise until positive advantages have their share; BAPO, 2510.18927.

    P = sum over A > 0 of min(r, high) A, Q = sum over A < 0 of max(r, low) |A|. While P / (P + Q) < `share`: `low`
    rises by `step` up to `low_max`, then `high` up to `high_max`. Ranges as the paper; its yaml has 0.6 to 0.8 and 1.2
    to 2. A higher `low` makes Q larger as well: what it changes is that more negative tokens are clipped. `dual` as in
    PPO's clip. A token counts as out of range by the bounds at the start.
    """

    kind: ClassVar[str] = "bapo"

    low: float = 0.6
    low_max: float = 0.9
    high: float = 1.2
    high_max: float = 3.0
    step: float = 0.05
    share: float = 0.5
    dual: float | None = 3.0

    def __post_init__(self) -> None:
        self._require(0 <= self.low <= self.low_max, "low", "a number in [0, low_max]")
        self._require(self.low_max <= 1, "low_max", "a number of at most 1")
        self._require(1 <= self.high <= self.high_max, "high", "a number in [1, high_max]")
        self._require(self.high_max < math.inf, "high_max", "a finite number")
        self._require(0 < self.step < math.inf, "step", "a finite number above 0")
        self._require(0 <= self.share < 1, "share", "a number in [0, 1)")
        self._require(self.dual is None or 1 < self.dual < math.inf, "dual", "none or a finite number above 1")

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds at the start, as ratios."""
        return self.low, self.high

    def found(self, ratio: Tensor, advantages: Tensor) -> tuple[float, float]:
        """Return the bounds of this batch, from detached ratios and advantages (B, T) that are 0 off the mask."""
        good, bad = advantages > 0, advantages < 0
        up, gain = ratio[good], advantages[good]
        down, loss = ratio[bad], -advantages[bad]

        def enough(low: float, high: float) -> bool:
            p, q = (up.clamp(max=high) * gain).sum(), (down.clamp(min=low) * loss).sum()
            return bool(p >= self.share * (p + q))

        for low in _climb(self.low, self.low_max, self.step):
            if enough(low, self.high):
                return low, self.high
        for high in _climb(self.high, self.high_max, self.step):
            if enough(self.low_max, high):
                return self.low_max, high
        return self.low_max, self.high_max

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags."""
        return gated(seen, self.found(seen.ratio.detach(), seen.advantages), dual=self.dual)


def _climb(start: float, end: float, step: float) -> list[float]:
    """start, start + step, ... and `end`."""
    steps = math.ceil((end - start) / step - 1e-9)
    return [start + i * step for i in range(steps)] + [end]


@dataclass(frozen=True)
class EntropyBand(Clip):
    """PPO's clip, wider for units of high entropy and tighter for those of low; SSPO, 2511.04256, at sentence level.

    epsilon_u = epsilon clamp(H_u / H, narrowest, widest), H_u and H the mean surprisal -log pi_old of the unit and of
    the (micro-)batch: its expectation is the entropy. The paper gives no formula for the width: this one is ours.
    """

    kind: ClassVar[str] = "entropy_band"

    epsilon: float = 0.2
    narrowest: float = 0.5
    widest: float = 2.0
    gate: Gate = "token"

    def __post_init__(self) -> None:
        self._require(0 <= self.epsilon < math.inf, "epsilon", "a finite number of at least 0")
        self._require(0 <= self.narrowest <= 1, "narrowest", "a number in [0, 1]")
        self._require(1 <= self.widest < math.inf, "widest", "a finite number of at least 1")

    @property
    def bounds(self) -> tuple[float, float]:
        """1 - epsilon, 1 + epsilon: the range of a unit of average entropy."""
        return 1 - self.epsilon, 1 + self.epsilon

    def surrogate(self, seen: Ratios) -> Surrogate:
        """Token losses and flags."""
        mask = seen.batch.mask
        surprisal = torch.where(mask, -seen.batch.log_prob_old, 0)
        mean = masked_mean(surprisal, mask)
        relative = torch.where(mean > 0, seen.units.mean(surprisal) / mean.clamp(min=1e-12), 1.0)
        width = self.epsilon * relative.clamp(self.narrowest, self.widest)
        return gated(seen, (1 - width, 1 + width), self.gate)


ADAPTIVE: tuple[type[Clip], ...] = (SoftSigmoid, Bapo, EntropyBand)
