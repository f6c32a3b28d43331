"""Rollout correction: detached weights for the gap between the sampler (mu) and the proximal policy (old).

omega_t = exp(clamp(log pi_old - log mu, +-20)); a weight multiplies the token loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.batch import Batch, masked_mean
from workbench.objective.ratio import LOG_LIMIT
from workbench.objective.slot import Slot
from workbench.tensors import Tensor, torch


@dataclass(frozen=True)
class Correction(Slot):
    """Base of the corrections."""

    def weights(self, batch: Batch, mean: Tensor | None = None) -> Tensor | None:
        """Weight of each token, (B, T), or None for 1; `mean` is the minibatch's mean weight (default: of `batch`)."""
        return None

    def mean_weight(self, batch: Batch) -> Tensor | None:
        """Mean raw weight over policy tokens, a scalar; None without weights."""
        return None

    def acts(self, batch: Batch) -> Tensor | None:
        """Return where omega was capped or set to 0, (B, T) bool, False off the mask; None without weights."""
        return None


@dataclass(frozen=True)
class NoCorrection(Correction):
    """No weights: the sampler is taken for the proximal policy."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class _Weighted(Correction):
    """Shared part: the log-weights, and the optional division by their mean."""

    def raw(self, batch: Batch) -> Tensor:
        """Weight of each token before normalisation, (B, T)."""
        raise NotImplementedError

    @property
    def normalised(self) -> bool:
        """Whether weights are divided by their mean."""
        raise NotImplementedError

    def weights(self, batch: Batch, mean: Tensor | None = None) -> Tensor:
        """Weight of each token, (B, T)."""
        weight = self.raw(batch)
        if not self.normalised:
            return weight
        mean = masked_mean(weight, batch.mask) if mean is None else mean
        return weight / torch.where(mean > 0, mean, 1)  # all weights 0: they stay 0

    def mean_weight(self, batch: Batch) -> Tensor | None:
        """Mean raw weight over policy tokens, a scalar."""
        return masked_mean(self.raw(batch), batch.mask) if self.normalised else None


def _log_weight(batch: Batch) -> Tensor:
    gap = torch.where(batch.mask, batch.log_prob_old - batch.log_prob_behaviour, 0)
    return gap.detach().clamp(-LOG_LIMIT, LOG_LIMIT)


def _product(log_weight: Tensor) -> Tensor:
    return log_weight.sum(1, keepdim=True).clamp(-LOG_LIMIT, LOG_LIMIT).exp().expand_as(log_weight)


@dataclass(frozen=True)
class Tis(_Weighted):
    """Truncated importance sampling: min(omega, cap) of the token or of the sequence's product.

    `cap` 2 as verl (token 1.5 to 5, sequence 2 to 10 are usual; TRL 3); none = omega as it is. `normalise` divides by
    the mean weight.
    """

    kind: ClassVar[str] = "tis"

    cap: float | None = 2.0
    level: Literal["token", "seq_prod"] = "token"
    normalise: bool = False

    def __post_init__(self) -> None:
        self._require(self.cap is None or 0 < self.cap < math.inf, "cap", "none or a finite number above 0")

    @property
    def normalised(self) -> bool:
        """Whether weights are divided by their mean."""
        return self.normalise

    def raw(self, batch: Batch) -> Tensor:
        """min(omega, cap), (B, T)."""
        weight = self._omega(batch)
        return weight if self.cap is None else weight.clamp(max=self.cap)

    def acts(self, batch: Batch) -> Tensor:
        """Return where omega is above the cap, (B, T)."""
        return batch.mask & (self._omega(batch) > (math.inf if self.cap is None else self.cap))

    def _omega(self, batch: Batch) -> Tensor:
        log_weight = _log_weight(batch)
        return log_weight.exp() if self.level == "token" else _product(log_weight)


@dataclass(frozen=True)
class _Masked(_Weighted):
    """omega where the statistic of its level lies in [low, high], else 0."""

    low: float
    high: float
    level: Literal["token", "seq_prod", "seq_geo_filter"] = "token"
    normalise: bool = False

    def __post_init__(self) -> None:
        self._require(0 <= self.low < self.high, "low", "a number of at least 0 and below high")
        self._require(self.high < math.inf, "high", "a finite number")

    @property
    def normalised(self) -> bool:
        """Whether weights are divided by their mean."""
        return self.normalise

    def raw(self, batch: Batch) -> Tensor:
        """Omega or 0, (B, T); `seq_geo_filter` tests the sequence's geometric mean and keeps the token's omega."""
        log_weight = _log_weight(batch)
        token = log_weight.exp()
        if self.level == "token":
            weight = tested = token
        elif self.level == "seq_prod":
            weight = tested = _product(log_weight)
        else:
            mean = log_weight.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)
            weight, tested = token, mean.exp().expand_as(token)
        return torch.where((tested >= self.low) & (tested <= self.high), weight, 0)

    def acts(self, batch: Batch) -> Tensor:
        """Return where omega was set to 0, (B, T)."""
        return batch.mask & (self.raw(batch) == 0)


@dataclass(frozen=True)
class Mis(_Masked):
    """Masked importance sampling: omega where it is at most `high`, else 0 (TRL's *_mask modes; TRL's cap is 3).

    `low` > 0 masks from below as well, which is IcePop's rule.
    """

    kind: ClassVar[str] = "mis"

    low: float = 0.0
    high: float = 2.0


@dataclass(frozen=True)
class IcePop(_Masked):
    """IcePop: omega inside [low, high], else 0 (2510.18855; 0.5 and 5 as the INTELLECT-3 report, 2512.16144)."""

    kind: ClassVar[str] = "icepop"

    low: float = 0.5
    high: float = 5.0


CORRECTIONS: tuple[type[Correction], ...] = (NoCorrection, Tis, Mis, IcePop)
