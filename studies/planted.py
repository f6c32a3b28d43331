"""Batches of a run that nothing is wrong with, and faults that are planted in one turn of their first
trajectory.

The noise of `testbed` was read off the stored batches of a healthy run of token PPO (learning rate 0.1, 4 x 4
updates, 28,000 token updates): of its tokens three quarters have 1 - p below 0.03 and one in thirty is rare;
a token's log-ratio has a median of about 0.08 (1 - p), four times that between p = 0.1 and 0.9, and tails as
a t distribution with two degrees of freedom, single tokens moving by 3 to 4 nats. `open` is a policy that is
less certain of its words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

TRAJECTORIES = 32
MOST_TURNS = 8
VOCABULARY = 500
UPDATES = ((0, 2), (1, 2))  # (epoch, minibatches)
# Shares of near-certain, undecided and rare tokens.
POLICIES = {"testbed": (0.95, 0.02, 0.03), "open": (0.75, 0.18, 0.07)}
# Scale of the sampler's rounding: the trainer's own kernels, or another engine in another precision.
SAMPLERS = {"same kernels": 0.0, "other engine": 0.02}


@dataclass
class Drawn:
    """Tokens, log-probs and masks of a batch, (B, T); `new` (U, B, T): the policy at the start of each
    update.
    """

    tokens: np.ndarray
    written: np.ndarray  # by the policy
    inside: np.ndarray  # no padding
    turn: np.ndarray  # 1..K where written
    world: np.ndarray  # the turn that an observation follows, 0 elsewhere
    old: np.ndarray
    behaviour: np.ndarray
    new: np.ndarray
    prompt: np.ndarray  # (B,) tokens
    mask: np.ndarray  # what is trained on

    @property
    def length(self) -> np.ndarray:
        """Tokens of each row, (B,)."""
        return self.inside.sum(1)


def stretches(draw: np.random.Generator, turns: int) -> list[int]:
    """Lengths of prompt, turn, observation, turn, ..., observation: the last turn is followed
    by one as well.
    """
    sizes = [int(draw.integers(5, 31))]
    for _ in range(turns):
        sizes += [int(draw.integers(3, 31)), int(draw.integers(4, 41))]
    return sizes


def surprisal(draw: np.random.Generator, n: int, shares: tuple[float, float, float]) -> np.ndarray:
    """log p of n sampled tokens: near-certain, undecided and rare ones."""
    kind = draw.choice(3, n, p=shares)
    doubt = np.where(kind == 0, np.exp(draw.uniform(np.log(5e-4), np.log(0.1), n)), draw.uniform(0.1, 0.9, n))
    return np.where(kind == 2, -draw.uniform(2.5, 8.0, n), np.log1p(-doubt))


def moved(draw: np.random.Generator, log_prob: np.ndarray, scale: float) -> np.ndarray:
    """The log-probs after an update or two: heavy-tailed noise in proportion to 1 - p, and p
    stays below 1.
    """
    doubt = -np.expm1(log_prob)
    wide = np.where((doubt > 0.1) & (doubt < 0.9), 4.0, 1.0)
    noise = scale * wide * doubt * draw.standard_t(2, log_prob.shape)
    return np.asarray(np.minimum(log_prob + noise, -1e-6))


def healthy(draw: np.random.Generator, first_turns: int, policy: str, sampler: str) -> Drawn:
    """A batch whose first trajectory has `first_turns` turns, the others 1 to MOST_TURNS."""
    turns = [first_turns, *draw.integers(1, MOST_TURNS + 1, TRAJECTORIES - 1)]
    sizes = [stretches(draw, int(k)) for k in turns]
    shape = (TRAJECTORIES, max(map(sum, sizes)))
    kind = np.zeros(shape, np.int64)  # -1 padding, 0 prompt, odd turn, even observation
    kind[:] = -1
    for row, lengths in enumerate(sizes):
        kind[row, : sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    written = kind % 2 == 1
    written &= kind > 0
    old = np.where(written, surprisal(draw, shape[0] * shape[1], POLICIES[policy]).reshape(shape), 0.0)
    doubt = -np.expm1(old)
    rounding = SAMPLERS[sampler] * (doubt + 0.02) * draw.standard_t(3, shape) + draw.normal(0, 1e-6, shape)
    count = sum(n for _, n in UPDATES)
    # The first update sees the old policy itself; the further it has gone, the more has moved.
    new = np.stack([moved(draw, old, 0.1 * np.sqrt(i / (count - 1))) for i in range(count)])
    return Drawn(
        tokens=draw.integers(1, VOCABULARY, shape) * (kind >= 0),
        written=written,
        inside=kind >= 0,
        turn=np.where(written, (kind + 1) // 2, 0),
        world=np.where((kind > 0) & ~written, kind // 2, 0),
        old=old,
        behaviour=np.where(written, np.minimum(old + rounding, 0.0), 0.0),
        new=np.where(written, new, 0.0),
        prompt=np.array([lengths[0] for lengths in sizes]),
        mask=written.copy(),
    )


Plant = Callable[[np.random.Generator, Drawn, int, float], np.ndarray]  # -> positions in row 0
# Nats a token: below ln 1.2 no ratio leaves the usual clip range 1 +- 0.2, and the fault is counted apart as
# too weak.
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
    """One to three tokens come back as others, which the trainer, old and new, finds less likely than the
    sampler.
    """
    at = np.flatnonzero(drawn.turn[0] == turn)
    n = min(int(draw.integers(1, 4)), len(at))
    start = int(draw.integers(0, len(at) - n + 1))
    span = at[start : start + n]
    drawn.tokens[0, span] = 1 + (drawn.tokens[0, span] + draw.integers(1, VOCABULARY - 1, n)) % (
        VOCABULARY - 1
    )
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
    """Weights that are gone wrote the turn and scored it: the policy finds it less likely, and only ratios
    show it.
    """
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
