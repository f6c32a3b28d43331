"""Early stops: when a step gives up the rest of its updates because the policy has moved far enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.objective.slot import Slot


@dataclass(frozen=True)
class EarlyStop(Slot):
    """Base of the early stops. `acts`: whether it ever ends a step."""

    acts: ClassVar[bool] = True

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]], complete: bool) -> bool:
        """Whether to stop, from d and mask (B, T) of this epoch's updates so far, each measured before its step."""
        return False


@dataclass(frozen=True)
class NoStop(EarlyStop):
    """Every epoch is trained."""

    kind: ClassVar[str] = "none"
    acts: ClassVar[bool] = False


@dataclass(frozen=True)
class MeanKL(EarlyStop):
    """After an epoch whose mean -d over policy tokens is above 1.5 `target`: PPO's rule (Stable-Baselines3)."""

    kind: ClassVar[str] = "mean_kl"

    target: float = 0.01

    def __post_init__(self) -> None:
        self._require(0 < self.target < math.inf, "target", "a finite number above 0")

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]], complete: bool) -> bool:
        """At the end of an epoch."""
        if not complete:
            return False
        total = sum(float(torch.where(mask, -d, 0).sum()) for d, mask in epoch)
        return total / max(1, sum(int(mask.sum()) for _, mask in epoch)) > 1.5 * self.target


@dataclass(frozen=True)
class TrajectoryKL(EarlyStop):
    """After an update whose mean over trajectories of the sum of -d is above `limit`: LOOP, 2502.01600 (limit 20).

    That the trajectories are averaged, and not the largest taken, is our reading.
    """

    kind: ClassVar[str] = "trajectory_kl"

    limit: float = 20.0

    def __post_init__(self) -> None:
        self._require(0 < self.limit < math.inf, "limit", "a finite number above 0")

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]], complete: bool) -> bool:
        """After each update."""
        d, mask = epoch[-1]
        return float(torch.where(mask, -d, 0).sum()) / max(1, int(mask.any(1).sum())) > self.limit


EARLY_STOPS: tuple[type[EarlyStop], ...] = (NoStop, MeanKL, TrajectoryKL)
