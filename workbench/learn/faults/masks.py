"""Bugs of the loss mask: it lets through what the policy did not write, or is off by some tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workbench.batch import Batch, turn_ids
from workbench.learn.faults.fault import Fault


@dataclass
class _Leak(Fault):
    """Adds tokens to the loss mask in a share of the trajectories."""

    def batch(self, batch: Batch, step: int) -> Batch:
        """The batch with the wider mask."""
        rows = self.some(len(batch.tokens), step)[:, None]
        return replace(batch, mask=batch.mask | (rows & self.leaking(batch)), turn_id=None)

    def leaking(self, batch: Batch) -> Tensor:
        """The tokens that leak, (B, T) bool."""
        raise NotImplementedError


@dataclass
class ObservationLeak(_Leak):
    """What the world wrote, after any turn or after one."""

    def leaking(self, batch: Batch) -> Tensor:
        """Tokens of the response that the policy did not write."""
        observed = batch.response & ~batch.mask
        if self.settings.turn is None:
            return observed
        return observed & (turn_ids(batch.mask).cummax(1).values == self.settings.turn)


@dataclass
class PromptLeak(_Leak):
    """The prompt, but for its first token, which nothing predicts."""

    def leaking(self, batch: Batch) -> Tensor:
        """Tokens before the response."""
        before = inside(batch) & ~batch.response & ~batch.mask
        before[:, 0] = False
        return before


@dataclass
class PaddingLeak(_Leak):
    """Padding."""

    def leaking(self, batch: Batch) -> Tensor:
        """Positions beyond a row's tokens."""
        return ~inside(batch)


@dataclass
class TurnShift(Fault):
    """m'_t = m_{t - s}, for every turn or for one."""

    def batch(self, batch: Batch, step: int) -> Batch:
        """The batch with turns that are off by `strength` tokens."""
        turn, s = turn_ids(batch.mask), int(self.strength)
        moving = batch.mask if self.settings.turn is None else turn == self.settings.turn
        moved = torch.zeros_like(moving)
        moved[:, s:] = moving[:, :-s]
        return replace(batch, mask=(batch.mask & ~moving) | (moved & inside(batch)), turn_id=None)


def inside(batch: Batch) -> Tensor:
    """True where a row has a token, (B, T)."""
    return torch.arange(batch.tokens.shape[1]) < batch.length[:, None]
