"""Early stops: when a step gives up the rest of its updates because the policy has moved far enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from workbench.objective.slot import Slot
from workbench.tensors import Tensor, torch


@dataclass(frozen=True)
class EarlyStop(Slot):
    """Base of the early stops. `acts`: whether it ever ends a step."""

    acts: ClassVar[bool] = True

    def skips(self, d: Tensor, mask: Tensor) -> bool:
        """Return whether the policy's step on a minibatch is left out, and with it the rest of the iteration's updates.

        Asked before the step; d = log pi_theta - log pi_old and the loss mask, (B, T) each.
        """
        return False

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """Whether to stop after an epoch, from d and mask (B, T) of its updates, each measured before its step."""
        return False


@dataclass(frozen=True)
class NoStop(EarlyStop):
    """Every epoch is trained."""

    kind: ClassVar[str] = "none"
    acts: ClassVar[bool] = False


@dataclass(frozen=True)
class MeanKL(EarlyStop):
    """After an epoch whose mean -d over policy tokens is above 1.5 `target`: the test of Spinning Up's PPO.

    Spinning Up asks it of the whole batch before each step, which is then not taken; here -d is averaged over the
    minibatches of an epoch, and the epoch that passed the limit was trained. Stable-Baselines3 has the same factor with
    k3 of one minibatch, before its step.
    """

    kind: ClassVar[str] = "mean_kl"

    target: float = 0.01

    def __post_init__(self) -> None:
        self._require(0 < self.target < math.inf, "target", "a finite number above 0")

    def reached(self, epoch: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """mean -d > 1.5 target."""
        total = sum(float(torch.where(mask, -d, 0).sum()) for d, mask in epoch)
        return total / max(1, sum(int(mask.sum()) for _, mask in epoch)) > 1.5 * self.target


@dataclass(frozen=True)
class TrajectoryKL(EarlyStop):
    """|mean over trajectories of sum_t -d| above `limit`: the step is not taken; LOOP, 2502.01600 (limit 20).

    As apple/ml-loop: the trajectories of the minibatch are averaged with their signs before the absolute value.
    """

    kind: ClassVar[str] = "trajectory_kl"

    limit: float = 20.0

    def __post_init__(self) -> None:
        self._require(0 < self.limit < math.inf, "limit", "a finite number above 0")

    def skips(self, d: Tensor, mask: Tensor) -> bool:
        """|sum -d| / trajectories > limit."""
        return abs(float(torch.where(mask, d, 0).sum())) / max(1, int(mask.any(1).sum())) > self.limit


EARLY_STOPS: tuple[type[EarlyStop], ...] = (NoStop, MeanKL, TrajectoryKL)
