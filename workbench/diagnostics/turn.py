"""Labels of turns: what the agent did in each, and how the retriever did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.spec import Level, Unit


@diagnostic(Level.TURN, Unit.NONE, "search, answer or invalid", "Search-R1", sql_type="VARCHAR")
def status(trajectory: np.ndarray, turn_index: np.ndarray, labels: Sequence[Sequence[str]]) -> list[str | None]:
    """What the agent did in the turn; NULL when the rollout does not say."""
    return list(_by_turn(trajectory, turn_index, labels).tolist())


@diagnostic(
    Level.TURN, Unit.SECONDS, "wall time of the turn's search; of a batch its share", "this project", roll="turns"
)
def retrieval_seconds(
    trajectory: np.ndarray, turn_index: np.ndarray, seconds: Sequence[Sequence[float | None]]
) -> np.ndarray | None:
    """How long the retriever took, retries included; NULL where no retriever was asked."""
    return _measured(_by_turn(trajectory, turn_index, seconds))


@diagnostic(Level.TURN, Unit.FRACTION, "1[the search found no passage]", "this project", roll="turns")
def retrieval_empty_frac(
    trajectory: np.ndarray, turn_index: np.ndarray, outcomes: Sequence[Sequence[str | None]]
) -> np.ndarray | None:
    """1 where the retriever answered with no passage, else 0; NULL where no retriever was asked."""
    return _share(_by_turn(trajectory, turn_index, outcomes), "empty")


@diagnostic(Level.TURN, Unit.FRACTION, "1[the search failed]", "this project", roll="turns")
def retrieval_failed_frac(
    trajectory: np.ndarray, turn_index: np.ndarray, outcomes: Sequence[Sequence[str | None]]
) -> np.ndarray | None:
    """1 where the retriever gave no answer after all retries, else 0; NULL where no retriever was asked."""
    return _share(_by_turn(trajectory, turn_index, outcomes), "failed")


def _by_turn(trajectory: np.ndarray, turn_index: np.ndarray, labels: Sequence[Sequence[object]]) -> np.ndarray:
    """The label (P,) of each row of the ledger; None where the rollout does not say."""
    shape = (max(trajectory.max(initial=-1) + 1, len(labels)), turn_index.max(initial=0) + 1)
    known = np.full(shape, None, dtype=object)
    for i, turns in enumerate(labels):
        known[i, 1 : len(turns) + 1] = turns[: shape[1] - 1]
    return np.asarray(known[trajectory, turn_index])


def _share(outcomes: np.ndarray, outcome: str) -> np.ndarray | None:
    known = np.array([None if seen is None else float(seen == outcome) for seen in outcomes], dtype=object)
    return _measured(known)


def _measured(values: np.ndarray) -> np.ndarray | None:
    """`values` as numbers, masked where None; None where nothing was measured."""
    missing = np.array([value is None for value in values], dtype=bool)
    if missing.all():
        return None
    return np.ma.array(np.where(missing, 0.0, values).astype(np.float64), mask=missing)
