"""Stabilisers: the readings of 2511.20718's normalisation by the clipping bias, and the alternatives to it.

The RMS family compares update weights of two sets of policy tokens, by *token* ratios r and blind to the sign of A:
C out of the clip's range, N the others.  c = RMS_C(r A), n = RMS_N(r A), rho = c / (n + 1e-8) (0 when C is empty);
the factor is 1 / rho where rho > tau and 1 elsewhere, or min(1, tau / rho) with `smooth`. Where N is empty or weighs
nothing there is nothing to compare with and rho would be c / 1e-8, an almost zero update: n is then taken as 1, as the
fork does for sequences, so the factor stays finite and at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from workbench.batch import Batch, pool, spread
from workbench.objective.aggregate import Normaliser, Scope, weighted_sum
from workbench.objective.clip import Clip, Ratios
from workbench.objective.kl import estimate
from workbench.objective.slot import Slot
from workbench.tensors import Tensor, torch


@dataclass(frozen=True)
class Seen:
    """What a stabiliser may look at."""

    batch: Batch
    ratios: Ratios
    clip: Clip

    @cached_property
    def token_ratio(self) -> Tensor:
        """exp of the clamped token log-ratio, detached, (B, T)."""
        return self.ratios.log_ratio.detach().exp()

    @cached_property
    def out_of_range(self) -> Tensor:
        """True where a policy token's own ratio lies outside the clip's bounds, (B, T)."""
        low, high = self.clip.bounds
        return self.batch.mask & ((self.token_ratio < low) | (self.token_ratio > high))

    @cached_property
    def squares(self) -> Tensor:
        """(r A)^2, (B, T), detached."""
        return (self.token_ratio * self.ratios.advantages).square()

    @cached_property
    def energy(self) -> Tensor:
        """|C|, sum_C (r A)^2, |N|, sum_N (r A)^2 of this batch, (4,) float64."""
        return self.summed(torch.sum)

    def summed(self, add: Callable[[Tensor], Tensor]) -> Tensor:
        """The four sums of `energy` with `add` (B, T) -> units in place of the sum over everything, (4, *units)."""
        clipped = self.out_of_range
        kept = self.batch.mask & ~clipped
        squares = self.squares.double()
        return torch.stack(
            [
                add(clipped.double()),
                add(torch.where(clipped, squares, 0)),
                add(kept.double()),
                add(torch.where(kept, squares, 0)),
            ]
        )


@dataclass(frozen=True)
class Imbalance:
    """c, n and rho of each unit, and where n was replaced by 1 because N was empty or weighed nothing."""

    clipped: Tensor
    kept: Tensor
    rho: Tensor
    guarded: Tensor

    @classmethod
    def of(cls, energy: Tensor) -> Imbalance:
        """From the four sums along the first axis, (4, *units)."""
        clipped = (energy[1] / energy[0].clamp(min=1)).sqrt()
        kept = (energy[3] / energy[2].clamp(min=1)).sqrt()
        guarded = (clipped > 0) & (kept == 0)
        return cls(clipped, kept, clipped / (torch.where(guarded, 1.0, kept) + 1e-8), guarded)


@dataclass(frozen=True)
class Damping:
    """What a stabiliser does to the loss: a factor for token losses (None = 1) and a term to add (None = 0)."""

    factor: Tensor | None = None  # scalar or (B, 1)
    rho: Tensor | None = None  # what was compared with tau: scalar, (B, 1) or (B, T); given wherever `factor` is
    penalty: Tensor | None = None  # scalar
    guarded: Tensor | None = None  # number of units whose n was replaced


@dataclass(frozen=True)
class Stabiliser(Slot):
    """Base of the stabilisers.

    `needs_bias`: acts on gradients and needs that of the clipping bias. `needs_statistics`: under gradient
    accumulation, the sums of the whole minibatch have to be measured first and handed in.
    """

    needs_bias: ClassVar[bool] = False

    @property
    def needs_statistics(self) -> bool:
        """True when `measure` has to be summed over the minibatch before the first micro-batch."""
        return False

    def measure(self, seen: Seen) -> Tensor | None:
        """Sums over this batch, (k,) float64, additive over micro-batches; None when none are needed."""
        return None

    def advantages(self, seen: Seen, sums: Tensor | None) -> Tensor:
        """Return the advantages that enter the surrogate, (B, T)."""
        return seen.ratios.advantages

    def damp(self, seen: Seen, sums: Tensor | None, counts: Normaliser) -> Damping:
        """Factor and penalty, given the sums (of the minibatch or of this batch)."""
        return Damping()

    def on_gradient(self, gradients: Sequence[Tensor], bias: Sequence[Tensor]) -> tuple[list[Tensor], float | None]:
        """Change the gradients of the loss given those of `clipped_loss` (-C); also the factor on them, None = none."""
        return list(gradients), None


@dataclass(frozen=True)
class NoStabiliser(Stabiliser):
    """Nothing."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class _Scoped(Stabiliser):
    """A stabiliser with a batch statistic: of the micro-batch (the fork of 2511.20718) or of the whole minibatch.

    With scope `micro` the update depends on how the minibatch is split: `learn.micro_batch`
    and `compute.micro_batch_tokens`.
    """

    scope: Scope = "micro"

    @property
    def needs_statistics(self) -> bool:
        """With scope `global`."""
        return self.scope == "global"


@dataclass(frozen=True)
class _Rms(Stabiliser):
    """The RMS rule: threshold `tau`, and `smooth` for the continuous factor min(1, tau / rho)."""

    tau: float = 3.0
    smooth: bool = False

    def __post_init__(self) -> None:
        self._require(1 <= self.tau < math.inf, "tau", "a finite number of at least 1")

    def factor(self, rho: Tensor) -> Tensor:
        """1 / rho where rho > tau, else 1; or min(1, tau / rho)."""
        fired = rho > self.tau
        return torch.where(fired, (self.tau if self.smooth else 1.0) / rho, 1.0)


@dataclass(frozen=True)
class RmsBatch(_Scoped, _Rms):
    """One factor for the (micro-)batch: S-PPO and ST-PPO in the fork of 2511.20718 (`variance_reduction`, tau 3).

    It scales the surrogate alone: where it fires, KL and entropy terms weigh more in relation. With scope `micro` the
    factors depend on the split into micro-batches (`learn.micro_batch` and
    `compute.micro_batch_tokens`); with `global` they do not.
    """

    kind: ClassVar[str] = "rms_batch"

    def measure(self, seen: Seen) -> Tensor:
        """Return the four sums of the batch."""
        return seen.energy

    def damp(self, seen: Seen, sums: Tensor | None, counts: Normaliser) -> Damping:
        """Return a scalar factor."""
        imbalance = Imbalance.of(seen.energy if sums is None else sums)
        return Damping(self.factor(imbalance.rho), imbalance.rho, guarded=imbalance.guarded.sum())


@dataclass(frozen=True)
class RmsTurn(_Scoped, _Rms):
    """A factor f_k per turn; the loss is multiplied by their mean over policy tokens (the fork, tau 5).

    KL and entropy terms are not scaled. With scope `micro` it is the mean over the micro-batch, so it depends on the
    split as that of `rms_batch` does.
    """

    kind: ClassVar[str] = "rms_turn"

    tau: float = 5.0

    def _per_token(self, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
        """f_k and rho of each token's turn, (B, T), and the number of turns that were guarded."""
        turn = seen.batch.turn
        size = int(turn.max()) + 1
        imbalance = Imbalance.of(seen.summed(lambda x: pool(x, turn, size).total))
        factor, rho = (spread(x, turn) for x in (self.factor(imbalance.rho), imbalance.rho))
        return factor, rho, imbalance.guarded.sum()

    def measure(self, seen: Seen) -> Tensor:
        """sum m f and sum m."""
        factor, *_ = self._per_token(seen)
        return torch.stack([factor.sum(), seen.batch.mask.sum().double()])

    def damp(self, seen: Seen, sums: Tensor | None, counts: Normaliser) -> Damping:
        """Return a scalar factor, 1 for an empty batch."""
        factor, rho, guarded = self._per_token(seen)
        total, n = (factor.sum(), seen.batch.mask.sum()) if sums is None else (sums[0], sums[1])
        return Damping(torch.where(n > 0, total / n.clamp(min=1), 1.0), rho, guarded=guarded)


@dataclass(frozen=True)
class RmsSeq(_Rms):
    """A factor per sequence, for its own token losses: SO-GRPO in the fork (`grpo_variance_reduction`, tau 3).

    KL and entropy terms are not scaled. How the minibatch is split does not matter.
    """

    kind: ClassVar[str] = "rms_seq"

    def damp(self, seen: Seen, sums: Tensor | None, counts: Normaliser) -> Damping:
        """Factors (B, 1)."""
        imbalance = Imbalance.of(seen.summed(lambda x: x.sum(1)))
        return Damping(self.factor(imbalance.rho)[:, None], imbalance.rho[:, None], guarded=imbalance.guarded.sum())


@dataclass(frozen=True)
class KlClipFrac(_Scoped):
    """Penalty weight * KL(old, theta) times the share of tokens out of the clip's range, instead of a factor.

    `form`: sequence, mean_i f_i KL_i with both means over a sequence; batch, <f>_m <KL>_m. The share is detached. KL by
    `estimator` of -d, d the log-ratio clamped to +-20 (k3 = exp(d) - 1 - d is not capped; k2 = d^2 / 2 grows slower).
    `direction`: old_new is KL(old, theta); new_old is KL(theta, old) as in a note on 2511.20718, weighted by r because
    the tokens come from the old policy: r k3(d) = r d - r + 1, r k2(d) = r d^2 / 2.
    """

    kind: ClassVar[str] = "kl_clipfrac"

    weight: float = 1.0
    form: Literal["sequence", "batch"] = "sequence"
    estimator: Literal["k2", "k3"] = "k3"
    direction: Literal["old_new", "new_old"] = "old_new"

    def __post_init__(self) -> None:
        self._require(0 <= self.weight < math.inf, "weight", "a finite number of at least 0")

    @property
    def needs_statistics(self) -> bool:
        """Only the product of batch means has a batch statistic."""
        return self.scope == "global" and self.form == "batch"

    def measure(self, seen: Seen) -> Tensor:
        """Tokens out of range, and tokens."""
        return torch.stack([seen.out_of_range.sum(), seen.batch.mask.sum()]).double()

    def damp(self, seen: Seen, sums: Tensor | None, counts: Normaliser) -> Damping:
        """Return a penalty."""
        counts, mask = counts.within(seen.batch, self.scope), seen.batch.mask
        log_ratio = seen.ratios.log_ratio
        if self.direction == "old_new":
            kl = estimate(self.estimator, -log_ratio, cap=math.inf)
        else:
            kl = log_ratio.exp() * estimate(self.estimator, log_ratio, cap=math.inf)
        if self.form == "batch":
            sums = self.measure(seen) if sums is None else sums
            share = (sums[0] / sums[1].clamp(min=1)).to(kl.dtype)
            return Damping(penalty=self.weight * share * weighted_sum(mask / counts.tokens, kl))
        length = mask.sum(1).clamp(min=1).to(kl.dtype)
        share = seen.out_of_range.sum(1) / length
        mean = torch.where(mask, kl, 0).sum(1) / length
        return Damping(penalty=self.weight * (share * mean).sum() / counts.sequences)


@dataclass(frozen=True)
class AdvNorm(_Scoped):
    """When more than `threshold` of the policy tokens are actively clipped, whiten the advantages of the batch.

    A <- (A - mean) / (std + 1e-8), std unbiased; else unchanged. A third-party reading of 2511.20718.
    """

    kind: ClassVar[str] = "adv_norm"

    threshold: float = 0.2

    def __post_init__(self) -> None:
        self._require(0 <= self.threshold <= 1, "threshold", "a number in [0, 1]")

    def measure(self, seen: Seen) -> Tensor:
        """Actively clipped tokens, tokens, sum A, sum A^2."""
        mask = seen.batch.mask
        with torch.no_grad():
            surrogate = seen.clip.surrogate(seen.ratios)
        a = torch.where(mask, seen.ratios.advantages.double(), 0)
        active = (mask & (surrogate.low | surrogate.high)).sum().double()
        return torch.stack([active, mask.sum().double(), a.sum(), a.square().sum()])

    def advantages(self, seen: Seen, sums: Tensor | None) -> Tensor:
        """Return a or its z-score, (B, T)."""
        active, n, total, squares = (self.measure(seen) if sums is None else sums).unbind()
        mean = total / n.clamp(min=1)
        deviation = ((squares - n * mean.square()) / (n - 1).clamp(min=1)).clamp(min=0).sqrt()
        a = seen.ratios.advantages
        normalised = torch.where(seen.batch.mask, (a - mean) / (deviation + 1e-8), 0).to(a.dtype)
        return torch.where(active > self.threshold * n, normalised, a)


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t.double()) for t in tensors])))


@dataclass(frozen=True)
class CNorm(Stabiliser):
    """g <- g / max(|C|, guard), C the clipping bias: equations 7 and 8 of 2511.20718.

    The guard is ours: without it the rule is undefined at C = 0 and amplifies wherever |C| < 1. g is the gradient of
    the whole loss, so KL and entropy terms are scaled with the surrogate; the RMS rules leave them as they are.
    """

    kind: ClassVar[str] = "cnorm"
    needs_bias: ClassVar[bool] = True

    guard: float = 1.0

    def __post_init__(self) -> None:
        self._require(0 < self.guard < math.inf, "guard", "a finite number above 0")

    def on_gradient(self, gradients: Sequence[Tensor], bias: Sequence[Tensor]) -> tuple[list[Tensor], float | None]:
        """Scaled gradients and the factor 1 / max(|C|, guard)."""
        norm = _norm(bias)
        factor = 1.0 / (norm if math.isnan(norm) else max(norm, self.guard))
        return [g * factor for g in gradients], factor


@dataclass(frozen=True)
class Subtract(Stabiliser):
    """g <- g - alpha C for the gradients of the objective; alpha = -1 restores the unclipped gradient.

    A secondary reading of 2511.20718.
    """

    kind: ClassVar[str] = "subtract"
    needs_bias: ClassVar[bool] = True

    alpha: float = 1.0

    def __post_init__(self) -> None:
        self._require(math.isfinite(self.alpha), "alpha", "a finite number")

    def on_gradient(self, gradients: Sequence[Tensor], bias: Sequence[Tensor]) -> tuple[list[Tensor], float | None]:
        """Gradients of the loss and of `clipped_loss` carry the same sign, so the rule reads the same for them."""
        return [g - self.alpha * b for g, b in zip(gradients, bias, strict=True)], None


STABILISERS: tuple[type[Stabiliser], ...] = (
    NoStabiliser,
    RmsBatch,
    RmsTurn,
    RmsSeq,
    CNorm,
    KlClipFrac,
    AdvNorm,
    Subtract,
)
