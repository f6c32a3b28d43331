"""A stored batch as tensors, reduced to the tokens that can be trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from workbench.batch import Batch, turn_ids
from workbench.store.stored import StoredBatch


@dataclass(frozen=True)
class Loaded:
    """A stored batch as the trainer had it before the selection and the advantages; (B, T) tensors of `dtype`."""

    stored: StoredBatch
    dtype: torch.dtype

    @cached_property
    def batch(self) -> Batch:
        """Every tensor but advantages and returns, which an algorithm makes of the others."""
        stored = self.stored
        mask = torch.from_numpy(stored.mask_sampled)
        return Batch(
            tokens=torch.from_numpy(stored.tokens),
            response=torch.from_numpy(stored.response),
            mask=mask,
            length=torch.from_numpy(stored.length).long(),
            group=torch.from_numpy(stored.group).long(),
            trajectory=torch.from_numpy(stored.trajectory).long(),
            score=self.number(stored.score),
            log_prob_behaviour=self.number(stored.log_prob_behaviour),
            log_prob_old=self.number(stored.log_prob_old),
            log_prob_ref=self.maybe(stored.log_prob_ref),
            values=self.maybe(stored.values),
            sentence=None if stored.sentence is None else torch.from_numpy(stored.sentence).long(),
            placebo=None if stored.placebo is None else torch.from_numpy(stored.placebo).long(),
            turn_id=turn_ids(mask),
        )

    @cached_property
    def trained(self) -> Batch:
        """The batch as it was trained on: with the stored loss mask, advantages and returns."""
        mask = torch.from_numpy(self.stored.mask)
        advantages, returns = self.number(self.stored.advantages), self.maybe(self.stored.returns)
        return replace(self.batch, mask=mask, turn_id=turn_ids(mask), advantages=advantages, returns=returns)

    def number(self, array: np.ndarray) -> Tensor:
        """The array as a tensor of the chosen precision."""
        return torch.from_numpy(array).to(self.dtype)

    def maybe(self, array: np.ndarray | None) -> Tensor | None:
        """The same of an array that may be missing."""
        return None if array is None else self.number(array)


@dataclass(frozen=True)
class Columns:
    """Where the loss mask of some rows is true: those tokens move to the left, so that nothing else is computed on.

    `rows` (b,) of the batch; `column` (b, W), the column that each token came from, W the most of a row; `inside`
    (b, W), false on the padding.
    """

    rows: Tensor
    column: Tensor
    inside: Tensor

    @classmethod
    def of(cls, mask: Tensor, rows: Tensor) -> Columns:
        """From the loss mask (b, T) of the rows `rows`."""
        count = mask.sum(1)
        inside = torch.arange(max(1, int(count.max()))) < count[:, None]
        column = torch.zeros(inside.shape, dtype=torch.long)
        column[inside] = mask.nonzero()[:, 1]
        return cls(rows, column, inside)

    def of_batch(self, x: Tensor) -> Tensor:
        """(B, T) -> (b, W), 0 on the padding."""
        return self._taken(x, self.rows)

    def of_rows(self, x: Tensor) -> Tensor:
        """(b, T) -> (b, W), 0 on the padding."""
        return self._taken(x, torch.arange(len(self.rows)))

    def _taken(self, x: Tensor, rows: Tensor) -> Tensor:
        taken = x.take(rows[:, None] * x.shape[1] + self.column)
        return taken.masked_fill_(~self.inside, 0)

    def back(self, x: Tensor, width: int) -> Tensor:
        """(b, W) -> (b, T), 0 where nothing came from."""
        return x.new_zeros(len(x), width).scatter_add_(1, self.column, torch.where(self.inside, x, 0))
