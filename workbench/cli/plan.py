"""`sorl plan FILE.toml`: the cells of a grid, what sets them apart, how long they take; nothing runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.cells import Arms, Changes, grid_of, runs_of
from workbench.cli.tables import as_json, check_format, show
from workbench.cli.text import echo

if TYPE_CHECKING:
    import pandas as pd

    from workbench.cli.seeds import Seeds
    from workbench.grid.cell import Cell
    from workbench.grid.estimate import Estimate
    from workbench.grid.file import Grid
    from workbench.grid.guard import Finding
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
        float, typer.Option(help="Effect to be told from none: hazard of collapse over the reference arm's.")
    ] = 0.2,
    power: Annotated[float, typer.Option(help="Probability of showing that effect.")] = 0.8,
    incidence: Annotated[
        float | None,
        typer.Option(
            help="Share of the reference arm's runs that collapse; default: of recorded runs.", show_default=False
        ),
    ] = None,
) -> None:
    """Show the cells of a grid, what differs between them, what its seeds can show and the time; runs nothing."""
    from workbench.cli.seeds import seeds_for

    check_format(form, ("table", "md", "json"))
    from workbench.grid.history import History

    runs = runs_of(ctx)
    grid = grid_of(file, changes or [], History(runs), arms or [])
    if grid.region is not None:
        _describe_region(grid, runs, workers, form)
        return
    describe(grid, runs, workers, form, seeds_for(grid, runs, hazard_ratio, power, incidence))


def _describe_region(grid: Grid, runs: Path, workers: int | None, form: str) -> None:
    from workbench.cli.region import describe_region

    time = _estimate(grid.cells, runs, workers)
    describe_region(grid, form, time.seconds * time.workers / len(grid.cells), time)


def describe(
    grid: Grid, runs: Path, workers: int | None = None, form: str = "table", seeds: Seeds | None = None
) -> None:
    """Print the plan: arms with the settings that differ, the slots that differ, fairness, seeds needed, time."""
    from workbench.cli import fairness
    from workbench.grid.edits import edits
    from workbench.grid.folder import folder_of, held, last_row, status_of
    from workbench.grid.generations import newest
    from workbench.grid.progress import duration

    grid = newest(grid, runs)
    edited = edits(runs, [cell for cell in grid.cells if not folder_of(runs, cell).exists()])
    status = {}
    for cell in grid.cells:
        folder = folder_of(runs, cell)
        status[cell.run_id] = status_of(last_row(folder), alive=held(folder))
    left = [cell for cell in grid.cells if status[cell.run_id] != "finished"]
    arms = {cell.arm: cell.settings for cell in grid.cells}
    time = _estimate(left, runs, workers)
    findings = fairness.planned(grid.cells)
    if form == "json":
        echo(_as_json(grid, status, arms, time, findings, seeds))
        return
    echo(f"{grid.experiment}: {grid.question}\n")
    show(_cells(grid, status), form)
    if len(slots := _slots(arms)):
        echo("\nSlots in which the algorithms differ\n")
        show(slots, form)
    echo()
    for line in edited:
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


def _cells(grid: Grid, status: dict[str, str]) -> pd.DataFrame:
    """One row per arm: its algorithm, seeds and finished runs, and every setting that not all arms share."""
    import pandas as pd

    from workbench.grid.differences import differing
    from workbench.grid.keys import short

    settings = differing({cell.arm: cell.settings for cell in grid.cells})
    settings.pop("algorithm", None)  # the arm's label and the table of slots say it
    rows = []
    for arm in grid.arms:
        cells = [cell for cell in grid.cells if cell.arm == arm]
        done = sum(status[cell.run_id] == "finished" for cell in cells)
        row = {
            "arm": arm,
            "kind": "control" if cells[0].control else "crossed",
            "algorithm": cells[0].algorithm,
            "seeds": " ".join(str(cell.seed) for cell in cells),
            "finished": f"{done}/{len(cells)}",
        }
        rows.append(row | {short(key): _word(values[arm]) for key, values in settings.items()})
    return pd.DataFrame(rows)


def _slots(arms: dict[str, RunSettings]) -> pd.DataFrame:
    """One row per slot in which the algorithms differ, one column per distinct algorithm."""
    import pandas as pd

    from workbench.algorithms import differences, resolve
    from workbench.grid.cell import algorithm_label

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
        told = choices([getattr(algorithm, slot) for algorithm in algorithms.values()])
        rows.append({"slot": slot, **dict(zip(algorithms, told, strict=True))})
    return pd.DataFrame(rows)


def choices(slots: Sequence[Any]) -> list[str]:
    """Each choice of one slot in a line: its kind and the options that are not the default or not the same in all."""
    kinds: dict[str, list[Any]] = {}
    for slot in slots:
        kinds.setdefault(slot.kind, []).append(slot)
    return [choice(slot, _varying(kinds[slot.kind])) for slot in slots]


def _varying(slots: Sequence[Any]) -> set[str]:
    return {f.name for f in fields(slots[0]) if len({repr(getattr(slot, f.name)) for slot in slots}) > 1}


def choice(slot: Any, wanted: Collection[str] | None = None) -> str:
    """A slot's choice in a line: its kind and its options (given `wanted`: these and those off their default)."""
    told = [f for f in fields(slot) if wanted is None or f.name in wanted or getattr(slot, f.name) != f.default]
    return " ".join([slot.kind, *(f"{f.name}={_word(getattr(slot, f.name))}" for f in told)])


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _estimate(cells: Sequence[Cell], runs: Path, workers: int | None) -> Estimate:
    from workbench.grid.estimate import estimate
    from workbench.learn.warmstart import key, made

    settings = {key(cell.settings): cell.settings for cell in cells}
    missing = [found for found in settings.values() if not made(found, runs / ".cache")]
    return estimate(cells, needs, _recorded(runs), workers, missing)


def needs(settings: RunSettings) -> tuple[bool, bool, float, float]:
    """What an iteration takes: a critic, a second backward at every update, updates a minibatch, rounds of sampling.

    Of what depends on the episodes, the middle between the least and the most.
    """
    from workbench.algorithms import resolve

    algorithm = resolve(settings.algorithm, settings.slots)
    passes = sum(algorithm.schedule.updates(settings.world.max_turns)) / 2
    return algorithm.critic, algorithm.stabilise.needs_bias, passes, (1 + algorithm.select.rounds) / 2


def _recorded(runs: Path) -> list[Any]:
    """The pace of the finished runs that this kind of machine trained; none where there is no database yet."""
    import platform

    from workbench.grid.estimate import Recorded
    from workbench.spec import InputError, RunSettings

    if not (runs / "sorl.duckdb").is_file():
        return []
    from workbench.store.reader import Reader

    frame = Reader(runs).query(
        "SELECT config, seconds / steps AS pace FROM run WHERE status = 'finished' AND steps > 0 AND seconds > 0"
        " AND versions->>'$.machine' = ? ORDER BY ended_at DESC LIMIT 50",
        [f"{platform.system()} {platform.machine()}"],
    )
    recorded = []
    for config, pace in zip(frame["config"], frame["pace"], strict=True):
        try:
            settings = RunSettings.model_validate_json(config)
            critic, second_backward, passes, draws = needs(settings)
            recorded.append(Recorded(settings, critic, second_backward, float(pace), passes, draws))
        except (ValueError, InputError):
            continue  # a run of another version of sorl: its settings may no longer exist
    return recorded


def _as_json(
    grid: Grid,
    status: dict[str, str],
    arms: dict[str, RunSettings],
    time: Estimate,
    findings: Sequence[Finding],
    seeds: Seeds | None,
) -> str:
    import pandas as pd

    from workbench.grid.differences import differing

    cells = [
        {"run_id": c.run_id, "arm": c.arm, "algorithm": c.algorithm, "seed": c.seed, "control": c.control,
         "config_hash": c.config_hash, "status": status[c.run_id]}
        for c in grid.cells
    ]  # fmt: skip
    slots = _slots(arms)
    return json.dumps(
        {
            "experiment": grid.experiment,
            "question": grid.question,
            "cells": cells,
            "settings": differing(arms),
            "slots": json.loads(as_json(slots)) if isinstance(slots, pd.DataFrame) and len(slots) else [],
            "guard": [finding.as_dict() for finding in findings],
            "seeds": seeds.numbers() if seeds else None,
            "estimate": {"seconds": round(time.seconds), "workers": time.workers, "basis": time.basis},
        },
        indent=2,
        ensure_ascii=False,
    )
