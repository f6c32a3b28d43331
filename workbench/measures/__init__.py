"""Declared measurements, and their evaluation on a step: the name is the column. Importable without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np

from sorl.measures import advantage, divergence, gap, ratio, step, turn, update
from sorl.measures.declare import Measure, declared, measures_at
from sorl.measures.evidence import Evidence, Rollouts, StepEvidence
from sorl.measures.step import StepView
from sorl.measures.tokens import Segments, Tokens, quotient
from sorl.measures.turn import TRAJECTORIES, Trajectories, TurnRows
from sorl.spec import Level
from sorl.spec import table as declaration

# Functions of the trained tokens and a partition of them; the columns of the probe, mostly NULL, stand last.
TOKEN_MEASURES = sorted(declared(update, ratio, divergence, gap, advantage), key=lambda m: m in update.PROBE)
AT = {level: measures_at(level, TOKEN_MEASURES) for level in Level}
STEP_MEASURES = declared(step)
TURN_MEASURES = measures_at(Level.TURN, declared(turn))
TURN_STEP_MEASURES = measures_at(Level.TURN_STEP, declared(turn))

_MEASURES = [*STEP_MEASURES, *TOKEN_MEASURES, *TRAJECTORIES, *TURN_MEASURES, *TURN_STEP_MEASURES]
_ORDER = [Level.STEP, Level.UPDATE, Level.TRAJECTORY, Level.TURN, Level.TURN_STEP]
# Every declared diagnostic, grouped by table.
CATALOGUE = tuple(
    sorted(
        chain.from_iterable(m.diagnostics() for m in _MEASURES),
        key=lambda diagnostic: _ORDER.index(diagnostic.level),
    )
)

Columns = dict[str, Any]


@cache
def column_types(table: str) -> dict[str, str]:
    """Return the SQL type of every column of a table of the store, in order; KeyError for a table that does
    not exist.
    """
    types = {column.name: column.type for column in declaration(table).columns}
    return types | {one.name: one.sql_type for one in CATALOGUE if one.table == table}


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
    turns = {} if tokens is None else measure_turns(tokens, trained)
    view = StepView(number, evidence, minibatch)
    row: dict[str, float | None] = {m.name: m(view) for m in STEP_MEASURES}
    for m in AT[Level.STEP]:
        pooled = m(tokens, tokens.whole) if tokens is not None and len(tokens.update) else None
        row[m.name] = None if pooled is None or np.ma.getmaskarray(pooled)[0] else float(pooled[0])
    acted = Trajectories(trained, tokens)
    told = ("question", "gold", "answer", "ended", "rollout", "parent", "shared_tokens", "sample")
    trajectories: Columns = {name: getattr(trained, name) for name in told}
    trajectories |= {"trajectory": np.arange(len(trained)), "prompt_group": trained.group}
    trajectories |= {"rollout_step": trained.rollout_step} | {m.name: m(acted) for m in TRAJECTORIES}
    trajectories |= {
        m.name: m(tokens, acted.by) if tokens is not None else None for m in AT[Level.TRAJECTORY]
    }
    return Measurements(row, minibatch, trajectories, turns, measure_turn_steps(turns) if turns else {})


@np.errstate(all="ignore")
def measure_updates(evidence: Evidence | Tokens) -> Columns:
    """Columns (U,) of table `minibatch`: update, epoch, rollout_step and every update-level diagnostic."""
    tokens = evidence if isinstance(evidence, Tokens) else Tokens(evidence)
    told = {name: getattr(tokens.evidence, name).cpu().numpy() for name in ("epoch", "rollout_step")}
    columns = {"update": np.arange(tokens.updates)} | told
    return columns | {m.name: m(tokens, tokens.by_update) for m in AT[Level.UPDATE]}


@np.errstate(all="ignore")
def measure_turns(evidence: Evidence | Tokens, rollouts: Rollouts | None = None) -> Columns:
    """Columns (P,) of table `turn`: epoch, trajectory, turn_index, update and every turn-level diagnostic.

    One row per turn and epoch; `rollouts` say what the agent and the retriever did in them.
    """
    tokens = evidence if isinstance(evidence, Tokens) else Tokens(evidence)
    by = tokens.by_turn
    update = by.first(tokens.update)
    place = (by.first(tokens.trajectory), by.first(tokens.turn))
    columns: Columns = {"epoch": tokens.evidence.epoch.cpu().numpy()[update]}
    columns |= {"trajectory": place[0], "turn_index": place[1], "update": update}
    columns |= {m.name: m(tokens, by) for m in AT[Level.TURN]}
    # the others: of the search's outcome
    of = {"status": "turn_status", "retrieval_seconds": "retrieval_seconds"}
    told = {m.name: getattr(rollouts, of.get(m.name, "retrieval_status"), None) or () for m in TURN_MEASURES}
    return columns | {m.name: m(*place, told[m.name]) for m in TURN_MEASURES}


@np.errstate(all="ignore")
def measure_turn_steps(turns: Mapping[str, Any]) -> Columns:
    """Columns (K,) of table `turn_step`, rolled up from the columns of table `turn` over all epochs of a
    step.
    """
    index, ids = np.unique(turns["turn_index"], return_inverse=True)
    by = Segments(ids, len(index))
    view = TurnRows(by, turns)
    rolled = {m.name: _roll(m, by, turns) for m in (*AT[Level.TURN], *TURN_MEASURES) if m.roll is not None}
    return {"turn_index": index} | {m.name: m(view) for m in TURN_STEP_MEASURES} | rolled


def _roll(measure: Measure, by: Segments, turns: Mapping[str, Any]) -> np.ndarray | None:
    if (values := turns.get(measure.name)) is None:
        return None
    known = ~np.ma.getmaskarray(values)
    weight = np.asarray(turns["n_tokens"], dtype=np.float64)
    x = np.where(known, np.ma.getdata(values).astype(np.float64), 0.0)
    if measure.roll == "tokens":
        return quotient(by.total(x * weight), by.total(np.where(known, weight, 0.0)))
    if measure.roll == "share":
        return quotient(by.total(x), np.full(by.size, x.sum()))
    if measure.roll == "turns":
        return by.mean(x, known)
    return by.maximum(x) if measure.roll == "max" else by.minimum(x)
