"""`sorl plan FILE.toml`: the cells of a grid, what sets them apart, how long they take; nothing runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.shared import Arms, Changes, echo, grid_of, runs_of
from workbench.cli.tables import as_json, check_format, show
from workbench.spec import InputError

if TYPE_CHECKING:
    import pandas as pd

    from workbench.grid.config import Grid
    from workbench.spec import RunSettings


ASSUMED = 0.8  # share of the reference arm's runs that collapse, if no run was recorded: few of them stay up


def plan(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Grid file.", show_default=False)],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one per core.", show_default=False)
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
            help="Share of the reference arm's runs that collapse; default: estimated from recorded runs.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the cells of a grid, how they differ, the effects that its seeds can detect, and the time. Runs nothing."""
    check_format(form, ("table", "md", "json"))
    from workbench.cli.compare import describe_region
    from workbench.grid.cell import time_of
    from workbench.grid.folder import History

    runs = runs_of(ctx)
    grid = grid_of(file, changes or [], History(runs), arms or [])
    if grid.region is not None:
        describe_region(grid, form, time_of(grid.cells, runs, workers))
    else:
        describe(grid, runs, workers, form, seeds_for(grid, runs, hazard_ratio, power, incidence))


def describe(
    grid: Grid, runs: Path, workers: int | None = None, form: str = "table", seeds: Seeds | None = None
) -> None:
    """Print the plan: arms with the settings that differ, the slots that differ, fairness, seeds needed, time."""
    import pandas as pd

    from workbench.cli import results
    from workbench.grid.cell import arm_rows, differing, time_of
    from workbench.grid.folder import edits, folder_of, held, last_row, newest, status_of
    from workbench.grid.progress import duration

    grid = newest(grid, runs)
    folders = {cell.run_id: folder_of(runs, cell) for cell in grid.cells}
    status = {name: status_of(last_row(folder), alive=held(folder)) for name, folder in folders.items()}
    left = [cell for cell in grid.cells if status[cell.run_id] != "finished"]
    arms = {cell.arm: cell.settings for cell in grid.cells}
    slots, time, findings = _slots(grid), time_of(left, runs, workers), results.planned(grid.cells)
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
    for line in edits(runs, [cell for cell in grid.cells if not folders[cell.run_id].exists()]):
        echo(f"Edited: {line}; these are new cells.")
    results.tell(findings)
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


def _slots(grid: Grid) -> pd.DataFrame:
    """Return one row per slot in which the algorithms differ, one column per distinct algorithm."""
    import pandas as pd

    from workbench.algorithms import differences
    from workbench.grid.cell import algorithm_label, choices

    algorithms = {}
    for cell in grid.cells:
        label = algorithm_label(cell.settings.algorithm)
        if cell.settings.slots:
            label += f" + slots {json.dumps(cell.settings.slots)}"
        algorithms[label] = cell.resolved
    first = next(iter(algorithms.values()))
    slots = dict.fromkeys(slot for other in algorithms.values() for slot in differences(first, other))
    rows = []
    for slot in slots:
        words = choices([getattr(algorithm, slot) for algorithm in algorithms.values()])
        rows.append({"slot": slot, **dict(zip(algorithms, words, strict=True))})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Incidence:
    """The share of the reference arm's runs that collapse, and where that figure comes from."""

    share: float
    basis: str


@dataclass(frozen=True)
class Seeds:
    """The seeds per arm that detect a hazard ratio, and what the planned ones can detect."""

    hazard_ratio: float
    power: float
    incidence: Incidence
    planned: int
    comparisons: int

    def numbers(self) -> dict[str, Any]:
        """Return every figure, for a program; `alpha` is divided by the number of comparisons where all are to hold."""
        from workbench.analysis.stats import (
            ALPHA,
            collapses_needed,
            detectable,
            power_of,
            seeds_needed,
            smallest_p,
        )  # fmt: skip

        ratio, share, power = self.hazard_ratio, self.incidence.share, self.power
        return {
            "hazard_ratio": ratio,
            "power": power,
            "alpha": ALPHA,
            "incidence": share,
            "incidence_basis": self.incidence.basis,
            "collapses": collapses_needed(ratio, power),
            "seeds": seeds_needed(ratio, share, power, ALPHA),
            "comparisons": self.comparisons,
            "seeds_for_all_comparisons": seeds_needed(ratio, share, power, ALPHA / self.comparisons),
            "planned_seeds": self.planned,
            "planned_power": power_of(self.planned, ratio, share),
            "planned_detectable": detectable(self.planned, share, power),
            "planned_smallest_p": smallest_p(self.planned, self.planned),
        }

    def sentences(self) -> str:
        """Return the same in words, with the assumptions."""
        n, planned = self.numbers(), "1 seed" if self.planned == 1 else f"{self.planned} seeds"
        corrected = (
            f" ({n['seeds_for_all_comparisons']} to detect it in each of {self.comparisons} comparisons)"
            if self.comparisons > 1
            else ""
        )
        too_few = (
            f" With {planned} per arm the smallest possible p-value is {n['planned_smallest_p']:.2g}."
            if n["planned_smallest_p"] > n["alpha"]
            else ""
        )
        return (
            f"To detect a hazard ratio of {self.hazard_ratio:g} with {100 * self.power:.0f} % power at alpha .05: "
            f"{n['collapses']:.0f} collapses, about {n['seeds']} seeds per arm{corrected}, if "
            f"{100 * self.incidence.share:.0f} % of the reference arm's runs collapse ({self.incidence.basis}).\n"
            f"The planned {planned} per arm detect it with {100 * n['planned_power']:.0f} % power, and a hazard ratio "
            f"of {n['planned_detectable']:.2g} or less with {100 * self.power:.0f} %.{too_few}"
        )


def seeds_for(grid: Grid, runs: Path, hazard_ratio: float, power: float, share: float | None = None) -> Seeds | None:
    """Return the effects that the seeds of `grid` can detect; None for a grid of one arm.

    `share` is the incidence to assume; None = that of recorded runs of the grid's arms. Raises InputError for numbers
    out of range.
    """
    from workbench.analysis.stats import ALPHA

    if hazard_ratio <= 0 or hazard_ratio == 1:
        raise InputError(
            f"--hazard-ratio {hazard_ratio:g} is no effect: it must be above 0 and not 1, e.g. --hazard-ratio 0.2"
        )
    for name, value, low in (("power", power, ALPHA), ("incidence", share, 0)):
        if value is not None and not low < value < 1:
            raise InputError(f"--{name} {value:g} is not between {low:g} and 1; use e.g. --{name} 0.8")
    if len(grid.arms) < 2:
        return None
    arms = {cell.arm: cell.settings for cell in grid.cells}
    incidence = Incidence(share, "as given") if share is not None else recorded_incidence(arms, runs)
    return Seeds(hazard_ratio, power, incidence, len(grid.seeds), len(arms) - 1)


def recorded_incidence(arms: Mapping[str, RunSettings], runs: Path) -> Incidence:
    """Return the Kaplan-Meier incidence, at the end of a run, of the recorded arm that collapsed most often.

    Runs count for an arm if they share all its settings but the seed. If all or none of the runs have collapsed,
    (k + 1/2) / (n + 1) keeps the figure off 1; without a recorded collapse it is ASSUMED.
    """
    from workbench.analysis.runs import every_run, replicate
    from workbench.analysis.survival import observed, survival_at
    from workbench.store.reader import Reader

    collapsed, seen = {}, 0  # arm -> (incidence, collapses, runs)
    rows: Any = every_run(Reader(runs)) if (runs / "sorl.duckdb").is_file() else []
    settings = [replicate(config) for config in rows["config"]] if len(rows) else []
    for arm, wanted in arms.items() if settings else ():
        same = replicate(wanted.model_dump_json())
        mine = observed(rows[[s == same for s in settings]])
        seen += len(mine)
        if len(mine) and (events := int(mine["event"].sum())):
            share = 1 - survival_at(mine, wanted.iterations)
            collapsed[arm] = (share if 0 < share < 1 else (events + 0.5) / (len(mine) + 1), events, len(mine))
    if not collapsed:
        return Incidence(ASSUMED, f"assumed: none of {seen} recorded runs did" if seen else "assumed: none is recorded")
    arm = max(collapsed, key=lambda name: collapsed[name][0])
    share, events, n = collapsed[arm]
    return Incidence(share, f"{arm}: {events} of {n} recorded runs")
