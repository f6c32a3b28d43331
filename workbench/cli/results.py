"""The results of experiments, from their runs or from files, and what makes their arms unfair to compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.shared import cell, echo

if TYPE_CHECKING:
    import pandas as pd

    from workbench.analysis.results import Results
    from workbench.grid.cell import Cell
    from workbench.grid.guard import Finding, Run
    from workbench.store.reader import Reader


def gather(runs: Path, experiments: Sequence[str], files: Sequence[Path]) -> list[Results]:
    """Return the results of experiments in the runs folder, then those of files; InputError if one is missing."""
    from workbench.analysis.results import read

    return [*recorded(runs, experiments), *(read(file) for file in files)]


def recorded(runs: Path, experiments: Sequence[str]) -> list[Results]:
    """Return the results of experiments in the runs folder, after a sync of the database."""
    from workbench.analysis import results
    from workbench.cli.compare import in_file_order
    from workbench.cli.shared import current
    from workbench.grid.guard import lines

    if not experiments:
        return []
    reader = current(runs)
    found = []
    for name in experiments:
        order = partial(in_file_order, file=runs / name / "experiment.toml")
        frame, about = results.collect(reader, name, slots, order)
        found.append(results.results(frame, about, lines(unfair(reader, frame))))
    return found


@lru_cache(maxsize=4096)
def slots(config: str) -> str | None:
    """Resolve a configuration (JSON): its slots with their options, its critic and its group size, as JSON.

    None for an algorithm that this version of sorl does not know, as in logs of another trainer. Nothing else of the
    configuration is looked at, so that runs of another version keep their slots.
    """
    from workbench.algorithms import resolve
    from workbench.objective import KINDS
    from workbench.spec import InputError

    try:
        settings = json.loads(config)
        algorithm = resolve(settings["algorithm"], settings["slots"])
        group_size = settings["learn"]["group_size"]
    except (ValueError, KeyError, TypeError, InputError):
        return None
    parts = {slot: {"kind": getattr(algorithm, slot).kind, **asdict(getattr(algorithm, slot))} for slot in KINDS}
    own = {"critic": algorithm.critic, "group_size": group_size or algorithm.group_size}
    return json.dumps({"slots": parts, **own}, sort_keys=True)


def planned(cells: Sequence[Cell]) -> list[Finding]:
    """Return findings in the settings of the cells."""
    from workbench.grid import guard

    return guard.planned(cells)


def unfair(reader: Reader, frame: pd.DataFrame) -> list[Finding]:
    """Return findings in recorded runs; `frame` has run_id, arm, seed, status and config of each.

    Runs without settings (of another trainer, or not begun) are left out. Settings of another version of sorl cannot be
    checked, which is a finding itself.
    """
    from workbench.grid import guard
    from workbench.spec import InputError

    try:
        runs = [_run(row) for row in frame[frame["config"].notna()].to_dict(orient="records")]
    except (ValueError, InputError):
        message = "some runs carry settings of another version of sorl, so whether the arms compare is not checked"
        return [guard.Finding("task", message)]
    if not runs:
        return []
    return [*guard.planned(runs), *guard.recorded(reader, runs)]


def _run(row: dict[Any, Any]) -> Run:
    from workbench.algorithms import resolve
    from workbench.grid.guard import Run
    from workbench.spec import RunSettings

    settings = RunSettings.model_validate_json(row["config"])
    algorithm = resolve(settings.algorithm, settings.slots)
    return Run(row["run_id"], str(row["arm"]), int(row["seed"]), settings, algorithm, row["status"] == "finished")


def settle(runs: Path, reader: Reader, experiment: str, cells: Sequence[Cell]) -> list[Finding]:
    """Return findings in the runs of the cells after training; write the flagged ones as events of these runs."""
    from workbench.analysis.runs import runs as runs_in
    from workbench.cli.shared import current
    from workbench.grid.guard import write_events

    order = {cell.run_id: position for position, cell in enumerate(cells)}
    frame = runs_in(reader, experiment, list(order))
    # In the order of the grid file, not of the starts: a finding must read the same the next time.
    findings = unfair(reader, frame.sort_values("run_id", key=lambda ids: ids.map(order)))
    if write_events(runs, cells, findings):
        current(runs)
    return findings


def warn(cells: Sequence[Cell]) -> None:
    """Print violations in the settings on stderr, before hours are spent on a comparison that cannot be valid."""
    tell([finding for finding in planned(cells) if finding.flagged], err=True)


def tell(findings: Iterable[Finding], err: bool = False) -> None:
    """Print the findings, a line each, violations first, on stdout or on stderr."""
    from workbench.grid.guard import lines

    for line in lines(findings):
        echo(cell(line), err=err)
