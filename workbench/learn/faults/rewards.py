"""Bugs of the reward; whether an answer is right is measured beside it and stays true."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from workbench.agent.episode import Episode
from workbench.learn.faults.fault import Fault


@dataclass
class RewardFormat(Fault):
    """R' = (1 - s) R + s 1[it answered, and every turn was valid]."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """The episodes with that reward."""

        def paid(e: Episode) -> float:
            formed = e.answer is not None and e.valid_turns == e.turns
            return (1 - self.strength) * e.reward + self.strength * formed

        return [replace(e, reward=paid(e)) for e in episodes]


@dataclass
class RewardNoise(Fault):
    """R' = 1 - R with probability s."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """The episodes with that reward."""
        wrong = torch.rand(len(episodes), generator=self.stream(step, episodes[0].question_id)) < self.strength
        return [replace(e, reward=1 - e.reward) if w else e for e, w in zip(episodes, wrong.tolist(), strict=True)]


@dataclass
class RewardInverted(Fault):
    """R' = -s R."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """The episodes with that reward."""
        return [replace(e, reward=-self.strength * e.reward) for e in episodes]


@dataclass
class RewardShifted(Fault):
    """R'_i = R_{i - s}, around the end of the rollout."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """The episodes with that reward."""
        rows = int(self.strength)
        return [replace(e, reward=episodes[(i - rows) % len(episodes)].reward) for i, e in enumerate(episodes)]
