"""Evaluate every declared measurement on a step: columns per table, ready to be written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from workbench.diagnostics import advantage, divergence, ratio, step, trajectory, turn, update
from workbench.diagnostics.declare import Measure, declared
from workbench.diagnostics.evidence import Evidence, Rollouts, StepEvidence
from workbench.diagnostics.step import StepView
from workbench.diagnostics.tokens import Segments, Tokens, quotient
from workbench.diagnostics.trajectory import Trajectories
from workbench.diagnostics.turn import TurnRows
from workbench.spec import Diagnostic, Level

# Functions of the trained tokens and a partition of them; the columns of the probe, mostly NULL, stand last.
TOKEN_MEASURES = sorted(declared(update, ratio, divergence, advantage), key=lambda m: m in update.PROBE)
TRAJECTORY_MEASURES = declared(trajectory)
TURN_MEASURES = [m for m in declared(turn) if Level.TURN in m.at]
TURN_STEP_MEASURES = [m for m in declared(turn) if Level.TURN_STEP in m.at]
STEP_MEASURES = declared(step)

Columns = dict[str, Any]


@cache
def at(level: Level) -> list[Measure]:
    """Return the measurements on tokens that have a column at `level`."""
    return [m for m in TOKEN_MEASURES if level in m.at]


def catalogue() -> tuple[Diagnostic, ...]:
    """Return every declared diagnostic, grouped by table."""
    measures = (*STEP_MEASURES, *TOKEN_MEASURES, *TRAJECTORY_MEASURES, *TURN_MEASURES, *TURN_STEP_MEASURES)
    order = [Level.STEP, Level.UPDATE, Level.TRAJECTORY, Level.TURN, Level.TURN_STEP]
    return tuple(sorted((d for m in measures for d in m.diagnostics()), key=lambda d: order.index(d.level)))


@dataclass(frozen=True)
class Measurements:
    """One step, measured: a row of `step`, and columns (with the columns of the key) of the finer tables.

    A column is an array with one entry per row, masked where not measured, or None when no row was measured.
    """

    step: dict[str, float | None]
    minibatch: Columns
    trajectory: Columns
    turn: Columns
    turn_step: Columns


@np.errstate(all="ignore")
def measure(number: int, evidence: StepEvidence) -> Measurements:
    """Measure step `number`; what the evidence lacks is NULL, what is NaN or Inf stays so."""
    trained = evidence.trained or evidence.rollouts
    tokens = None if evidence.updates is None else Tokens(evidence.updates)
    minibatch = {} if tokens is None else measure_updates(tokens)
    turns = {} if tokens is None else measure_turns(tokens, trained.turn_status, trained)
    return Measurements(
        step=_step(StepView(number, evidence, minibatch or None), tokens),
        minibatch=minibatch,
        trajectory=_trajectories(Trajectories(trained, tokens)),
        turn=turns,
        turn_step=measure_turn_steps(turns) if turns else {},
    )


@np.errstate(all="ignore")
def measure_updates(evidence: Evidence | Tokens) -> Columns:
    """Columns (U,) of table `minibatch`: update, epoch, rollout_step and every update-level diagnostic."""
    tokens = evidence if isinstance(evidence, Tokens) else Tokens(evidence)
    columns: Columns = {
        "update": np.arange(tokens.updates),
        "epoch": tokens.evidence.epoch.cpu().numpy(),
        "rollout_step": tokens.evidence.rollout_step.cpu().numpy(),
    }
    return columns | _measured(at(Level.UPDATE), lambda m: m(tokens, tokens.by_update))


@np.errstate(all="ignore")
def measure_turns(
    evidence: Evidence | Tokens, status: Sequence[Sequence[str]] | None = None, rollouts: Rollouts | None = None
) -> Columns:
    """Columns (P,) of table `turn`: epoch, trajectory, turn_index, update and every turn-level diagnostic.

    One row per turn and epoch; `status` holds the labels of each trajectory's turns, by trajectory; `rollouts`
    how the retriever did in them.
    """
    tokens = evidence if isinstance(evidence, Tokens) else Tokens(evidence)
    by = tokens.by_turn
    update = by.first(tokens.update)
    columns: Columns = {
        "epoch": tokens.evidence.epoch.cpu().numpy()[update],
        "trajectory": by.first(tokens.trajectory),
        "turn_index": by.first(tokens.turn),
        "update": update,
    }
    columns |= _measured(at(Level.TURN), lambda m: m(tokens, by))
    columns["status"] = turn.status(columns["trajectory"], columns["turn_index"], status or [])
    place = columns["trajectory"], columns["turn_index"]
    columns["retrieval_seconds"] = turn.retrieval_seconds(*place, rollouts.retrieval_seconds if rollouts else ())
    outcomes = rollouts.retrieval_status if rollouts else ()
    for outcome in (turn.retrieval_empty_frac, turn.retrieval_failed_frac):
        columns[outcome.name] = outcome(*place, outcomes)
    return columns


@np.errstate(all="ignore")
def measure_turn_steps(turns: Mapping[str, Any]) -> Columns:
    """Columns (K,) of table `turn_step`, rolled up from the columns of table `turn` over all epochs of a step."""
    index, ids = np.unique(turns["turn_index"], return_inverse=True)
    by = Segments(ids, len(index))
    weight = np.asarray(turns["n_tokens"], dtype=np.float64)
    view = TurnRows(by, np.asarray(turns["trajectory"]), np.array(turns["status"], dtype=object), turns)
    columns: Columns = {"turn_index": index}
    columns |= _measured(TURN_STEP_MEASURES, lambda m: m(view))
    rolled = [m for m in (*at(Level.TURN), *TURN_MEASURES) if m.roll is not None]
    return columns | _measured(rolled, lambda m: _roll(m, by, turns.get(m.name), weight))


def _roll(measure: Measure, by: Segments, values: np.ndarray | None, weight: np.ndarray) -> np.ndarray | None:
    if values is None:
        return None
    known = ~np.ma.getmaskarray(values)
    x = np.where(known, np.ma.getdata(values).astype(np.float64), 0.0)
    match measure.roll:
        case "tokens":
            return quotient(by.total(x * weight), by.total(np.where(known, weight, 0.0)))
        case "max":
            return by.maximum(x)
        case "min":
            return by.minimum(x)
        case "share":
            return quotient(by.total(x), np.full(by.size, x.sum()))
        case _:
            return by.mean(x, known)


def _trajectories(view: Trajectories) -> Columns:
    r, n = view.rollouts, len(view.rollouts)
    columns: Columns = {
        "trajectory": np.arange(n),
        "prompt_group": r.group,
        "rollout_step": r.rollout_step,
        "question": list(r.question),
        "gold": list(r.gold),
        "answer": list(r.answer),
        "ended": list(r.ended),
    }
    columns |= _measured(TRAJECTORY_MEASURES, lambda m: m(view))
    tokens, by = view.trained, view.by
    shared = at(Level.TRAJECTORY)
    return columns | _measured(shared, lambda m: None if tokens is None or by is None else m(tokens, by))


def _step(view: StepView, tokens: Tokens | None) -> dict[str, float | None]:
    row: dict[str, float | None] = {m.name: m(view) for m in STEP_MEASURES}
    empty = tokens is None or len(tokens.update) == 0
    for m in at(Level.STEP):
        row[m.name] = None if empty or tokens is None else _number(m(tokens, tokens.whole))
    return row


def _number(values: np.ndarray | None) -> float | None:
    return None if values is None or np.ma.getmaskarray(values)[0] else float(values[0])


def _measured(measures: Sequence[Measure], call: Callable[[Measure], Any]) -> Columns:
    return {m.name: call(m) for m in measures}
