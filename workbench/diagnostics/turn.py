"""Labels of turns: what the agent did in each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.spec import Level, Unit


@diagnostic(Level.TURN, Unit.NONE, "search, answer or invalid", "Search-R1", sql_type="VARCHAR")
def status(trajectory: np.ndarray, turn_index: np.ndarray, labels: Sequence[Sequence[str]]) -> list[str | None]:
    """What the agent did in the turn; NULL when the rollout does not say."""
    rows = zip(trajectory.tolist(), turn_index.tolist(), strict=True)
    return [labels[i][k - 1] if i < len(labels) and k <= len(labels[i]) else None for i, k in rows]
