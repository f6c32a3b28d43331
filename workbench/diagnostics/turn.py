"""Turns: what the agent did in each and how the retriever did, and the roll-up by turn index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.diagnostics.declare import OURS, Measure, diagnostic
from workbench.diagnostics.tokens import Segments, quotient
from workbench.spec import Level, Unit


def _by_turn(trajectory: np.ndarray, turn_index: np.ndarray, labels: Sequence[Sequence[object]]) -> np.ndarray:
    """Return the label (P,) of each row of the ledger; None where the rollout does not say."""
    shape = (max(trajectory.max(initial=-1) + 1, len(labels)), turn_index.max(initial=0) + 1)
    known = np.full(shape, None, dtype=object)
    for i, turns in enumerate(labels):
        known[i, 1 : len(turns) + 1] = turns[: shape[1] - 1]
    return np.asarray(known[trajectory, turn_index])


def _numbers(values: np.ndarray, of: Callable[[Any], float] = float) -> np.ndarray | None:
    """`of` each of the values, masked where None; None where nothing was measured."""
    missing = [value is None for value in values]
    if all(missing):
        return None
    return np.ma.array([0.0 if value is None else of(value) for value in values], dtype=np.float64, mask=missing)


# What the agent did, and how the retriever did, at (trajectory, turn_index) of each row.


status = Measure(
    "status", (Level.TURN,), Unit.NONE, "search, answer or invalid", "Search-R1",
    "What the agent did in the turn; NULL when the rollout does not say.",
    lambda *labels: _by_turn(*labels).tolist(), sql_type="VARCHAR",
)  # fmt: skip
retrieval_seconds = Measure(
    "retrieval_seconds", (Level.TURN,), Unit.SECONDS, "wall time of the turn's search; of a batch its share", OURS,
    "How long the retriever took, retries included; NULL where no retriever was asked.",
    lambda *seconds: _numbers(_by_turn(*seconds)), roll="turns",
)  # fmt: skip
retrieval_empty_frac, retrieval_failed_frac = (
    Measure(f"retrieval_{outcome}_frac", (Level.TURN,), Unit.FRACTION, formula, OURS,
            f"1 where the retriever {did}, else 0; NULL where no retriever was asked.",
            lambda *seen, outcome=outcome: _numbers(_by_turn(*seen), lambda one: one == outcome), roll="turns")
    for outcome, formula, did in (("empty", "1[the search found no passage]", "answered with no passage"),
                                  ("failed", "1[the search failed]", "gave no answer after all retries"))
)  # fmt: skip

column = partial(diagnostic, Level.TURN_STEP)


class TurnRows:
    """The turn ledger of a step, P rows by turn index; `columns` (P,) are masked where not measured."""

    def __init__(self, by: Segments, columns: Mapping[str, Any]) -> None:
        self.by, self.columns = by, columns

    def of(self, *names: str) -> list[np.ndarray] | None:
        """Return columns of the ledger as they are; None where no turn has one of them."""
        found = [self.columns.get(name) for name in names]
        return None if any(x is None for x in found) else [np.ma.getdata(x) for x in found]

    def share(self, status: str) -> np.ndarray:
        """Return the share of the turns of each index with this status, of those whose status is known."""
        found = np.array(self.columns["status"], dtype=object)
        return self.by.mean(found == status, found != None)  # noqa: E711 - elementwise


@column(Unit.COUNT, "trajectories with a turn of this index", OURS, sql_type="BIGINT")
def n_turns(v: TurnRows) -> np.ndarray:
    """How many trajectories have a turn of this index; read the other columns with it in mind."""
    trajectory = np.asarray(v.columns["trajectory"])
    width = int(trajectory.max(initial=0)) + 1
    distinct = np.unique(v.by.ids * width + trajectory) // width
    return np.bincount(distinct, minlength=v.by.size)


@column(Unit.REWARD, "population std of A over the tokens of the turns", "arXiv 2511.20718 Fig. 2")
def advantage_std(v: TurnRows) -> np.ndarray | None:
    """Spread of the advantages of the tokens in turns of this index: between the turns, and inside them."""
    if (found := v.of("advantage", "advantage_std", "n_tokens")) is None:
        return None
    mean, inside, tokens = found
    count = v.by.total(tokens)
    centre = v.by.spread(quotient(v.by.total(tokens * mean), count))
    return np.sqrt(quotient(v.by.total(tokens * (inside**2 + (mean - centre) ** 2)), count))


@column(
    Unit.NONE, "1 - Var(V_old(s_k) - G) / (Var(G) + 1e-5), unbiased variances over the turns with this index",
    "Search-R1 and verl (critic/vf_explained_var), turn by turn",
)  # fmt: skip
def explained_variance(v: TurnRows) -> np.ndarray | None:
    """How much of the returns the critic explains at turns of this index; NULL without a critic and for one turn."""
    if (found := v.of("value", "value_error")) is None:
        return None
    value, error = found
    return 1.0 - v.by.variance(error) / (v.by.variance(value - error) + 1e-5)


AT_INDEX = (
    Measure("value_mae", (Level.TURN_STEP,), Unit.REWARD, "mean |V_old(s_k) - G| over the turns with this index", OURS,
            "How wrong the critic is where turns of this index begin; value_error is its bias. NULL without a critic.",
            lambda v: None if (error := v.of("value_error")) is None else v.by.mean(np.abs(error[0]))),
    *(Measure(f"{status}_frac", (Level.TURN_STEP,), Unit.FRACTION, f"share of turns with status {status}", OURS,
              f"Share of the turns of this index that {does}.", lambda v, status=status: v.share(status))
      for status, does in (("search", "search"), ("answer", "answer"), ("invalid", "break the protocol"))),
)  # fmt: skip
