"""Aggregation: the weight of each token in the scalar loss, sum_it weight_it L_it, from counts of the
minibatch.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

from sorl.batch import Batch, pool, spread
from sorl.objective.advantage import first_tokens
from sorl.objective.ratio import Correction
from sorl.objective.slot import Horizon, Slot
from sorl.tensors import Tensor, torch

Scope = Literal["global", "micro"]


@dataclass(frozen=True)
class Normaliser:
    """Counts that the means of a loss divide by; scalars, 1 where the count is 0.

    Counted over the whole minibatch, they make the losses of its micro-batches add up (verl). A slot with
    scope `micro` counts inside each and divides by `micro_batches` (Search-R1 and the fork of 2511.20718),
    which weighs tokens of short micro-batches more.
    """

    tokens: Tensor  # policy tokens N
    sequences: Tensor  # sequences with a policy token, B'
    turns: Tensor  # turns, sum_i K_i
    weight: Tensor | None = None  # mean weight of the rollout correction, for its `normalise`
    # policy tokens of sequences with a mean advantage >= 0; None without advantages
    good: Tensor | None = None
    micro_batches: int = 1

    @classmethod
    def of(cls, batch: Batch, micro_batches: int = 1, correction: Correction | None = None) -> Self:
        """Count `batch`; `correction` is needed only when it normalises its weights over the minibatch."""
        present = batch.mask.sum(1)
        dtype = batch.log_prob_old.dtype
        return cls(
            tokens=present.sum().clamp(min=1).to(dtype),
            sequences=(present > 0).sum().clamp(min=1).to(dtype),
            turns=turns_of(batch).sum().clamp(min=1).to(dtype),
            good=(
                None if batch.advantages is None else (batch.mask & good(batch)).sum().clamp(min=1).to(dtype)
            ),
            weight=None if correction is None else correction.mean_weight(batch),
            micro_batches=micro_batches,
        )

    def within(self, batch: Batch, scope: Scope) -> Self:
        """Return the counts to use for micro-batch `batch`: these, or its own times the number of
        micro-batches.
        """
        if scope == "global":
            return self
        own = self.of(batch)
        n = self.micro_batches
        good = None if own.good is None else own.good * n
        return replace(
            self, tokens=own.tokens * n, sequences=own.sequences * n, turns=own.turns * n, good=good
        )


def turns_of(batch: Batch) -> Tensor:
    """Number of turns of each sequence that are in the loss mask, (B,)."""
    return first_tokens(batch.turn).sum(1)


def good(batch: Batch) -> Tensor:
    """Return True for sequences whose mean advantage is at least 0, (B, 1)."""
    return torch.where(batch.mask, batch.need("advantages"), 0).sum(1, keepdim=True) >= 0


class Aggregate(Slot):
    """Base of the aggregations; `scope` says whose counts are used."""

    scope: Scope = "global"

    @property
    def micro_statistic(self) -> str:
        return "" if self.scope == "global" else "the counts that its means divide by"

    def within(self, budget: float) -> Self:
        """Return this aggregation in a run whose policy may write `budget` tokens an episode."""
        return self

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        """Weight of each token loss, (B, T); 0 off the mask."""
        raise NotImplementedError


def _per_turn_token(batch: Batch) -> Tensor:
    """m / n_k, (B, T): each turn's tokens share a weight of 1."""
    turn = batch.turn
    mask = batch.mask.to(batch.log_prob_old.dtype)
    return mask / spread(pool(mask, turn).count, turn).clamp(min=1)


class TokenMean(Aggregate, kind="token_mean"):
    """sum m L / sum m; Search-R1 and verl's default."""

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        return batch.mask / counts.tokens


class TokenSum(Aggregate, kind="token_sum"):
    """sum m L; with scope `micro`, the mean of the micro-batches' sums."""

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        sums = 1 if self.scope == "global" else counts.micro_batches
        return batch.mask.to(batch.log_prob_old.dtype) / sums


class SeqMeanTokenSum(Aggregate, kind="seq_mean_token_sum"):
    """(1 / B') sum_i sum_t m L; B' counts sequences with a policy token (verl)."""

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        return batch.mask / counts.sequences


class SeqMeanTokenSumNorm(Aggregate, kind="seq_mean_token_sum_norm"):
    """(1 / (B' H)) sum_i sum_t m L with a constant H: Dr. GRPO, 2503.20783.

    `horizon` H; none = the tokens that the policy may write in an episode, world.max_turns x
    world.max_turn_tokens, as TRL's max_completion_length. verl divides by the width to which it pads
    responses, its max_response_length.
    """

    horizon: Horizon = None

    def within(self, budget: float) -> Self:
        return replace(self, horizon=budget) if self.horizon is None else self

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        if self.horizon is None:
            raise ValueError(
                "seq_mean_token_sum_norm needs a horizon; Algorithm.within() gives it that of a run"
            )
        return batch.mask / (counts.sequences * self.horizon)


class SeqMeanTokenMean(Aggregate, kind="seq_mean_token_mean"):
    """(1 / B') sum_i (1 / |y_i|) sum_t m L (GRPO, 2402.03300)."""

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        return batch.mask / (counts.sequences * batch.mask.sum(1, keepdim=True).clamp(min=1))


class TurnMean(Aggregate, kind="turn_mean"):
    """(1 / B') sum_i (1 / K_i) sum_k L_ik, L_ik the mean of the turn's token losses."""

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        turns = turns_of(batch)[:, None].clamp(min=1)
        return _per_turn_token(batch) / (turns * counts.sequences)


class TurnMeanGlobal(Aggregate, kind="turn_mean_global"):
    """sum_ik L_ik / sum_i K_i, L_ik the mean of the turn's token losses (2512.17008)."""

    def weights(self, batch: Batch, counts: Normaliser) -> Tensor:
        return _per_turn_token(batch) / counts.turns


def weighted_sum(weights: Tensor, x: Tensor) -> Tensor:
    """sum weights x, a scalar; where the weight is 0, `x` may be NaN or Inf."""
    return torch.where(weights > 0, weights * x, 0).sum()
