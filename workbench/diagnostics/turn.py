"""Turns: what the agent did in each and how the retriever did, and the roll-up by turn index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.diagnostics.declare import OURS, diagnostic
from workbench.diagnostics.tokens import Segments, quotient
from workbench.spec import Level, Unit


@diagnostic(Level.TURN, Unit.NONE, "search, answer or invalid", "Search-R1", sql_type="VARCHAR")
def status(trajectory: np.ndarray, turn_index: np.ndarray, labels: Sequence[Sequence[str]]) -> list[str | None]:
    """What the agent did in the turn; NULL when the rollout does not say."""
    return list(_by_turn(trajectory, turn_index, labels).tolist())


@diagnostic(Level.TURN, Unit.SECONDS, "wall time of the turn's search; of a batch its share", OURS, roll="turns")
def retrieval_seconds(
    trajectory: np.ndarray, turn_index: np.ndarray, seconds: Sequence[Sequence[float | None]]
) -> np.ndarray | None:
    """How long the retriever took, retries included; NULL where no retriever was asked."""
    return _measured(_by_turn(trajectory, turn_index, seconds))


@diagnostic(Level.TURN, Unit.FRACTION, "1[the search found no passage]", OURS, roll="turns")
def retrieval_empty_frac(
    trajectory: np.ndarray, turn_index: np.ndarray, outcomes: Sequence[Sequence[str | None]]
) -> np.ndarray | None:
    """1 where the retriever answered with no passage, else 0; NULL where no retriever was asked."""
    return _turn_share(_by_turn(trajectory, turn_index, outcomes), "empty")


@diagnostic(Level.TURN, Unit.FRACTION, "1[the search failed]", OURS, roll="turns")
def retrieval_failed_frac(
    trajectory: np.ndarray, turn_index: np.ndarray, outcomes: Sequence[Sequence[str | None]]
) -> np.ndarray | None:
    """1 where the retriever gave no answer after all retries, else 0; NULL where no retriever was asked."""
    return _turn_share(_by_turn(trajectory, turn_index, outcomes), "failed")


def _by_turn(trajectory: np.ndarray, turn_index: np.ndarray, labels: Sequence[Sequence[object]]) -> np.ndarray:
    """Return the label (P,) of each row of the ledger; None where the rollout does not say."""
    shape = (max(trajectory.max(initial=-1) + 1, len(labels)), turn_index.max(initial=0) + 1)
    known = np.full(shape, None, dtype=object)
    for i, turns in enumerate(labels):
        known[i, 1 : len(turns) + 1] = turns[: shape[1] - 1]
    return np.asarray(known[trajectory, turn_index])


def _turn_share(outcomes: np.ndarray, outcome: str) -> np.ndarray | None:
    known = np.array([None if seen is None else float(seen == outcome) for seen in outcomes], dtype=object)
    return _measured(known)


def _measured(values: np.ndarray) -> np.ndarray | None:
    """`values` as numbers, masked where None; None where nothing was measured."""
    missing = np.array([value is None for value in values], dtype=bool)
    if missing.all():
        return None
    return np.ma.array(np.where(missing, 0.0, values).astype(np.float64), mask=missing)


TURN_STEP = Level.TURN_STEP


@dataclass(frozen=True)
class TurnRows:
    """The rows of the turn ledger of one step (P of them) and their partition by turn index."""

    by: Segments
    trajectory: np.ndarray  # (P,)
    status: np.ndarray  # (P,) of str or None
    columns: Mapping[str, Any] = field(default_factory=dict)  # the measured ones, (P,), masked where not measured

    def of(self, name: str) -> np.ndarray | None:
        """Return a column of the ledger as it is; None where no turn has it."""
        column = self.columns.get(name)
        return None if column is None else np.ma.getdata(column)


@diagnostic(TURN_STEP, Unit.COUNT, "trajectories with a turn of this index", OURS, sql_type="BIGINT")
def n_turns(v: TurnRows) -> np.ndarray:
    """How many trajectories have a turn of this index; read the other columns with it in mind."""
    width = int(v.trajectory.max(initial=0)) + 1
    distinct = np.unique(v.by.ids * width + v.trajectory) // width
    return np.bincount(distinct, minlength=v.by.size)


def _turn_step_share(v: TurnRows, status: str) -> np.ndarray:
    return v.by.mean(v.status == status, v.status != None)  # noqa: E711 - elementwise


@diagnostic(TURN_STEP, Unit.FRACTION, "share of turns with status search", OURS)
def search_frac(v: TurnRows) -> np.ndarray:
    """Share of the turns of this index that search."""
    return _turn_step_share(v, "search")


@diagnostic(TURN_STEP, Unit.FRACTION, "share of turns with status answer", OURS)
def answer_frac(v: TurnRows) -> np.ndarray:
    """Share of the turns of this index that answer."""
    return _turn_step_share(v, "answer")


@diagnostic(TURN_STEP, Unit.FRACTION, "share of turns with status invalid", OURS)
def invalid_frac(v: TurnRows) -> np.ndarray:
    """Share of the turns of this index that break the protocol."""
    return _turn_step_share(v, "invalid")


@diagnostic(TURN_STEP, Unit.REWARD, "population std of A over the tokens of the turns", "arXiv 2511.20718 Fig. 2")
def advantage_std(v: TurnRows) -> np.ndarray | None:
    """Spread of the advantages of the tokens in turns of this index: between the turns, and inside them."""
    mean, inside, tokens = v.of("advantage"), v.of("advantage_std"), v.of("n_tokens")
    if mean is None or inside is None or tokens is None:
        return None
    count = v.by.total(tokens)
    centre = v.by.spread(quotient(v.by.total(tokens * mean), count))
    return np.sqrt(quotient(v.by.total(tokens * (inside**2 + (mean - centre) ** 2)), count))


@diagnostic(
    TURN_STEP,
    Unit.NONE,
    "1 - Var(V_old(s_k) - G) / (Var(G) + 1e-5), unbiased variances over the turns with this index",
    "Search-R1 and verl (critic/vf_explained_var), turn by turn",
)
def explained_variance(v: TurnRows) -> np.ndarray | None:
    """How much of the returns the critic explains where turns of this index begin.

    NULL without a critic, and where only one turn has this index.
    """
    value, error = v.of("value"), v.of("value_error")
    if value is None or error is None:
        return None
    return 1.0 - v.by.variance(error) / (v.by.variance(value - error) + 1e-5)


@diagnostic(TURN_STEP, Unit.REWARD, "mean |V_old(s_k) - G| over the turns with this index", OURS)
def value_mae(v: TurnRows) -> np.ndarray | None:
    """How wrong the critic is where turns of this index begin; value_error is its bias there. NULL without a critic."""
    error = v.of("value_error")
    return None if error is None else v.by.mean(np.abs(error))
