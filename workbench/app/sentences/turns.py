"""Sentences about when and where the turns of runs leave their usual band."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from sorl.app.deviation import Band, Deviation, OutCell
from sorl.app.figures.maps import FEW
from sorl.app.text import number
from sorl.diagnosis.standing import counted, from_onset

NAMED = 3  # runs that are told one by one


class RunDeviation(NamedTuple):
    """A run by name, how its fall is told (empty: it did not fall), the step before it, and its deviation."""

    name: str
    fall: str
    onset: int | None
    deviation: Deviation


class Broken(NamedTuple):
    """Cells with NaN or Inf: how many, and the first of them."""

    cells: int
    name: str
    turn: int
    step: int


def describe_deviations(measure: str, runs: Sequence[RunDeviation], broken: Broken | None) -> str:
    """Say of the runs that fell which turn first left its usual band, and how far; of the others how many."""
    fell = sorted((run for run in runs if run.fall), key=_order)
    stood = [run for run in runs if not run.fall]
    lines = [f"{measure[:1].upper()}{measure[1:]}."]
    lines += [_of_run(run) for run in fell[:NAMED]]
    if len(fell) > NAMED:
        lines.append(f"{len(fell) - NAMED} more runs fell.")
    if stood:
        lines.append(_of_others(stood, also=bool(fell)))
    if broken is not None:
        where = f"{broken.name}, turn {broken.turn}, step {broken.step:,}"
        lines.append(f"NaN or Inf in {counted(broken.cells, 'cell')}, first in {where}.")
    return " ".join(lines)


def told_cells(runs: Sequence[RunDeviation]) -> list[tuple[str, OutCell]]:
    """Return run names and cells that the sentences name, the first and the farthest of each run."""
    fell = sorted((run for run in runs if run.fall), key=_order)[:NAMED]
    found = []
    for run in fell:
        cells = (run.deviation.first, run.deviation.farthest)
        found += [(run.name, cell) for cell in dict.fromkeys(cells) if cell is not None]
    earliest = _earliest([run for run in runs if not run.fall])
    if earliest is not None and earliest.deviation.first is not None:
        found.append((earliest.name, earliest.deviation.first))
    return found


def _order(run: RunDeviation) -> tuple[bool, int]:
    first = run.deviation.first
    return first is None, first.step if first is not None else 0


def _of_run(run: RunDeviation) -> str:
    deviation = run.deviation
    if not deviation.is_known:
        return f"{run.name}: nothing to compare with, cells need {FEW} turns; the fall began {run.fall}."
    if deviation.first is None:
        single = f" for two steps ({counted(deviation.cells, 'single cell')} did)" if deviation.cells else ""
        return f"{run.name}: no turn leaves its usual band{single}; the fall began {run.fall}."
    cell = deviation.first
    when = f", {from_onset(cell.step, run.onset)}" if run.onset is not None else ""
    said = f"{run.name}: turn {cell.turn} first leaves its usual band at step {cell.step:,}{when}, "
    said += f"with {number(cell.value)} ({_usual(cell.band)})"
    farthest = deviation.farthest
    if farthest is not None and farthest != cell:
        said += f"; farthest {number(farthest.value)} in turn {farthest.turn}, step {farthest.step:,}"
    return f"{said}. The fall began {run.fall}."


def _usual(band: Band) -> str:
    """Say what is usual, and in which cells."""
    spread = f"usual: {number(band.low)} to {number(band.high)}"
    own = f"before step {band.before:,}"
    if not band.runs:
        return f"{spread}, twice as wide as its own {own}"
    return f"{spread}, in {counted(band.runs, 'run')} that did not fall and in its own {own}"


def _earliest(stood: Sequence[RunDeviation]) -> RunDeviation | None:
    out = [run for run in stood if run.deviation.first is not None]
    return min(out, key=_order, default=None)


def _of_others(stood: Sequence[RunDeviation], *, also: bool) -> str:
    """Say how many of the runs that did not fall leave the band of the others, and the first that does."""
    known = [run for run in stood if run.deviation.is_known]
    which = "that did not fall" if also else "none fell, and"
    if not known:
        return f"{counted(len(stood), 'run')} {which}: nothing to compare with."
    earliest = _earliest(known)
    if earliest is None or earliest.deviation.first is None:
        return f"Of {counted(len(known), 'run')} {which} none leaves the band of the others."
    count = sum(run.deviation.first is not None for run in known)
    cell = earliest.deviation.first
    first = f"first {earliest.name} in turn {cell.turn} at step {cell.step:,}, with {number(cell.value)}"
    leave = "leaves" if count == 1 else "leave"
    return f"Of {counted(len(known), 'run')} {which} {count} {leave} the band of the others, {first}."


def onset_step(run: Mapping[Any, Any]) -> int | None:
    """Return the last step before the fall of a run, where that is one step."""
    step = run.get("collapse_step")
    return None if step is None or pd.isna(step) else int(step)
