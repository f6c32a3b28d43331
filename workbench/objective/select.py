"""Selection: which sequences of a step are trained on at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.batch import Batch
from workbench.objective.slot import Slot


@dataclass(frozen=True)
class Select(Slot):
    """Base of the selections."""

    def keep(self, batch: Batch) -> Tensor | None:
        """Sequences to train on, (B,) bool; None = all."""
        return None


@dataclass(frozen=True)
class KeepAll(Select):
    """Every sequence."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class ZeroVariance(Select):
    """Drop prompt groups whose rewards are all equal: they carry no group-relative signal (DAPO, 2503.14476; RAGEN).

    Their tokens leave the loss mask, so they enter no mean either. A group of one has no variance to judge and stays.
    """

    kind: ClassVar[str] = "zero_var"

    def keep(self, batch: Batch) -> Tensor:
        """Sequences of groups with unequal rewards, (B,) bool."""
        _, group, size = torch.unique(batch.group, return_inverse=True, return_counts=True)
        empty = batch.score.new_zeros(len(size))
        highest = empty.scatter_reduce(0, group, batch.score, "amax", include_self=False)
        lowest = empty.scatter_reduce(0, group, batch.score, "amin", include_self=False)
        keep: Tensor = (highest > lowest) | (size == 1)
        return keep.index_select(0, group)


SELECTS: tuple[type[Select], ...] = (KeepAll, ZeroVariance)
