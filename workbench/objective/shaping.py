"""Shaping: the score of a trajectory that advantages are made of, from the outcome reward.

Everything else (selection, dynamic sampling, what is recorded) looks at the outcome reward itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.batch import Batch
from workbench.objective.slot import Slot
from workbench.tensors import Tensor


@dataclass(frozen=True)
class Shaping(Slot):
    """Base of the shapings."""

    def score(self, batch: Batch) -> Tensor:
        """Score of each sequence, (B,)."""
        return batch.score


@dataclass(frozen=True)
class Outcome(Shaping):
    """The outcome reward as it is."""

    kind: ClassVar[str] = "outcome"


@dataclass(frozen=True)
class Overlong(Shaping):
    """The outcome less a penalty for length: DAPO, 2503.14476.

    0 while the policy wrote at most `limit` - `margin` tokens, then linear down to -1 at `limit` and beyond. The
    paper's numbers are for long reasoning: in a world of short episodes give others, or nothing is ever penalised.
    """

    kind: ClassVar[str] = "overlong"

    limit: float = 20480
    margin: float = 4096

    def __post_init__(self) -> None:
        self._require(0 < self.limit < float("inf"), "limit", "a finite number of tokens above 0")
        self._require(0 < self.margin <= self.limit, "margin", "a number of tokens in (0, limit]")

    def score(self, batch: Batch) -> Tensor:
        """R + clamp((limit - margin - |y|) / margin, -1, 0), (B,)."""
        length = batch.mask.sum(1).to(batch.score.dtype)
        return batch.score + ((self.limit - self.margin - length) / self.margin).clamp(-1, 0)


SHAPINGS: tuple[type[Shaping], ...] = (Outcome, Overlong)
