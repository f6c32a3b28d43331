"""Schedules: which parts of the batch of a step are trained on one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from workbench.batch import Batch
from workbench.objective.slot import Slot
from workbench.tensors import Tensor, torch

LogProbs = Callable[[Batch], Tensor]  # log-probs (B, T) of a batch under the policy as it is now, without gradient


@dataclass(frozen=True)
class Schedule(Slot):
    """Base of the schedules."""

    def updates(self, turns: int) -> tuple[int, int]:
        """Return the least and the most parts that a batch of episodes of at most `turns` turns becomes."""
        return 1, 1

    def parts(self, batch: Batch, now: LogProbs) -> Iterator[Batch]:
        """Return what is trained on, all epochs and minibatches of one part before the caller asks for the next."""
        raise NotImplementedError


@dataclass(frozen=True)
class Together(Schedule):
    """The whole batch at once."""

    kind: ClassVar[str] = "together"

    def parts(self, batch: Batch, now: LogProbs) -> Iterator[Batch]:
        """Yield the batch."""
        yield batch


@dataclass(frozen=True)
class ReverseTurns(Schedule):
    """One turn after the other, the last turn first: SeeUPO, 2602.06554, as dy-liang/seeupo_v2 trains.

    M_i = 1. For h = K .. 1: pi_old becomes the policy as it is now; epochs and minibatches on turn h alone, with
    advantages sg[M_i] A_i; then, d the log-ratio of the policy after them to that pi_old,
    M_i <- clip(M_i clip(exp(mean over the turn of clamp(d, +-10)), 1 +- epsilon), 1 +- epsilon).
    So the ratio of each turn's first update is 1, whatever `learn.old_log_prob` says, and M is the move that training
    on that turn made.
    """

    kind: ClassVar[str] = "reverse_turns"

    epsilon: float = 0.2

    def __post_init__(self) -> None:
        self._require(0 <= self.epsilon < math.inf, "epsilon", "a finite number of at least 0")

    def updates(self, turns: int) -> tuple[int, int]:
        """Return one for each turn of the longest episode."""
        return 1, turns

    def parts(self, batch: Batch, now: LogProbs) -> Iterator[Batch]:
        """The sequences that have turn h, with the loss mask of that turn; turn ids stay those of the sequence."""
        if batch.advantages is None:
            raise ValueError("a schedule needs Batch.advantages; prepare() fills them")
        turn, old = batch.turn, now(batch)
        weight = torch.ones_like(batch.advantages[:, 0])  # M, (B,)
        for h in range(int(turn.max()), 0, -1):
            inside = turn == h
            advantages = torch.where(inside, weight[:, None] * batch.advantages, 0)
            part = replace(
                batch, mask=inside, turn_id=torch.where(inside, h, 0), log_prob_old=old, advantages=advantages
            )
            yield part.rows(inside.any(1).nonzero().squeeze(1))
            after = now(batch)
            moved = torch.where(inside, after - old, 0).clamp(-10, 10)
            ratio = self._clip((moved.sum(1) / inside.sum(1).clamp(min=1)).exp())  # 1 without that turn
            weight, old = self._clip(weight * ratio.to(weight.dtype)), after

    def _clip(self, x: Tensor) -> Tensor:
        return x.clamp(1 - self.epsilon, 1 + self.epsilon)


SCHEDULES: tuple[type[Schedule], ...] = (Together, ReverseTurns)
