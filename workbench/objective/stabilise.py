"""Stabilisers: the readings of 2511.20718's normalisation by the clipping bias, and the alternatives to it.

The RMS family compares update weights of two sets of policy tokens, by *token* ratios r and blind to the sign
of A: C out of the clip's range, N the others.  c = RMS_C(r A), n = RMS_N(r A), rho = c / (n + 1e-8) (0 when C
is empty); the factor is 1 / rho where rho > tau and 1 elsewhere, or min(1, tau / rho) with `smooth`. Where N
is empty or weighs nothing there is nothing to compare with and rho would be c / 1e-8, an almost zero update:
n is then taken as 1, as the fork does for sequences, so the factor stays finite and at most 1.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from sorl.batch import pool, spread
from sorl.objective.aggregate import Normaliser, Scope, weighted_sum
from sorl.objective.clip import Ratios
from sorl.objective.kl import estimate
from sorl.objective.slot import AtLeastOne, Finite, Fraction, NonNegative, Positive, Slot
from sorl.tensors import Tensor, torch


class Imbalance(NamedTuple):
    """What the RMS family compares, of each unit."""

    clipped_rms: Tensor  # c
    unclipped_rms: Tensor  # n
    rho: Tensor


def imbalance(energy: Tensor) -> Imbalance:
    """Return c, n and rho of each unit, from its four sums along the first axis, (4, *units)."""
    c = (energy[1] / energy[0].clamp(min=1)).sqrt()
    n = (energy[3] / energy[2].clamp(min=1)).sqrt()
    return Imbalance(c, n, c / (torch.where((c > 0) & (n == 0), 1.0, n) + 1e-8))


class Damping(NamedTuple):
    """What a stabiliser does to the loss: a factor for token losses (None = 1) and a term to
    add (None = 0).
    """

    factor: Tensor | None = None  # scalar or (B, 1)
    # what was compared with tau: scalar, (B, 1) or (B, T); given wherever `factor` is
    rho: Tensor | None = None
    penalty: Tensor | None = None  # scalar


class Stabiliser(Slot, kind="none"):  # and base of the stabilisers
    """Nothing."""

    needs_bias: ClassVar[bool] = False  # acts on gradients and needs that of the clipping bias
    needs_clip: ClassVar[bool] = False  # `measure` asks the clip which tokens it acts on

    @property
    def needs_statistics(self) -> bool:
        """Whether `measure` is summed over the minibatch before the first micro-batch and handed in."""
        return False

    def measure(self, ratios: Ratios) -> Tensor | None:
        """Sums over this batch, (k,) float64, additive over micro-batches; None when none are needed."""
        return None

    def advantages(self, ratios: Ratios, sums: Tensor | None) -> Tensor:
        """Return the advantages that enter the surrogate, (B, T)."""
        return ratios.advantages

    def damp(self, ratios: Ratios, sums: Tensor | None, counts: Normaliser) -> Damping:
        """Factor and penalty, given the sums (of the minibatch or of this batch)."""
        return Damping()

    def on_gradient(
        self, gradients: Sequence[Tensor], bias: Sequence[Tensor]
    ) -> tuple[list[Tensor], float | None]:
        """Change the gradients of the loss given those of what the clip took (-C); also their factor, None =
        none.
        """
        return list(gradients), None


class _Scoped(Stabiliser):
    """A batch statistic of the micro-batch (the fork of 2511.20718), or with scope `global` of the whole
    minibatch.
    """

    statistic: ClassVar[str] = "the factor of the stabiliser"
    scope: Scope = "micro"

    @property
    def micro_statistic(self) -> str:
        return "" if self.scope == "global" else self.statistic

    @property
    def needs_statistics(self) -> bool:
        return self.scope == "global"


class _Rms(Stabiliser):
    """The RMS rule: threshold `tau`, and `smooth` for the continuous factor min(1, tau / rho)."""

    tau: AtLeastOne = 3.0
    smooth: bool = False

    def judged(self, energy: Tensor) -> tuple[Tensor, Tensor]:
        """Factor and rho of each unit, from its sums, (4, *units)."""
        rho = imbalance(energy).rho
        return torch.where(rho > self.tau, (self.tau if self.smooth else 1.0) / rho, 1.0), rho


class RmsBatch(_Scoped, _Rms, kind="rms_batch"):
    """One factor for the (micro-)batch: S-PPO and ST-PPO in the fork of 2511.20718 (`variance_reduction`, tau
    3).

    It scales the surrogate alone: where it fires, KL and entropy terms weigh more in relation. With scope
    `micro` the factors depend on the split into micro-batches (`learn.micro_batch`,
    `compute.micro_batch_tokens`).
    """

    def measure(self, ratios: Ratios) -> Tensor:
        return ratios.energy()

    def damp(self, ratios: Ratios, sums: Tensor | None, counts: Normaliser) -> Damping:
        return Damping(*self.judged(ratios.energy() if sums is None else sums))


class RmsTurn(_Scoped, _Rms, kind="rms_turn"):
    """A factor f_k per turn; the loss is multiplied by their mean over policy tokens (the fork, tau 5).

    KL and entropy terms are not scaled. With scope `micro` it is the mean over the micro-batch, so it depends
    on the split as that of `rms_batch` does.
    """

    tau: AtLeastOne = 5.0

    def _of_tokens(self, ratios: Ratios) -> list[Tensor]:
        """f_k and rho of each token's turn, (B, T)."""
        turn = ratios.batch.turn
        return [spread(x, turn) for x in self.judged(ratios.energy(lambda x: pool(x, turn).total))]

    def measure(self, ratios: Ratios) -> Tensor:
        return torch.stack([self._of_tokens(ratios)[0].sum(), ratios.batch.mask.sum().double()])

    def damp(self, ratios: Ratios, sums: Tensor | None, counts: Normaliser) -> Damping:
        total, n = self.measure(ratios) if sums is None else sums
        return Damping(torch.where(n > 0, total / n.clamp(min=1), 1.0), self._of_tokens(ratios)[1])


class RmsSeq(_Rms, kind="rms_seq"):
    """A factor per sequence, for its own token losses: SO-GRPO in the fork (`grpo_variance_reduction`, tau
    3).

    KL and entropy terms are not scaled. How the minibatch is split does not matter.
    """

    def damp(self, ratios: Ratios, sums: Tensor | None, counts: Normaliser) -> Damping:
        return Damping(*self.judged(ratios.energy(lambda x: x.sum(1, keepdim=True))))


class KlClipFrac(_Scoped, kind="kl_clipfrac"):
    """Penalty weight * KL(old, theta) times the share of tokens out of the clip's range, instead of a factor.

    `form`: sequence, mean_i f_i KL_i with both means over a sequence; batch, <f>_m <KL>_m. The share is
    detached. KL by `estimator` of -d, d the log-ratio clamped to +-20 (k3 = exp(d) - 1 - d is not capped; k2
    = d^2 / 2 grows slower). `direction`: old_new is KL(old, theta); new_old is KL(theta, old) as in a note on
    2511.20718, weighted by r because the tokens come from the old policy: r k3(d) = r d - r + 1, r k2(d) = r
    d^2 / 2.
    """

    statistic: ClassVar[str] = "the means of the penalty"
    weight: NonNegative = 1.0
    form: Literal["sequence", "batch"] = "sequence"
    estimator: Literal["k2", "k3"] = "k3"
    direction: Literal["old_new", "new_old"] = "old_new"

    @property
    def needs_statistics(self) -> bool:
        return self.scope == "global" and self.form == "batch"

    def measure(self, ratios: Ratios) -> Tensor:
        return torch.stack([ratios.out_of_range.sum(), ratios.batch.mask.sum()]).double()

    def damp(self, ratios: Ratios, sums: Tensor | None, counts: Normaliser) -> Damping:
        counts = counts.within(ratios.batch, self.scope)
        mask = ratios.batch.mask
        log_ratio = ratios.log_ratio
        if self.direction == "old_new":
            kl = estimate(self.estimator, -log_ratio, cap=math.inf)
        else:
            kl = log_ratio.exp() * estimate(self.estimator, log_ratio, cap=math.inf)
        if self.form == "batch":
            sums = self.measure(ratios) if sums is None else sums
            share = (sums[0] / sums[1].clamp(min=1)).to(kl.dtype)
            return Damping(penalty=self.weight * share * weighted_sum(mask / counts.tokens, kl))
        length = mask.sum(1).clamp(min=1).to(kl.dtype)
        share = ratios.out_of_range.sum(1) / length
        mean = torch.where(mask, kl, 0).sum(1) / length
        return Damping(penalty=self.weight * (share * mean).sum() / counts.sequences)


class AdvNorm(_Scoped, kind="adv_norm"):
    """When more than `threshold` of the policy tokens are actively clipped, whiten the advantages of the
    batch.

    A <- (A - mean) / (std + 1e-8), std unbiased; else unchanged. A third-party reading of 2511.20718.
    """

    needs_clip: ClassVar[bool] = True
    statistic: ClassVar[str] = "the share of clipped tokens, and mean and std of the advantages"
    threshold: Fraction = 0.2

    def measure(self, ratios: Ratios) -> Tensor:
        mask = ratios.batch.mask
        with torch.no_grad():
            surrogate = ratios.clip.surrogate(ratios)
        a = torch.where(mask, ratios.advantages.double(), 0)
        active = (mask & (surrogate.low | surrogate.high)).sum().double()
        return torch.stack([active, mask.sum().double(), a.sum(), a.square().sum()])

    def advantages(self, ratios: Ratios, sums: Tensor | None) -> Tensor:
        active, n, total, squares = (self.measure(ratios) if sums is None else sums).unbind()
        mean = total / n.clamp(min=1)
        deviation = ((squares - n * mean.square()) / (n - 1).clamp(min=1)).clamp(min=0).sqrt()
        a = ratios.advantages
        normalised = torch.where(ratios.batch.mask, (a - mean) / (deviation + 1e-8), 0).to(a.dtype)
        return torch.where(active > self.threshold * n, normalised, a)


class CNorm(Stabiliser, kind="cnorm"):
    """g <- g / max(|C|, guard), C the clipping bias: equations 7 and 8 of 2511.20718.

    The guard is ours: without it the rule is undefined at C = 0 and amplifies wherever |C| < 1. g is the
    gradient of the whole loss, so KL and entropy terms are scaled with the surrogate; the RMS rules leave
    them as they are.
    """

    needs_bias: ClassVar[bool] = True
    guard: Positive = 1.0

    def on_gradient(
        self, gradients: Sequence[Tensor], bias: Sequence[Tensor]
    ) -> tuple[list[Tensor], float | None]:
        norm = float(
            torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(b.double()) for b in bias]))
        )
        factor = 1.0 / (norm if math.isnan(norm) else max(norm, self.guard))
        return [g * factor for g in gradients], factor


class Subtract(Stabiliser, kind="subtract"):
    """g <- g - alpha C for the gradients of the objective; alpha = -1 restores the unclipped gradient.

    A secondary reading of 2511.20718. Gradients of the loss and of what the clip took carry the same sign, so
    the rule reads the same for them.
    """

    needs_bias: ClassVar[bool] = True
    alpha: Finite = 1.0

    def on_gradient(
        self, gradients: Sequence[Tensor], bias: Sequence[Tensor]
    ) -> tuple[list[Tensor], float | None]:
        return [g - self.alpha * b for g, b in zip(gradients, bias, strict=True)], None
