"""Rollout correction: detached weights for the gap between the sampler (mu) and the proximal policy (old).

omega_t = exp(clamp(log pi_old - log mu, +-20)); a weight multiplies the token loss. Routing replay closes the part of
the gap that comes from the experts which a mixture of experts chose.
"""

from __future__ import annotations

import math
from typing import Literal

from workbench.batch import Batch, masked_mean
from workbench.objective.ratio import LOG_LIMIT, sampler_gap
from workbench.objective.slot import Cap, Slot
from workbench.tensors import Tensor, torch


class Correction(Slot, kind="none"):  # and base of the corrections
    """No weights: the sampler is taken for the proximal policy."""

    def weights(self, batch: Batch, mean: Tensor | None = None) -> Tensor | None:
        """Weight of each token, (B, T), or None for 1; `mean` is the minibatch's mean weight (default: of `batch`)."""
        return None

    def mean_weight(self, batch: Batch) -> Tensor | None:
        """Mean raw weight over policy tokens, a scalar; None without weights."""
        return None

    def acts(self, batch: Batch) -> Tensor | None:
        """Return where omega was capped or set to 0, (B, T) bool, False off the mask; None without weights."""
        return None


def _omega(batch: Batch, level: str) -> Tensor:
    """Return omega of the token, or of its sequence: the product or the geometric mean, (B, T); 1 off the mask."""
    log_omega = sampler_gap(batch).detach().clamp(-LOG_LIMIT, LOG_LIMIT)
    if level == "token":
        return log_omega.exp()
    total = log_omega.sum(1, keepdim=True)
    if level == "seq_prod":
        total = total.clamp(-LOG_LIMIT, LOG_LIMIT)
    else:
        total = total / batch.mask.sum(1, keepdim=True).clamp(min=1)
    return total.exp().expand_as(log_omega)


class _Weighted(Correction):
    """Base of the weights `raw`, divided by their mean with `normalise`."""

    @property
    def normalise(self) -> bool:
        """Whether weights are divided by their mean."""
        raise NotImplementedError

    def raw(self, batch: Batch) -> Tensor:
        """Weight of each token before normalisation, (B, T)."""
        raise NotImplementedError

    def weights(self, batch: Batch, mean: Tensor | None = None) -> Tensor:
        weight = self.raw(batch)
        if not self.normalise:
            return weight
        mean = masked_mean(weight, batch.mask) if mean is None else mean
        return weight / torch.where(mean > 0, mean, 1)  # all weights 0: they stay 0

    def mean_weight(self, batch: Batch) -> Tensor | None:
        return masked_mean(self.raw(batch), batch.mask) if self.normalise else None


class Tis(_Weighted, kind="tis"):
    """Truncated importance sampling: min(omega, cap) of the token or of the sequence's product.

    `cap` 2 as verl (token 1.5 to 5, sequence 2 to 10 are usual; TRL 3); none = omega as it is. `normalise` divides by
    the mean weight.
    """

    cap: Cap = 2.0
    level: Literal["token", "seq_prod"] = "token"
    normalise: bool = False

    def raw(self, batch: Batch) -> Tensor:
        return _omega(batch, self.level).clamp(max=math.inf if self.cap is None else self.cap)

    def acts(self, batch: Batch) -> Tensor:
        return batch.mask & (_omega(batch, self.level) > (math.inf if self.cap is None else self.cap))


class Mis(_Weighted, kind="mis"):
    """Masked importance sampling: omega where it is at most `high`, else 0 (TRL's *_mask modes; TRL's cap is 3).

    `low` > 0 masks from below as well, which is IcePop's rule. `level`: what is held against the bounds is omega of
    the token, the sequence's product, or (`seq_geo_filter`) its geometric mean, with the token's omega as the weight.
    """

    low: float = 0.0
    high: float = 2.0
    level: Literal["token", "seq_prod", "seq_geo_filter"] = "token"
    normalise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 <= self.low < self.high, "low", "a number of at least 0 and below high")
        self._require(self.high < math.inf, "high", "a finite number")

    def raw(self, batch: Batch) -> Tensor:
        tested = _omega(batch, self.level)
        weight = _omega(batch, "token") if self.level == "seq_geo_filter" else tested
        return torch.where((tested >= self.low) & (tested <= self.high), weight, 0)

    def acts(self, batch: Batch) -> Tensor:
        return batch.mask & (self.raw(batch) == 0)


class IcePop(Mis, kind="icepop"):
    """IcePop: omega inside [low, high], else 0 (2510.18855; 0.5 and 5 as the INTELLECT-3 report, 2512.16144)."""

    low: float = 0.5
    high: float = 5.0


class Routing(Slot, kind="none"):  # and base of the replays
    """Every pass of a mixture of experts takes the experts that its own routers choose."""

    def replayed(self, batch: Batch) -> Tensor | None:
        """Return the experts (B, T, L k) that a pass over the batch takes; None: those that its routers choose.

        Only the choice of the top k is replayed. The gates are made of the present router's logits of these experts,
        and through them the gradient reaches the router. A dense model has no routes, and nothing changes.
        """
        return None


class TrainerRoutes(Routing, kind="r2"):
    """Routing replay R2: experts as the trainer's routers chose them under the old weights (MiniRL, 2512.01374).

    The pass that takes the old log-probs chooses freely and is recorded; all later passes over the batch repeat it.
    """

    def replayed(self, batch: Batch) -> Tensor | None:
        return batch.routes_old


class SamplerRoutes(Routing, kind="r3"):
    """Routing replay R3: experts as the sampler's routers chose them, in the old pass as well (2510.11370)."""

    def replayed(self, batch: Batch) -> Tensor | None:
        return batch.routes_behaviour
