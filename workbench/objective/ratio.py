"""Importance ratios: token, turn, sentence and sequence ratios are one pooling of the log-ratio over segment
ids.

The rollout correction has detached weights for the gap between the sampler (mu) and the proximal policy
(old): omega_t = exp(clamp(log pi_old - log mu, +-20)); a weight multiplies the token loss. Routing replay
closes the part of the gap that comes from the experts which a mixture of experts chose.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from sorl.batch import Batch, masked_mean, pool, spread, turn_ids
from sorl.objective.slot import Cap, Positive, Slot
from sorl.spec import InputError
from sorl.tensors import Tensor, torch

LOG_LIMIT = 20.0  # nats; e^20 is far outside any clip range and its square still fits float32


def sampler_gap(batch: Batch) -> Tensor:
    """Return log pi_old - log mu of each token, (B, T), not clamped; 0 off the mask."""
    return torch.where(batch.mask, batch.log_prob_old - batch.need("log_prob_behaviour"), 0)


def placebo_turns(mask: Tensor, stream: torch.Generator) -> Tensor:
    """Placebo segment of each policy token, (B, T) bool -> (B, T) int64 from 1; 0 where the mask is not set.

    A control for turn ratios: whatever pooling over stretches of such lengths does, they do as well. The turn
    lengths of each trajectory are put in random order and laid over its policy tokens from a random one of
    them on, around the end to its first: the multiset of lengths is that of its turns, and no segment leaves
    it. A trajectory of one turn has one segment, the turn itself. `stream` decides everything that is random.
    """
    turn = turn_ids(mask)
    present = mask.sum(1, keepdim=True)
    lengths = pool(mask.double(), turn).count[:, 1:]  # (B, K)
    order = torch.rand(lengths.shape, generator=stream, dtype=torch.float64).argsort(1)
    ends = lengths.gather(1, order).cumsum(1)
    start = (torch.rand((len(mask), 1), generator=stream, dtype=torch.float64) * present).floor()
    # of the token, counted from the start of segment 1
    place = (mask.cumsum(1) - 1 + start) % present.clamp(min=1)
    segment = torch.searchsorted(ends, place, right=True) + 1
    return torch.where(mask, segment, 0)


def unit_mean(x: Tensor, units: Tensor | None) -> Tensor:
    """Mean of `x` over the unit of each token, (B, T) -> (B, T); 0 where there is no unit."""
    return x if units is None else spread(pool(x, units).mean, units)


class Pool(Slot, kind="pool"):
    """The ratio that a token carries in the surrogate, pooled from d_t = clamp(log pi_theta - log pi_old,
    +-20).

    `level`: the unit u; `none` means ratio 1 with the gradient of the log-prob (REINFORCE); `placebo`, a
    control, is random stretches of policy tokens with the lengths of the trajectory's turns, redrawn for each
    step. `mean`: geometric exp(mean_u d), arithmetic mean_u exp(d), product exp(clamp(sum_u d, +-20)).
    `grad`: shared, the gradient flows through the mean (GSPO; d w_u / d l_s = w_u / n_u for the geometric
    mean); token, w_ut = sg[w_u] exp(l_t - sg[l_t]), so d w_ut / d l_t = w_u (GSPO-token, verl). Sources:
    2511.20718 eq. 4 (turn), 2507.18071 (sequence), 2511.04256 (sentence).
    """

    word: ClassVar[str] = "level"
    level: Literal["token", "turn", "placebo", "sentence", "sequence", "none"] = "token"
    mean: Literal["geometric", "arithmetic", "product"] = "geometric"
    grad: Literal["shared", "token"] = "shared"

    def mark(self, batch: Batch, stream: torch.Generator | None) -> Batch:
        """The batch with the random segments that this level needs, from `stream`; None = the same at every
        call.
        """
        if self.level != "placebo":
            return batch
        stream = torch.Generator().manual_seed(0) if stream is None else stream
        return replace(batch, placebo=placebo_turns(batch.mask, stream))

    def units(self, batch: Batch) -> Tensor | None:
        """Ids (B, T) of the segments that share a ratio, 0 = none; None where each token has its own.

        InputError for sentences that the batch lacks, ValueError for placebos.
        """
        if self.level in ("token", "none"):
            return None
        if self.level == "sentence" and batch.sentence is None:
            raise InputError(
                "ratio.level = 'sentence' needs the sentence of every token and this world gives none; "
                "use level = token, turn or sequence"
            )
        if self.level == "sequence":
            return batch.mask.long()
        if self.level == "turn":
            return batch.turn
        # policy tokens outside any sentence form a unit
        known = batch.need("placebo") if self.level == "placebo" else batch.need("sentence") + 1
        return torch.where(batch.mask, known, 0)

    def entering(self, log_ratio: Tensor, batch: Batch) -> Tensor:
        """Return what is pooled, (B, T), from the clamped log-ratios: they themselves."""
        return log_ratio

    def ratio(self, log_ratio: Tensor, units: Tensor | None) -> Tensor:
        """Ratio of each token, (B, T), from clamped log-ratios (B, T) that are 0 off the mask; 1 off the
        mask.
        """
        if self.level == "none":
            return (log_ratio - log_ratio.detach()).exp()
        if units is None:
            return log_ratio.exp()
        source = log_ratio.detach() if self.grad == "token" else log_ratio
        if self.mean == "arithmetic":
            shared = torch.where(units > 0, unit_mean(source.exp(), units), 1.0)
        elif self.mean == "geometric":
            shared = unit_mean(source, units).exp()
        else:
            shared = spread(pool(source, units).total, units).clamp(-LOG_LIMIT, LOG_LIMIT).exp()
        return shared * (log_ratio - source).exp() if self.grad == "token" else shared


class Guard(Pool, kind="guard"):
    """The log-ratio, normalised inside bins of tokens before it is pooled; after GRPO-Guard, 2510.22319.

    Per bin b of the (micro-)batch, mu_b and s_b the detached mean and population std of d: `center`, d -
    mu_b; `full`, s_0 (d - mu_b) / s_b, s_0 the std over all tokens, both at least `floor`. Samples of the old
    policy have E d < 0 (by the KL), so a symmetric clip is hit from below more often; centring takes that
    away, and with it the meaning of r as an unbiased importance weight. `bins`: the turn index, or eighths of
    the policy tokens of a sequence. A bin of one token is left alone. The method is for flow matching; bins
    in place of denoising steps are our reading of it, and its reweighting of gradients over denoising steps
    is left out. There is no form over a whole minibatch: mean and std are those of each micro-batch.
    """

    mode: Literal["center", "full"] = "center"
    bins: Literal["turn", "position"] = "turn"
    floor: Positive = 1e-3

    @property
    def micro_statistic(self) -> str:
        return "mean and spread of the log-ratios in each bin"

    def entering(self, log_ratio: Tensor, batch: Batch) -> Tensor:
        bins = batch.turn
        if self.bins == "position":
            rank = batch.mask.long().cumsum(1) - 1
            length = batch.mask.sum(1, keepdim=True).clamp(min=1)
            bins = torch.where(batch.mask, 1 + rank * 8 // length, 0)
        bins = bins.reshape(1, -1)
        values = log_ratio.detach().reshape(1, -1)
        sums = pool(values, bins)
        mean = spread(torch.where(sums.count > 1, sums.mean, 0), bins)
        moved = log_ratio - mean.view_as(log_ratio)
        if self.mode == "full":
            inside = spread(pool((values - mean).square(), bins).mean.sqrt(), bins).clamp(min=self.floor)
            whole = values[bins > 0].std(unbiased=False) if bool(bins.any()) else values.new_zeros(())
            alone = spread(sums.count, bins) <= 1
            scale = torch.where(alone, 1.0, whole.clamp(min=self.floor) / inside)
            moved = moved * scale.view_as(log_ratio)
        return torch.where(batch.mask, moved, 0).clamp(-LOG_LIMIT, LOG_LIMIT)


class Correction(Slot, kind="none"):  # and base of the corrections
    """No weights: the sampler is taken for the proximal policy."""

    @property
    def normalise(self) -> bool:
        """Whether weights are divided by their mean."""
        return False

    def omega(self, batch: Batch) -> Tensor | None:
        """Weight of each token before a cap or a mask acts, (B, T), 1 off the mask; None for 1."""
        return None

    def raw(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Weight of each token before normalisation, (B, T), and where omega was capped or set to 0; None for
        1.
        """
        return None

    def weights(self, batch: Batch, mean: Tensor | None = None) -> Tensor | None:
        """Weight of each token, (B, T), or None for 1; `mean` is the minibatch's mean weight (default: of
        `batch`).
        """
        found = self.raw(batch)
        if found is None or not self.normalise:
            return None if found is None else found[0]
        mean = masked_mean(found[0], batch.mask) if mean is None else mean
        return found[0] / torch.where(mean > 0, mean, 1)  # all weights 0: they stay 0

    def mean_weight(self, batch: Batch) -> Tensor | None:
        """Mean raw weight over policy tokens, a scalar; None where nothing is divided by it."""
        found = self.raw(batch) if self.normalise else None
        return None if found is None else masked_mean(found[0], batch.mask)

    def acts(self, batch: Batch) -> Tensor | None:
        """Return where omega was capped or set to 0, (B, T) bool, False off the mask; None
        without weights.
        """
        found = self.raw(batch)
        return None if found is None else batch.mask & found[1]


def _omega(batch: Batch, level: str) -> Tensor:
    """Return omega of the token, or of its sequence: the product or the geometric mean, (B, T); 1 off the
    mask.
    """
    log_omega = sampler_gap(batch).detach().clamp(-LOG_LIMIT, LOG_LIMIT)
    if level == "token":
        return log_omega.exp()
    total = log_omega.sum(1, keepdim=True)
    if level == "seq_prod":
        total = total.clamp(-LOG_LIMIT, LOG_LIMIT)
    else:
        total = total / batch.mask.sum(1, keepdim=True).clamp(min=1)
    return total.exp().expand_as(log_omega)


class Tis(Correction, kind="tis"):
    """Truncated importance sampling: min(omega, cap) of the token or of the sequence's product.

    `cap` 2 as verl (token 1.5 to 5, sequence 2 to 10 are usual; TRL 3); none = omega as it is. `normalise`
    divides by the mean weight.
    """

    cap: Cap = 2.0
    level: Literal["token", "seq_prod"] = "token"
    normalise: bool = False

    def omega(self, batch: Batch) -> Tensor:
        return _omega(batch, self.level)

    def raw(self, batch: Batch) -> tuple[Tensor, Tensor]:
        omega = self.omega(batch)
        cap = math.inf if self.cap is None else self.cap
        return omega.clamp(max=cap), omega > cap


class Mis(Correction, kind="mis"):
    """Masked importance sampling: omega where it is at most `high`, else 0 (TRL's *_mask modes; TRL's cap is
    3).

    `low` > 0 masks from below as well, which is IcePop's rule. `level`: what is held against the bounds is
    omega of the token, the sequence's product, or (`seq_geo_filter`) its geometric mean, with the token's
    omega as the weight.
    """

    low: float = 0.0
    high: Positive = 2.0
    level: Literal["token", "seq_prod", "seq_geo_filter"] = "token"
    normalise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 <= self.low < self.high, "low", "a number of at least 0 and below high")

    def omega(self, batch: Batch) -> Tensor:
        return _omega(batch, "token" if self.level == "seq_geo_filter" else self.level)

    def raw(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tested = _omega(batch, self.level)
        weight = self.omega(batch) if self.level == "seq_geo_filter" else tested
        kept = torch.where((tested >= self.low) & (tested <= self.high), weight, 0)
        return kept, kept == 0


class IcePop(Mis, kind="icepop"):
    """IcePop: omega inside [low, high], else 0 (2510.18855; 0.5 and 5 as the INTELLECT-3
    report, 2512.16144).
    """

    low: float = 0.5
    high: Positive = 5.0


class Routing(Slot, kind="none"):  # and base of the replays
    """Every pass of a mixture of experts takes the experts that its own routers choose."""

    source: ClassVar[str] = ""  # the tensor of a batch that is replayed

    def replayed(self, batch: Batch) -> Tensor | None:
        """Return the experts (B, T, L k) that a pass over the batch takes; None: those that its routers
        choose.
        """
        return getattr(batch, self.source) if self.source else None


class TrainerRoutes(Routing, kind="r2"):
    """Routing replay R2: experts as the trainer's routers chose them under the old weights (MiniRL,
    2512.01374).

    The pass that takes the old log-probs chooses freely and is recorded; all later passes over the batch
    repeat it.
    """

    source: ClassVar[str] = "routes_old"


class SamplerRoutes(Routing, kind="r3"):
    """Routing replay R3: experts as the sampler's routers chose them, in the old pass as well
    (2510.11370).
    """

    source: ClassVar[str] = "routes_behaviour"
