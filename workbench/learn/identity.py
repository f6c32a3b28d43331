"""Token identity: the batch that is trained on against the stretches of tokens that the sampler kept as they were made.

The stretches of an episode are its prompt, its first turn, the observation after it, the second turn and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from workbench.agent.episode import Episode
from workbench.batch import Batch
from workbench.diagnostics.evidence import fingerprint as fingerprint_of


def fingerprint(batch: Batch) -> int:
    """A hash of the tokens of the batch and its loss mask, padding left out."""
    inside = np.arange(batch.tokens.shape[1]) < batch.length.numpy()[:, None]
    return fingerprint_of(batch.tokens.numpy()[inside].tobytes(), batch.mask.numpy()[inside].tobytes())


def mismatches(batch: Batch, episodes: Sequence[Episode]) -> list[tuple[int, int]] | None:
    """(trajectory, turn) where row i of the batch first departs from episode i in a token or a turn id.

    Turn 0 is the prompt, and an observation belongs to the turn before it. A sequence that the selection dropped has
    no turn ids to compare. None when an episode came without its stretches.
    """
    if not all(episode.stretches for episode in episodes):
        return None
    tokens, turn, length = batch.tokens.numpy(), batch.turn.numpy(), batch.length.numpy()
    sizes = [[len(stretch) for stretch in episode.stretches] for episode in episodes]
    rows = np.array([sum(size) for size in sizes])
    made = np.fromiter(chain.from_iterable(chain.from_iterable(e.stretches for e in episodes)), np.int64, rows.sum())
    turns = np.concatenate([_turns(size) for size in sizes])
    dropped = ~batch.mask.any(1).numpy()
    inside = np.arange(tokens.shape[1]) < rows[:, None]
    if np.array_equal(rows, length) and np.array_equal(tokens[inside], made):
        seen = turn[inside]
        if np.array_equal(seen, np.where(np.repeat(dropped, rows), 0, turns)) and not turn[~inside].any():
            return []
    starts = np.concatenate([[0], rows.cumsum()])
    found = []
    for i, size in enumerate(sizes):
        part = slice(starts[i], starts[i + 1])
        where = _first(tokens[i], turn[i], int(length[i]), made[part], turns[part] * (not dropped[i]))
        if where is not None:
            found.append((i, (_stretch(size, where) + 1) // 2))
    return found


def _turns(sizes: Sequence[int]) -> np.ndarray:
    """Turn id of each token of an episode with stretches of these sizes, 0 off the turns."""
    return np.repeat([(i + 1) // 2 if i % 2 else 0 for i in range(len(sizes))], sizes)


def _first(tokens: np.ndarray, turn: np.ndarray, length: int, made: np.ndarray, turns: np.ndarray) -> int | None:
    """The first position at which a row (T,) is not what was made; None where it is."""
    n = min(length, len(made))
    differ = np.flatnonzero((tokens[:n] != made[:n]) | (turn[:n] != turns[:n]))
    if len(differ):
        return int(differ[0])
    beyond = np.flatnonzero(turn[n:])
    return None if length == len(made) and not len(beyond) else n


def _stretch(sizes: Sequence[int], position: int) -> int:
    """The stretch that holds `position`; the last one for a position beyond them."""
    return min(int(np.searchsorted(np.cumsum(sizes), position, side="right")), len(sizes) - 1)
