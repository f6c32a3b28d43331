"""Selection: which sequences of a step are trained on at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.batch import Batch
from workbench.objective.slot import Slot
from workbench.tensors import Tensor, torch


@dataclass(frozen=True)
class Select(Slot):
    """Base of the selections. `group_size`: the rollouts a prompt that the rule needs, 1 = any number."""

    group_size: ClassVar[int] = 1

    @property
    def rounds(self) -> int:
        """How often a rollout is drawn at most until it has enough groups that `wanted` accepts."""
        return 1

    def wanted(self, score: Tensor, group: Tensor) -> Tensor:
        """Sequences, (B,) bool, of the groups that need not be drawn again; asked right after sampling."""
        return torch.ones_like(score, dtype=torch.bool)

    def keep(self, batch: Batch) -> Tensor | None:
        """Sequences to train on, (B,) bool; None = all. Asked before the advantages are made."""
        return None

    def after(self, batch: Batch) -> Tensor | None:
        """Sequences to train on, (B,) bool; None = all. Asked once the advantages are there."""
        return None


@dataclass(frozen=True)
class KeepAll(Select):
    """Every sequence."""

    kind: ClassVar[str] = "none"


def unequal(score: Tensor, group: Tensor) -> Tensor:
    """True for the sequences of groups with unequal scores, (B,); a group of one has no variance to judge: True."""
    _, index, size = torch.unique(group, return_inverse=True, return_counts=True)
    empty = score.new_zeros(len(size))
    highest = empty.scatter_reduce(0, index, score, "amax", include_self=False)
    lowest = empty.scatter_reduce(0, index, score, "amin", include_self=False)
    keep: Tensor = (highest > lowest) | (size == 1)
    return keep.index_select(0, index)


@dataclass(frozen=True)
class ZeroVariance(Select):
    """Drop prompt groups whose rewards are all equal: they carry no group-relative signal (RAGEN, 2504.20073).

    Their tokens leave the loss mask, so they enter no mean either. A group of one has no variance to judge and stays.
    """

    kind: ClassVar[str] = "zero_var"

    def keep(self, batch: Batch) -> Tensor:
        """Sequences of groups with unequal rewards, (B,) bool."""
        return unequal(batch.score, batch.group)


@dataclass(frozen=True)
class DynamicSampling(ZeroVariance):
    """Draw again for every prompt group whose rewards are all equal, then drop those that still are: DAPO, 2503.14476.

    A rollout is filled up with further questions in at most `tries` rounds (verl stops after 10); what is missing then
    is made up of groups without a signal, whose tokens leave the loss mask.
    """

    kind: ClassVar[str] = "dynamic_sampling"

    tries: int = 4

    def __post_init__(self) -> None:
        self._require(self.tries >= 1, "tries", "a whole number of at least 1")

    @property
    def rounds(self) -> int:
        """`tries`."""
        return self.tries

    def wanted(self, score: Tensor, group: Tensor) -> Tensor:
        """Sequences of groups with unequal rewards, (B,) bool."""
        return unequal(score, group)


@dataclass(frozen=True)
class Uncertain(Select):
    """Keep the prompt groups whose rewards spread most: StarPO-S's uncertainty filter, RAGEN 2504.20073.

    `top_k`: the share of the groups with the largest in-group std (at least one); `top_p`: in falling order of the std
    until their sum reaches share times the sum over all groups, less 0.01 (0.9 in RAGEN's code). Groups of one have no
    spread, and without any spread everything is dropped.
    """

    kind: ClassVar[str] = "uncertain"
    group_size: ClassVar[int] = 8

    mode: Literal["top_k", "top_p"] = "top_k"
    share: float = 0.25

    def __post_init__(self) -> None:
        self._require(0 < self.share <= 1, "share", "a number in (0, 1]")

    def keep(self, batch: Batch) -> Tensor:
        """Sequences of the chosen groups, (B,) bool."""
        _, index, size = torch.unique(batch.group, return_inverse=True, return_counts=True)
        score, zeros = batch.score.double(), batch.score.new_zeros(len(size), dtype=torch.float64)
        centred = score - (zeros.scatter_add(0, index, score) / size)[index]
        spread = (zeros.scatter_add(0, index, centred.square()) / (size - 1).clamp(min=1)).sqrt()
        spread = torch.where(spread > 1e-9, spread, 0)
        order = spread.argsort(descending=True, stable=True)
        if self.mode == "top_k":
            chosen = order[: max(1, int(self.share * len(order)))]
        else:
            reached = spread[order].cumsum(0) >= self.share * spread.sum() - 0.01
            chosen = order[: int((~reached).sum()) + 1]
        kept = torch.zeros_like(spread, dtype=torch.bool)
        kept[chosen] = True
        return (kept & (spread > 0)).index_select(0, index)


@dataclass(frozen=True)
class LargeAdvantage(Select):
    """Drop sequences of which no token has |A| >= `threshold`: LOOP, 2502.01600."""

    kind: ClassVar[str] = "large_advantage"

    threshold: float = 0.01

    def __post_init__(self) -> None:
        self._require(0 <= self.threshold < math.inf, "threshold", "a finite number of at least 0")

    def after(self, batch: Batch) -> Tensor:
        """Sequences with an advantage of that size, (B,) bool."""
        if batch.advantages is None:
            raise ValueError("this selection needs Batch.advantages")
        return torch.where(batch.mask, batch.advantages, 0).abs().amax(1) >= self.threshold


SELECTS: tuple[type[Select], ...] = (KeepAll, ZeroVariance, DynamicSampling, Uncertain, LargeAdvantage)
