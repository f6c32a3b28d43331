"""Schedules: how a minibatch becomes optimizer updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from workbench.batch import Batch
from workbench.objective.slot import Slot

LogProbs = Callable[[Batch], Tensor]  # log-probs (B, T) of a batch under the policy as it is now, without gradient


@dataclass(frozen=True)
class Schedule(Slot):
    """Base of the schedules."""

    def updates(self, turns: int) -> tuple[int, int]:
        """The least and the most updates that a minibatch of episodes of at most `turns` turns becomes."""
        return 1, 1

    def parts(self, minibatch: Batch, now: LogProbs) -> Iterator[Batch]:
        """What is trained on, one optimizer update each; the caller trains on one before it asks for the next."""
        raise NotImplementedError


@dataclass(frozen=True)
class Together(Schedule):
    """One update on the whole minibatch."""

    kind: ClassVar[str] = "together"

    def parts(self, minibatch: Batch, now: LogProbs) -> Iterator[Batch]:
        """The minibatch."""
        yield minibatch


@dataclass(frozen=True)
class ReverseTurns(Schedule):
    """One update for each turn, the last turn first: SeeUPO, 2602.06554.

    M_i = 1. For h = K .. 1: an update on turn h alone, with advantages sg[M_i] A_i; then, by the policy after it,
    M_i <- clip(M_i clip(exp(mean over the turn of clamp(d, +-10)), 1 +- epsilon), 1 +- epsilon).
    """

    kind: ClassVar[str] = "reverse_turns"

    epsilon: float = 0.2

    def __post_init__(self) -> None:
        self._require(0 <= self.epsilon < math.inf, "epsilon", "a finite number of at least 0")

    def updates(self, turns: int) -> tuple[int, int]:
        """One for each turn of the longest episode."""
        return 1, turns

    def parts(self, minibatch: Batch, now: LogProbs) -> Iterator[Batch]:
        """The sequences that have turn h, with the loss mask of that turn; turn ids stay those of the sequence."""
        if minibatch.advantages is None:
            raise ValueError("a schedule needs Batch.advantages; prepare() fills them")
        turn = minibatch.turn
        weight = torch.ones_like(minibatch.advantages[:, 0])  # M, (B,)
        for h in range(int(turn.max()), 0, -1):
            rows = (turn == h).any(1).nonzero().squeeze(1)
            part = minibatch.rows(rows)
            own = part.turn == h
            assert part.advantages is not None
            advantages = torch.where(own, weight[rows, None] * part.advantages, 0)
            part = replace(part, mask=own, turn_id=torch.where(own, h, 0), advantages=advantages)
            yield part
            moved = torch.where(own, now(part) - part.log_prob_old, 0).clamp(-10, 10)
            ratio = self._clip((moved.sum(1) / own.sum(1)).exp())
            weight[rows] = self._clip(weight[rows] * ratio.to(weight.dtype))

    def _clip(self, x: Tensor) -> Tensor:
        return x.clamp(1 - self.epsilon, 1 + self.epsilon)


SCHEDULES: tuple[type[Schedule], ...] = (Together, ReverseTurns)
