"""Labels of turns: what the agent did in each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.spec import Level, Unit


@diagnostic(Level.TURN, Unit.NONE, "search, answer or invalid", "Search-R1", sql_type="VARCHAR")
def status(trajectory: np.ndarray, turn_index: np.ndarray, labels: Sequence[Sequence[str]]) -> list[str | None]:
    """What the agent did in the turn; NULL when the rollout does not say."""
    shape = (max(trajectory.max(initial=-1) + 1, len(labels)), turn_index.max(initial=0) + 1)
    known = np.full(shape, None, dtype=object)
    for i, turns in enumerate(labels):
        known[i, 1 : len(turns) + 1] = turns[: shape[1] - 1]
    return list(known[trajectory, turn_index].tolist())
