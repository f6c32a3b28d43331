"""What is planted: each fault changes one turn of the first trajectory, and says at which positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workbench.cli.planted.healthy import VOCABULARY, Drawn

Plant = Callable[[np.random.Generator, Drawn, int, float], np.ndarray]  # -> positions in row 0
# Nats a token: below ln 1.2 no ratio leaves the usual clip range 1 +- 0.2, and the fault is counted apart as too weak.
VISIBLE = (0.25, 0.5, 1.0, 2.0, 4.0)
WEAK = (0.02, 0.05, 0.1)


@dataclass(frozen=True)
class Kind:
    """A fault: its name, the bug that it stands for, what does it."""

    name: str
    bug: str
    plant: Plant


def _off(draw: np.random.Generator, n: int, strength: float) -> np.ndarray:
    """n positive nats with mean `strength`, uneven as a wrong context makes them."""
    return draw.gamma(4.0, strength / 4.0, n)


def retokenised(draw: np.random.Generator, drawn: Drawn, turn: int, strength: float) -> np.ndarray:
    """One to three tokens come back as others, which the trainer, old and new, finds less likely than the sampler."""
    at = np.flatnonzero(drawn.turn[0] == turn)
    n = min(int(draw.integers(1, 4)), len(at))
    start = int(draw.integers(0, len(at) - n + 1))
    span = at[start : start + n]
    drawn.tokens[0, span] = 1 + (drawn.tokens[0, span] + draw.integers(1, VOCABULARY - 1, n)) % (VOCABULARY - 1)
    lost = _off(draw, n, strength)
    drawn.old[0, span] -= lost
    drawn.new[:, 0, span] -= lost
    return span


def corrupt_log_prob(draw: np.random.Generator, drawn: Drawn, turn: int, strength: float) -> np.ndarray:
    """The old log-prob of one token is too low; sampler and policy agree about it."""
    span = draw.choice(np.flatnonzero(drawn.turn[0] == turn), 1)
    drawn.old[0, span] -= strength
    return span


def lost_prefix(draw: np.random.Generator, drawn: Drawn, turn: int, strength: float) -> np.ndarray:
    """The old log-probs of the turn were taken without what came before it: all of them are too low."""
    span = np.flatnonzero(drawn.turn[0] == turn)
    drawn.old[0, span] -= _off(draw, len(span), strength)
    return span


def stale_turn(draw: np.random.Generator, drawn: Drawn, turn: int, strength: float) -> np.ndarray:
    """Weights that are gone wrote the turn and scored it: the policy finds it less likely, and only ratios show it."""
    span = np.flatnonzero(drawn.turn[0] == turn)
    drawn.new[:, 0, span] -= _off(draw, len(span), strength)
    return span


def observation_leak(draw: np.random.Generator, drawn: Drawn, turn: int, strength: float) -> np.ndarray:
    """The observation after the turn is trained on; nobody sampled it, and half of it is boilerplate."""
    span = np.flatnonzero(drawn.world[0] == turn)
    surprise = np.where(draw.random(len(span)) < 0.5, 0.02, _off(draw, len(span), 2 * strength))
    drawn.old[0, span] = -surprise
    drawn.new[:, 0, span] = -surprise
    drawn.mask[0, span] = True
    return span


KINDS: tuple[Kind, ...] = (
    Kind("retokenised", "one to three tokens of the turn come back as others", retokenised),
    Kind("corrupt_log_prob", "the old log-prob of one token is too low", corrupt_log_prob),
    Kind("lost_prefix", "the turn's old log-probs were taken without what came before it", lost_prefix),
    Kind("stale_turn", "the policy has moved away from the turn; sampler and old policy agree", stale_turn),
    Kind("observation_leak", "the observation after the turn is trained on", observation_leak),
)
