"""Importance ratios: token, turn, sentence and sequence ratios are one pooling of the log-ratio over segment ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from workbench.batch import Batch, pool, spread, turn_ids
from workbench.objective.slot import Positive, Slot
from workbench.spec import InputError
from workbench.tensors import Tensor, torch

LOG_LIMIT = 20.0  # nats; e^20 is far outside any clip range and its square still fits float32


def sampler_gap(batch: Batch) -> Tensor:
    """Return log pi_old - log mu of each token, (B, T), not clamped; 0 off the mask."""
    return torch.where(batch.mask, batch.log_prob_old - batch.log_prob_behaviour, 0)


def placebo_turns(mask: Tensor, stream: torch.Generator) -> Tensor:
    """Placebo segment of each policy token, (B, T) bool -> (B, T) int64 from 1; 0 where the mask is not set.

    A control for turn ratios: whatever pooling over stretches of such lengths does, they do as well. The turn lengths
    of each trajectory are put in random order and laid over its policy tokens from a random one of them on, around the
    end to its first: the multiset of lengths is that of its turns, and no segment leaves it. A trajectory of one turn
    has one segment, the turn itself. `stream` decides everything that is random.
    """
    turn, present = turn_ids(mask), mask.sum(1, keepdim=True)
    lengths = pool(mask.double(), turn).count[:, 1:]  # (B, K)
    order = torch.rand(lengths.shape, generator=stream, dtype=torch.float64).argsort(1)
    ends = lengths.gather(1, order).cumsum(1)
    start = (torch.rand((len(mask), 1), generator=stream, dtype=torch.float64) * present).floor()
    place = (mask.cumsum(1) - 1 + start) % present.clamp(min=1)  # of the token, counted from the start of segment 1
    segment = torch.searchsorted(ends, place, right=True) + 1
    return torch.where(mask, segment, 0)


@dataclass(frozen=True)
class Units:
    """The segments whose tokens share a ratio: `ids` (B, T) int64, 0 = no unit; None = each token is its own unit."""

    ids: Tensor | None
    size: int = 0  # number of columns S of a pooled tensor

    def mean(self, x: Tensor) -> Tensor:
        """Mean of `x` over the unit of each token, (B, T) -> (B, T); 0 where there is no unit."""
        return x if self.ids is None else spread(pool(x, self.ids, self.size).mean, self.ids)

    def total(self, x: Tensor) -> Tensor:
        """Sum of `x` over the unit of each token, (B, T) -> (B, T); 0 where there is no unit."""
        return x if self.ids is None else spread(pool(x, self.ids, self.size).total, self.ids)


class Pool(Slot, kind="pool"):
    """The ratio that a token carries in the surrogate, pooled from d_t = clamp(log pi_theta - log pi_old, +-20).

    `level`: the unit u; `none` means ratio 1 with the gradient of the log-prob (REINFORCE); `placebo`, a control, is
    random stretches of policy tokens with the lengths of the trajectory's turns, redrawn for each step.
    `mean`: geometric exp(mean_u d), arithmetic mean_u exp(d), product exp(clamp(sum_u d, +-20)).
    `grad`: shared, the gradient flows through the mean (GSPO; d w_u / d l_s = w_u / n_u for the geometric mean);
    token, w_ut = sg[w_u] exp(l_t - sg[l_t]), so d w_ut / d l_t = w_u (GSPO-token, verl).
    Sources: 2511.20718 eq. 4 (turn), 2507.18071 (sequence), 2511.04256 (sentence).
    """

    word: ClassVar[str] = "level"
    level: Literal["token", "turn", "placebo", "sentence", "sequence", "none"] = "token"
    mean: Literal["geometric", "arithmetic", "product"] = "geometric"
    grad: Literal["shared", "token"] = "shared"

    def mark(self, batch: Batch, stream: torch.Generator | None) -> Batch:
        """The batch with the random segments that this level needs, from `stream`; None = the same at every call."""
        if self.level != "placebo":
            return batch
        stream = torch.Generator().manual_seed(0) if stream is None else stream
        return replace(batch, placebo=placebo_turns(batch.mask, stream))

    def units(self, batch: Batch) -> Units:
        """Return the segments of this level; InputError for sentences that the batch lacks, ValueError for placebos."""
        if self.level in ("token", "none"):
            return Units(None)
        if self.level == "sentence" and batch.sentence is None:
            raise InputError(
                "ratio.level = 'sentence' needs the sentence of every token and this world gives none; "
                "use level = token, turn or sequence"
            )
        if self.level == "sequence":
            ids = batch.mask.long()
        elif self.level == "turn":
            ids = batch.turn
        else:  # policy tokens outside any sentence form a unit
            known = batch.need("placebo") if self.level == "placebo" else batch.need("sentence") + 1
            ids = torch.where(batch.mask, known, 0)
        return Units(ids, int(ids.max()) + 1)

    def entering(self, log_ratio: Tensor, batch: Batch) -> Tensor:
        """Return what is pooled, (B, T), from the clamped log-ratios: they themselves."""
        return log_ratio

    def ratio(self, log_ratio: Tensor, units: Units) -> Tensor:
        """Ratio of each token, (B, T), from clamped log-ratios (B, T) that are 0 off the mask; 1 off the mask."""
        if self.level == "none":
            return (log_ratio - log_ratio.detach()).exp()
        if units.ids is None:
            return log_ratio.exp()
        source = log_ratio.detach() if self.grad == "token" else log_ratio
        if self.mean == "arithmetic":
            shared = torch.where(units.ids > 0, units.mean(source.exp()), 1.0)
        elif self.mean == "geometric":
            shared = units.mean(source).exp()
        else:
            shared = units.total(source).clamp(-LOG_LIMIT, LOG_LIMIT).exp()
        if self.grad == "token":
            shared = shared * (log_ratio - source).exp()
        return shared


class Guard(Pool, kind="guard"):
    """The log-ratio, normalised inside bins of tokens before it is pooled; after GRPO-Guard, 2510.22319.

    Per bin b of the (micro-)batch, mu_b and s_b the detached mean and population std of d: `center`, d - mu_b; `full`,
    s_0 (d - mu_b) / s_b, s_0 the std over all tokens, both at least `floor`. Samples of the old policy have E d < 0 (by
    the KL), so a symmetric clip is hit from below more often; centring takes that away, and with it the meaning of r as
    an unbiased importance weight. `bins`: the turn index, or eighths of the policy tokens of a sequence. A bin of one
    token is left alone. The method is for flow matching; bins in place of denoising steps are our reading of it, and
    its reweighting of gradients over denoising steps is left out.
    """

    mode: Literal["center", "full"] = "center"
    bins: Literal["turn", "position"] = "turn"
    floor: Positive = 1e-3

    def entering(self, log_ratio: Tensor, batch: Batch) -> Tensor:
        bins = self._bins(batch).reshape(1, -1)
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

    def _bins(self, batch: Batch) -> Tensor:
        if self.bins == "turn":
            return batch.turn
        rank, length = batch.mask.long().cumsum(1) - 1, batch.mask.sum(1, keepdim=True).clamp(min=1)
        return torch.where(batch.mask, 1 + rank * 8 // length, 0)
