"""`sorl plan FILE.toml`: the cells of a grid, what sets them apart, how long they take; nothing runs."""

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from typer import Context, Option

from sorl.algorithms import differences
from sorl.cli.compare import tell
from sorl.cli.shared import ARMS, CHANGES, GRID_FILE, LISTING, workers_option
from sorl.cli.tables import document, echo, show
from sorl.grid import config, fairness
from sorl.grid.cell import Cell, algorithm_label, choices, differing, duration, short, time_of
from sorl.grid.config import Grid
from sorl.grid.folder import History, edits, folder_of, last_row, refuse_unsafe, status_of
from sorl.grid.search import Region, usual
from sorl.objective.slot import in_words
from sorl.spec import InputError, RunSettings
from sorl.spec.evidence import ALPHA
from sorl.store.reader import Reader
from sorl.store.segments import held

ASSUMED = 0.8  # share of the reference arm's runs that collapse, if no run was recorded: few of them stay up
_INCIDENCE = "Share of the reference arm's runs that collapse; default: that of recorded runs."


def plan(
    ctx: Context,
    file: Path = GRID_FILE,
    workers: int | None = workers_option("Runs at a time; default: one per core."),
    changes: list[str] | None = CHANGES,
    arms: list[str] | None = ARMS,
    form: str = LISTING,
    hazard_ratio: float = Option(
        0.2, help="Effect to detect: hazard of collapse relative to the reference arm."
    ),
    power: float = Option(0.8, help="Probability of detecting that effect."),
    incidence: float | None = Option(None, help=_INCIDENCE),
) -> None:
    """Show the cells of a grid, how they differ, the effects that its seeds can detect, and the time. Runs
    nothing.
    """
    grid = config.load(file, changes or [], History(ctx.obj), arms or [])
    config.refuse_waiting(grid)
    if grid.region is not None:
        describe_search(grid, grid.region, ctx.obj, workers, form)
    else:
        describe(grid, ctx.obj, workers, form, seeds_for(grid, ctx.obj, hazard_ratio, power, incidence))


def _states(grid: Grid, runs: Path) -> dict[str, str]:
    """Return the status of every cell by run id."""
    folders = {cell.run_id: folder_of(runs, cell) for cell in grid.cells}
    return {name: status_of(last_row(folder), alive=held(folder)) for name, folder in folders.items()}


def plan_of(
    grid: Grid, runs: Path, workers: int | None = None, seeds: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the plan for JSON: every cell with its status, what differs, fairness, seeds needed, time."""
    names = ("run_id", "arm", "algorithm", "seed", "control", "config_hash")
    status = _states(grid, runs)
    left = [cell for cell in grid.cells if status[cell.run_id] != "finished"]

    def attributes(cell: Cell) -> dict[str, Any]:
        return {name: getattr(cell, name) for name in names}

    return {
        "experiment": grid.experiment,
        "question": grid.question,
        "cells": [attributes(cell) | {"status": status[cell.run_id]} for cell in grid.cells],
        "settings": differing({cell.arm: cell.settings for cell in grid.cells}),
        "slots": _slots(grid),
        "guard": [finding.as_dict() for finding in fairness.planned(grid.cells)],
        "seeds": seeds,
        "estimate": time_of(left, runs, workers).as_dict(),
    }


def describe(
    grid: Grid,
    runs: Path,
    workers: int | None = None,
    form: str = "table",
    seeds: dict[str, Any] | None = None,
) -> None:
    """Print the plan: arms with the settings that differ, the slots that differ, fairness, seeds needed,
    time.
    """
    grid = grid.newest(runs)
    refuse_unsafe(runs, grid.experiment, grid.cells)
    if form == "json":
        echo(document(plan_of(grid, runs, workers, seeds)), nl=False)
        return
    status = _states(grid, runs)
    left = [cell for cell in grid.cells if status[cell.run_id] != "finished"]
    slots = _slots(grid)
    time = time_of(left, runs, workers)
    echo(f"{grid.experiment}: {grid.question}\n")
    show(_arm_rows(grid, status), form)
    if slots:
        echo("\nSlots in which the algorithms differ\n")
        show(slots, form)
    echo()
    for line in edits(runs, [cell for cell in grid.cells if not folder_of(runs, cell).exists()]):
        echo(f"Edited: {line}; these are new cells.")
    tell(fairness.planned(grid.cells))
    if seeds:
        echo(_seeds_in_words(seeds))
    done = f", {len(grid.cells) - len(left)} finished" if len(left) < len(grid.cells) else ""
    echo(f"{len(grid.cells)} cells ({len(grid.arms)} arms x {len(grid.seeds)} seeds){done}; {time}")
    for waiting in grid.waiting:
        echo(f"Later: {waiting}.")


def _arm_rows(grid: Grid, status: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row an arm, with the settings in which the arms differ."""
    settings = differing({cell.arm: cell.settings for cell in grid.cells})
    settings.pop("algorithm", None)  # the arm's label and the table of slots say it
    rows = []
    for arm in grid.arms:
        mine = [cell for cell in grid.cells if cell.arm == arm]
        finished = sum(status[cell.run_id] == "finished" for cell in mine)
        row = {
            "arm": arm,
            "kind": "control" if mine[0].control else "crossed",
            "algorithm": mine[0].algorithm,
            "seeds": " ".join(str(cell.seed) for cell in mine),
            "finished": f"{finished}/{len(mine)}",
        }
        rows.append(row | {short(key): in_words(values[arm]) for key, values in settings.items()})
    return rows


def _slots(grid: Grid) -> list[dict[str, str]]:
    """Return a row for each slot in which algorithms differ, its choice in each of them."""
    algorithms = {}
    for cell in grid.cells:
        slots = f" + slots {json.dumps(cell.settings.slots)}" if cell.settings.slots else ""
        algorithms[algorithm_label(cell.settings.algorithm) + slots] = cell.resolved
    first, *others = algorithms.values()
    differing_slots = dict.fromkeys(chain.from_iterable(differences(first, other) for other in others))
    lines = {}
    for slot in differing_slots:
        lines[slot] = choices([getattr(algorithm, slot) for algorithm in algorithms.values()])
    return [{"slot": slot} | dict(zip(algorithms, line, strict=True)) for slot, line in lines.items()]


class _SearchRuns(NamedTuple):
    """How many runs a search has done, starts now, and comes to."""

    done: int
    now: int
    expected: int
    most: int
    full_grid: int

    @property
    def left(self) -> int:
        """Runs that are still to be trained, as far as can be said."""
        return max(self.now, self.expected - self.done) if self.now else 0


def _count_runs(region: Region) -> _SearchRuns:
    everything = region.everything
    most = min(everything, region.settings.runs or everything)
    expected = min(most, round(usual(region.neighbours, region.rule) * len(region.series)))
    return _SearchRuns(len(region.progress.done), len(region.progress.now), expected, most, everything)


def describe_search(grid: Grid, region: Region, runs: Path, workers: int | None, form: str) -> None:
    """Print the plan of a search: what is searched, its runs, their time."""
    counts = _count_runs(region)
    time = time_of(grid.cells, runs, workers)
    time = time._replace(seconds=time.seconds / len(grid.cells) * counts.left)
    if form == "json":
        whole = {
            "experiment": grid.experiment,
            "question": grid.question,
            "kind": "region",
            "arms": [arm.label for arm in region.series],
            "columns": list(region.columns),
            "along": region.settings.along,
            "values": list(region.settings.lattice),
            "runs": counts._asdict(),
            "estimate": time.as_dict(),
        }
        echo(document(whole), nl=False)
        return
    echo(f"{grid.experiment}: {grid.question}\n")
    show(_search_rows(region), form)
    echo(f"\n{_searched_values(region)}")
    if all(cell.settings.stop.after_collapse is None for cell in grid.cells):
        echo("Note: stop.after_collapse is off, so collapsed runs train on to their last iteration.")
    many = f"At most {counts.most} runs, usually about {counts.expected}"
    many += f" (the full grid has {counts.full_grid})"
    echo(f"{many}; {counts.done} are finished.{'' if counts.now else ' ' + state(region)}")
    if counts.left:
        pace = f"{time.workers} at a time, less where runs stop at their collapse ({time.basis})"
        echo(f"About {duration(time.seconds)}, {pace}")


def _search_rows(region: Region) -> list[dict[str, str]]:
    """A row an arm: in each column how many runs are done and begin now."""
    rows = []
    for i, arm in enumerate(region.series):
        row = {"arm": arm.label, "kind": "control" if arm.control else "crossed"}
        for j, column in enumerate(region.columns):
            ended = _count_in(region.progress.done, i, j)
            begun = _count_in(region.progress.now, i, j)
            row[_column_name(column)] = f"{ended} done" + (f", {begun} now" if begun else "")
        rows.append(row)
    return rows


def _column_name(column: Mapping[str, float]) -> str:
    return ", ".join(f"{short(key)} {column[key]:g}" for key in reversed([*column])) or "runs"


def _count_in(trials: Iterable[Any], arm: int, column: int) -> int:
    """How many trials an arm has in a column."""
    return sum((trial.arm, trial.column) == (arm, column) for trial in trials)


def _searched_values(region: Region) -> str:
    rule = region.rule
    values = region.settings.lattice
    seeds = f"{rule.probes} seeds for a first try, {rule.seeds} next to a boundary"
    if rule.full:
        seeds = f'{rule.seeds} seeds everywhere (search = "full")'
    listed = ", ".join(f"{value:g}" for value in values)
    along = region.settings.along
    return f"{along} from {values[0]:g} to {values[-1]:g} in {len(values)} values ({listed}); {seeds}."


def state(region: Region) -> str:
    """Return the sentence on how far the search is."""
    spent = f"{len(region.progress.done)} of the full grid's {region.everything} runs"
    if region.unjudged:
        why = "runs are finished but too short for the collapse rule; give them more iterations."
        return f"Search stopped: {region.unjudged} {why}"
    if region.progress.now:
        return f"The search is not done after {spent}: the same command resumes it."
    if region.progress.exhausted:
        return f"Search stopped after {spent}: budget exhausted; raise [region] runs or minutes to continue."
    return f"Every boundary is found, with {spent}."


def seeds_for(
    grid: Grid, runs: Path, ratio: float, power: float, incidence: float | None
) -> dict[str, Any] | None:
    """Return the seeds that detect the hazard ratio and what the planned ones detect; None for a grid of one
    arm.
    """
    from sorl.analysis import stats

    if ratio <= 0 or ratio == 1:
        raise InputError(
            f"--hazard-ratio {ratio:g} is no effect: it must be above 0 and not 1, for example 0.2"
        )
    for name, value, low in (("power", power, ALPHA), ("incidence", incidence, 0)):
        if value is not None and not low < value < 1:
            raise InputError(f"--{name} {value:g} is not between {low:g} and 1; use e.g. --{name} 0.8")
    if len(grid.arms) < 2:
        return None
    arms = {cell.arm: cell.settings for cell in grid.cells}
    share, basis = recorded_incidence(arms, runs) if incidence is None else (incidence, "as given")
    planned = len(grid.seeds)
    comparisons = len(arms) - 1
    return {
        "hazard_ratio": ratio,
        "power": power,
        "alpha": ALPHA,
        "incidence": share,
        "incidence_basis": basis,
        "collapses": stats.collapses_needed(ratio, power),
        "seeds": stats.seeds_needed(ratio, share, power),
        "comparisons": comparisons,
        "seeds_for_all_comparisons": stats.seeds_needed(ratio, share, power, ALPHA / comparisons),
        "planned_seeds": planned,
        "planned_power": stats.power_of(planned, ratio, share),
        "planned_detectable": stats.detectable(planned, share, power),
        "planned_smallest_p": stats.smallest_p(planned, planned),
    }


def _seeds_in_words(n: Mapping[str, Any]) -> str:
    planned = "1 seed" if n["planned_seeds"] == 1 else f"{n['planned_seeds']} seeds"
    every = f" ({n['seeds_for_all_comparisons']} to detect it in each of {n['comparisons']} comparisons)"
    too_few = f" With {planned} per arm the smallest possible p-value is {n['planned_smallest_p']:.2g}."
    return (
        f"To detect a hazard ratio of {n['hazard_ratio']:g} with {100 * n['power']:.0f} % power at alpha .05:"
        f" {n['collapses']:.0f} collapses, about {n['seeds']} seeds per"
        f" arm{every if n['comparisons'] > 1 else ''}, if {100 * n['incidence']:.0f} % of the reference arm's"
        f" runs collapse ({n['incidence_basis']}).\nThe planned {planned} per arm detect it with"
        f" {100 * n['planned_power']:.0f} % power, and a hazard ratio of {n['planned_detectable']:.2g} or"
        f" less with {100 * n['power']:.0f} %.{too_few if n['planned_smallest_p'] > n['alpha'] else ''}"
    )


def recorded_incidence(arms: Mapping[str, RunSettings], runs: Path) -> tuple[float, str]:
    """Return the Kaplan-Meier incidence at the end of a run, of the recorded arm that collapsed most; its
    basis.
    """
    from sorl.analysis.runs import every_run, replicate
    from sorl.analysis.survival import observed, survival_at

    collapsed = []
    recorded_runs = 0
    rows: Any = every_run(Reader(runs)) if (runs / "sorl.duckdb").is_file() else []
    settings = [replicate(config) for config in rows["config"]] if len(rows) else []
    for arm, wanted in arms.items() if settings else ():
        same = replicate(wanted.model_dump_json())
        mine = observed(rows[[s == same for s in settings]])
        recorded_runs += len(mine)
        if len(mine) and (events := int(mine["event"].sum())):
            share = 1 - survival_at(mine, wanted.iterations)
            # not 1, though all collapsed
            share = share if 0 < share < 1 else (events + 0.5) / (len(mine) + 1)
            collapsed.append((share, f"{arm}: {events} of {len(mine)} recorded runs"))
    assumption = "assumed: none is recorded"
    if recorded_runs:
        assumption = f"assumed: none of {recorded_runs} recorded runs did"
    return max(collapsed, key=lambda collapses: collapses[0], default=(ASSUMED, assumption))
