"""Rollouts that several training rows are of: forks, context compaction and sub-agents make more than one.

Rows of a rollout may begin with the same tokens. The turns in these are one, and its reward is one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sorl.measures.evidence import Rollouts, count_stretches


@dataclass(frozen=True)
class Branches:
    """How the N training rows of a step belong to rollouts."""

    rollout: np.ndarray  # (N,) int64, the rollout of each row
    parent: np.ndarray  # (N,) int64, the row that it branches off; -1: none
    shared_tokens: np.ndarray  # (N,) int64, tokens at its beginning that are those of its parent

    @property
    def first_rows(self) -> np.ndarray:
        """The first row of each rollout."""
        return np.sort(np.unique(self.rollout, return_index=True)[1])

    @property
    def has_several_rows(self) -> bool:
        """Whether any rollout has more than one row."""
        return len(self.first_rows) < len(self.rollout)


def find_branches(rollout: np.ndarray, tokens: list[np.ndarray]) -> Branches:
    """Find which row each row branches off: of the rows of its rollout before it, the one that begins like it
    for longest; the first such one.
    """
    parent = np.full(len(tokens), -1, dtype=np.int64)
    shared = np.zeros(len(tokens), dtype=np.int64)
    seen: dict[int, list[int]] = {}
    for row, number in enumerate(rollout.tolist()):
        earlier = seen.setdefault(number, [])
        lengths = [common_prefix(tokens[row], tokens[other]) for other in earlier]
        if lengths:
            best = int(np.argmax(lengths))
            parent[row] = earlier[best]
            shared[row] = lengths[best]
        earlier.append(row)
    return Branches(np.asarray(rollout, dtype=np.int64), parent, shared)


def common_prefix(tokens: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two sequences begin with alike."""
    length = min(len(tokens), len(other))
    different = np.flatnonzero(tokens[:length] != other[:length])
    return int(different[0]) if len(different) else length


def merge_rows(rows: Rollouts, branches: Branches, masks: list[np.ndarray], prompt: np.ndarray) -> Rollouts:
    """Return one entry a rollout: reward and group of its first row, turns and tokens of all its rows, what
    they share counted once.

    `masks` are where the policy wrote in the response of each row, `prompt` (N,) the lengths of the prompts.
    """
    first = branches.first_rows
    merged: dict[str, Any] = {
        name: _sums(getattr(rows, name), counts, branches)
        for name, counts in own_counts(branches, masks, prompt).items()
        if getattr(rows, name) is not None
    }
    kept: dict[str, Any] = {name: _chosen(getattr(rows, name), first) for name in _OF_THE_ROLLOUT}
    return replace(rows, **kept, **merged, searches=None, valid_turns=None, turn_status=None)


def own_counts(branches: Branches, masks: list[np.ndarray], prompt: np.ndarray) -> dict[str, list[int]]:
    """Turns and tokens of each row behind what it shares with its parent."""
    starts = np.maximum(0, branches.shared_tokens - prompt).tolist()
    own = [mask[start:] for mask, start in zip(masks, starts, strict=True)]
    return {
        "turns": [count_stretches(part) for part in own],
        "response_tokens": [int(part.sum()) for part in own],
        "observation_tokens": [int((~part).sum()) for part in own],
    }


def _sums(known: np.ndarray, counts: list[int], branches: Branches) -> np.ndarray:
    """Counts of the rows of each rollout added up; masked where its first row has none known."""
    first = branches.first_rows
    _, rollout = np.unique(branches.rollout, return_inverse=True)
    sums = np.bincount(rollout, weights=counts).astype(np.int64)
    return np.ma.array(sums[rollout[first]], mask=np.ma.getmaskarray(known)[first])


_OF_THE_ROLLOUT = (
    "reward",
    "group",
    "rollout_step",
    "sample",
    "success",
    "truncated",
    "answered",
    "tokens",
    "written",
    "token_turn",
    "question",
    "gold",
    "answer",
    "ended",
)


def _chosen(values: Any, rows: np.ndarray) -> Any:
    """Entries of an array or a list; None for None."""
    if values is None:
        return None
    if isinstance(values, np.ndarray):
        return values[rows]
    return [values[row] for row in rows]
