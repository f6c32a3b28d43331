"""The roll-up of the turn ledger to turn indices that has no column in the ledger itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.diagnostics.declare import diagnostic
from workbench.diagnostics.tokens import Segments
from workbench.spec import Level, Unit

TURN_STEP = Level.TURN_STEP


@dataclass(frozen=True)
class TurnRows:
    """The rows of the turn ledger of one step (P of them) and their partition by turn index."""

    by: Segments
    trajectory: np.ndarray  # (P,)
    status: np.ndarray  # (P,) of str or None


@diagnostic(TURN_STEP, Unit.COUNT, "trajectories with a turn of this index", "this project", sql_type="BIGINT")
def n_turns(v: TurnRows) -> np.ndarray:
    """How many trajectories have a turn of this index; read the other columns with it in mind."""
    width = int(v.trajectory.max(initial=0)) + 1
    distinct = np.unique(v.by.ids * width + v.trajectory) // width
    return np.bincount(distinct, minlength=v.by.size)


def _share(v: TurnRows, status: str) -> np.ndarray:
    return v.by.mean(v.status == status, v.status != None)  # noqa: E711 - elementwise


@diagnostic(TURN_STEP, Unit.FRACTION, "share of turns with status search", "this project")
def search_frac(v: TurnRows) -> np.ndarray:
    """Share of the turns of this index that search."""
    return _share(v, "search")


@diagnostic(TURN_STEP, Unit.FRACTION, "share of turns with status answer", "this project")
def answer_frac(v: TurnRows) -> np.ndarray:
    """Share of the turns of this index that answer."""
    return _share(v, "answer")


@diagnostic(TURN_STEP, Unit.FRACTION, "share of turns with status invalid", "this project")
def invalid_frac(v: TurnRows) -> np.ndarray:
    """Share of the turns of this index that break the protocol."""
    return _share(v, "invalid")
