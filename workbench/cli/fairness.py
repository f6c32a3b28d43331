"""What the fair-comparison guard says of a grid or of recorded runs, for the verbs that print it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli.text import echo

if TYPE_CHECKING:
    import pandas as pd

    from workbench.grid.cell import Cell
    from workbench.grid.guard import Finding, Run
    from workbench.spec import RunSettings
    from workbench.store.reader import Reader


def planned(cells: Sequence[Cell]) -> list[Finding]:
    """What the settings of the cells say."""
    from workbench.algorithms import resolve
    from workbench.grid import guard

    return guard.planned({cell.arm: cell.settings for cell in cells}, resolve)


def recorded(reader: Reader, frame: pd.DataFrame) -> list[Finding]:
    """What the settings and the rows of recorded runs say; `frame` has run_id, arm, seed, status and config of each.

    Settings of another version of sorl are a finding themselves; runs without settings (of another trainer, or not
    begun) have none to check.
    """
    from workbench.algorithms import resolve
    from workbench.grid import guard
    from workbench.spec import InputError

    runs = []
    for row in frame[frame["config"].notna()].to_dict(orient="records"):
        try:
            runs.append(_run(row["run_id"], str(row["arm"]), row["seed"], row["status"], row["config"]))
        except (ValueError, InputError):
            message = "some runs carry settings of another version of sorl, so whether the arms compare is not checked"
            return [guard.Finding("task", message)]
    if not runs:
        return []
    arms: dict[str, RunSettings] = {run.arm: run.settings for run in runs}
    seeds = {arm: sum(run.arm == arm for run in runs) for arm in arms}
    return [*guard.planned(arms, resolve, seeds), *guard.recorded(reader, runs)]


def settle(runs: Path, reader: Reader, experiment: str, cells: Sequence[Cell]) -> list[Finding]:
    """What the runs of the cells say after training; what is flagged is written down as events of these runs."""
    from workbench.analysis.runs import runs as runs_in
    from workbench.cli.database import current
    from workbench.grid.guard import events

    order = {cell.run_id: position for position, cell in enumerate(cells)}
    frame = runs_in(reader, experiment, list(order))
    # In the order of the grid file, not of the starts: a finding must read the same at the next look.
    findings = recorded(reader, frame.sort_values("run_id", key=lambda ids: ids.map(order)))
    if events.write(runs, cells, findings):
        current(runs)
    return findings


def warn(cells: Sequence[Cell]) -> None:
    """Print what is flagged in the settings on stderr: before hours are spent on a comparison that cannot be made."""
    tell([finding for finding in planned(cells) if finding.flagged], err=True)


def tell(findings: Iterable[Finding], err: bool = False) -> None:
    """Print the findings, a line each, violations first, on stdout or on stderr."""
    from workbench.cli.text import cell
    from workbench.grid.guard import lines

    for line in lines(findings):
        echo(cell(line), err=err)


def _run(run_id: str, arm: str, seed: int, status: str, config: str) -> Run:
    from workbench.algorithms import resolve
    from workbench.grid.guard import Run
    from workbench.spec import RunSettings

    settings = RunSettings.model_validate_json(config)
    algorithm = resolve(settings.algorithm, settings.slots)
    size = settings.learn.group_size or algorithm.group_size
    return Run(run_id, arm, int(seed), settings, size, algorithm, finished=status == "finished")
