"""Made-up rollouts of several turns, which the scripts of this folder write in the formats of trainers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

VOCABULARY = 1000
GROUPS = 2
ROLLOUTS = 3  # a group


@dataclass(frozen=True)
class Episode:
    """A rollout with all that a trainer may tell of it; R tokens of the response."""

    group: int
    prompt: list[int]
    response: list[int] = field(default_factory=list)  # (R,) turns of the policy with observations between
    written: list[int] = field(default_factory=list)  # (R,) 1 where the policy wrote the token
    behaviour: list[float] = field(default_factory=list)  # (R,) 0 on observations
    old: list[float] = field(default_factory=list)  # (R,) of observations too
    reference: list[float] = field(default_factory=list)  # (R,)
    turn_ends: list[int] = field(default_factory=list)  # places in the response behind each turn
    reward: float = 0.0
    advantage: float = 0.0
    is_in_loss: bool = True

    @property
    def trained(self) -> list[int]:
        """(R,) 1 where the loss has the token."""
        return [flag * self.is_in_loss for flag in self.written]

    @property
    def tokens(self) -> list[int]:
        """Prompt and response."""
        return self.prompt + self.response

    def spread(self, value: float) -> list[float]:
        """(R,) the value where the policy wrote, else 0."""
        return [value * flag for flag in self.written]


def episodes(step: int) -> list[Episode]:
    """The rollouts of a step, always the same; the fifth is left out of the loss."""
    rng = np.random.default_rng([2026, step])
    made: list[Episode] = []
    for group in range(GROUPS):
        prompt = _tokens(rng, 4, 8)
        rewards = rng.permutation([1.0, 0.0, 0.25])
        advantages = (rewards - rewards.mean()) / rewards.std()
        for reward, advantage in zip(rewards, advantages, strict=True):
            is_in_loss = len(made) != 4
            episode = Episode(
                group, prompt, reward=float(reward), advantage=_single(advantage), is_in_loss=is_in_loss
            )
            _roll_out(episode, rng)
            made.append(episode)
    return made


def _roll_out(episode: Episode, rng: np.random.Generator) -> None:
    for turn in range(rng.integers(1, 5)):
        if turn:
            observation = _tokens(rng, 1, 5)
            _append(episode, observation, rng, is_written=False)
        _append(episode, _tokens(rng, 2, 6), rng, is_written=True)
        episode.turn_ends.append(len(episode.response))


def _append(episode: Episode, tokens: list[int], rng: np.random.Generator, *, is_written: bool) -> None:
    for token in tokens:
        log_prob = -float(rng.gamma(1.0, 0.7)) - 0.001
        episode.response.append(token)
        episode.written.append(int(is_written))
        episode.behaviour.append(_single(log_prob) if is_written else 0.0)
        episode.old.append(_single(min(-1e-4, log_prob + rng.normal(0, 0.02))))
        episode.reference.append(_single(min(-1e-4, log_prob + rng.normal(0, 0.2))))


def _tokens(rng: np.random.Generator, least: int, most: int) -> list[int]:
    return [int(token) for token in rng.integers(1, VOCABULARY, size=rng.integers(least, most))]


def _single(value: float) -> float:
    """The value as single precision has it, so that a written and a read number are equal."""
    return float(np.float32(value))
