"""`sorl plan FILE.toml`: the cells of a grid, what sets them apart, how long they take; nothing runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.cells import Arms, Changes, grid_of, runs_of
from workbench.cli.tables import as_json, check_format, show
from workbench.cli.text import echo

if TYPE_CHECKING:
    import pandas as pd

    from workbench.cli.seeds import Seeds
    from workbench.grid.config import Grid
    from workbench.grid.plan import Needs
    from workbench.spec import RunSettings


def plan(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Grid file.", show_default=False)],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one a core.", show_default=False)
    ] = None,
    changes: Changes = None,
    arms: Arms = None,
    form: Annotated[str, typer.Option("--format", help="table, md or json.")] = "table",
    hazard_ratio: Annotated[
        float, typer.Option(help="Effect to detect: hazard of collapse relative to the reference arm.")
    ] = 0.2,
    power: Annotated[float, typer.Option(help="Probability of detecting that effect.")] = 0.8,
    incidence: Annotated[
        float | None,
        typer.Option(
            help="Share of the reference arm's runs that collapse; default: of recorded runs.", show_default=False
        ),
    ] = None,
) -> None:
    """Show the cells of a grid, their differences, which effects its seeds can detect, and the time; runs nothing."""
    check_format(form, ("table", "md", "json"))
    from workbench.cli.region import describe_region
    from workbench.cli.seeds import seeds_for
    from workbench.grid.history import History
    from workbench.grid.plan import time_of

    runs = runs_of(ctx)
    grid = grid_of(file, changes or [], History(runs), arms or [])
    if grid.region is not None:
        describe_region(grid, form, time_of(grid.cells, runs, needs, workers))
    else:
        describe(grid, runs, workers, form, seeds_for(grid, runs, hazard_ratio, power, incidence))


def describe(
    grid: Grid, runs: Path, workers: int | None = None, form: str = "table", seeds: Seeds | None = None
) -> None:
    """Print the plan: arms with the settings that differ, the slots that differ, fairness, seeds needed, time."""
    import pandas as pd

    from workbench.cli import fairness
    from workbench.grid import history
    from workbench.grid.cell import differing
    from workbench.grid.folder import folder_of, held, last_row, status_of
    from workbench.grid.plan import arm_rows, time_of
    from workbench.grid.progress import duration

    grid = history.newest(grid, runs)
    folders = {cell.run_id: folder_of(runs, cell) for cell in grid.cells}
    status = {name: status_of(last_row(folder), alive=held(folder)) for name, folder in folders.items()}
    left = [cell for cell in grid.cells if status[cell.run_id] != "finished"]
    arms = {cell.arm: cell.settings for cell in grid.cells}
    slots, time, findings = _slots(arms), time_of(left, runs, needs, workers), fairness.planned(grid.cells)
    if form == "json":
        names = ("run_id", "arm", "algorithm", "seed", "control", "config_hash")
        document = {
            "experiment": grid.experiment,
            "question": grid.question,
            "cells": [{n: getattr(c, n) for n in names} | {"status": status[c.run_id]} for c in grid.cells],
            "settings": differing(arms),
            "slots": json.loads(as_json(slots)),
            "guard": [finding.as_dict() for finding in findings],
            "seeds": seeds.numbers() if seeds else None,
            "estimate": {"seconds": round(time.seconds), "workers": time.workers, "basis": time.basis},
        }
        echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    echo(f"{grid.experiment}: {grid.question}\n")
    show(pd.DataFrame(arm_rows(grid, status)), form)
    if len(slots):
        echo("\nSlots in which the algorithms differ\n")
        show(slots, form)
    echo()
    for line in history.edits(runs, [cell for cell in grid.cells if not folders[cell.run_id].exists()]):
        echo(f"Edited: {line}; these are new cells.")
    fairness.tell(findings)
    if seeds:
        echo(f"{seeds.sentences()}")
    done = len(grid.cells) - len(left)
    echo(
        f"{len(grid.cells)} cells ({len(grid.arms)} arms x {len(grid.seeds)} seeds)"
        + (f", {done} finished" if done else "")
        + (f"; about {duration(time.seconds)}, {time.workers} at a time ({time.basis})" if left else "; nothing to run")
    )
    for waiting in grid.waiting:
        echo(f"Later: {waiting}.")


def _slots(arms: dict[str, RunSettings]) -> pd.DataFrame:
    """One row per slot in which the algorithms differ, one column per distinct algorithm."""
    import pandas as pd

    from workbench.algorithms import differences, resolve
    from workbench.grid.cell import algorithm_label
    from workbench.grid.plan import choices

    algorithms = {}
    for settings in arms.values():
        label = algorithm_label(settings.algorithm)
        if settings.slots:
            label += f" + slots {json.dumps(settings.slots)}"
        algorithms[label] = resolve(settings.algorithm, settings.slots)
    first = next(iter(algorithms.values()))
    slots = dict.fromkeys(slot for other in algorithms.values() for slot in differences(first, other))
    rows = []
    for slot in slots:
        words = choices([getattr(algorithm, slot) for algorithm in algorithms.values()])
        rows.append({"slot": slot, **dict(zip(algorithms, words, strict=True))})
    return pd.DataFrame(rows)


def needs(settings: RunSettings) -> Needs:
    """What an iteration takes; the middle between the least and the most, where that depends on the episodes."""
    from workbench.algorithms import resolve
    from workbench.grid.plan import Needs

    algorithm = resolve(settings.algorithm, settings.slots)
    passes = sum(algorithm.schedule.updates(settings.world.max_turns)) / 2
    return Needs(algorithm.critic, algorithm.stabilise.needs_bias, passes, (1 + algorithm.select.rounds) / 2)
