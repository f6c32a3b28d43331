"""`sorl compare EXPERIMENT`: its arms with intervals and tests over seeds; for a search, the stable regions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.shared import echo, runs_of
from workbench.cli.tables import as_json, check_format, show

if TYPE_CHECKING:
    import pandas as pd

    from workbench.grid.cell import Estimate
    from workbench.grid.config import Grid
    from workbench.grid.search import Region
    from workbench.store.reader import Reader


def compare(
    ctx: typer.Context,
    experiment: Annotated[str, typer.Argument(help="An experiment or its grid file.", show_default=False)],
    form: Annotated[
        str, typer.Option("--format", help="table, csv, md, latex or json; csv and json hold unrounded numbers.")
    ] = "table",
    against: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="Reference arm; default: the first.", show_default=False),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Also write each run's time to collapse or censoring to this file.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare the arms of an experiment: success, collapses and time to collapse, with intervals and tests."""
    check_format(form)
    name = Path(experiment).stem if experiment.endswith(".toml") else experiment
    show_comparison(runs_of(ctx), name, form, against, export)


def show_comparison(
    runs: Path, experiment: str, form: str = "table", reference: str | None = None, export: Path | None = None
) -> None:
    """Print the comparison; csv and json carry the bare numbers, the others readable cells and what they say."""
    from workbench.analysis import compare as arms
    from workbench.analysis.region import region_file
    from workbench.analysis.runs import runs as runs_in
    from workbench.cli import results
    from workbench.cli.shared import current

    reader = current(runs)
    if region_file(reader, experiment) is not None:
        if export is not None:
            _export(runs_in(reader, experiment), export)
        show_region(reader, experiment, form, reference)
        return
    each = in_file_order(runs_in(reader, experiment), runs / experiment / "experiment.toml")
    _check_arm(reference, list(dict.fromkeys(each["arm"])), experiment)
    if export is not None:
        _export(each, export)
    frame = arms.figures(each, reference)
    if form in ("csv", "json"):
        show(frame, form)
        return
    show(arms.readable(frame), form)
    pairs = arms.against_reference(frame)
    corrected = ", p-values also with Holm's correction" if len(pairs) > 1 else ""
    parts = (
        ("Time to collapse (Kaplan-Meier), runs without one censored where they end", arms.time_to_collapse(frame)),
        (f"Against {_reference(frame)}{corrected}", pairs),
        ("Over the conditions that all algorithms share", arms.over_conditions(frame)),
    )
    for title, part in parts:
        if len(part):
            _heading(title, form)
            show(part, form)
    if form == "latex":
        return
    echo("\n" + "\n".join([arms.answer(frame), *arms.reading(frame)]))
    results.tell(results.unfair(reader, each))


def _heading(title: str, form: str) -> None:
    from workbench.cli.shared import cell

    mark = {"md": "### ", "latex": "% "}.get(form, "")
    echo(f"\n{mark}{cell(title)}\n")


def _reference(frame: pd.DataFrame) -> str:
    return str(frame["reference"].dropna().iloc[0]) if "reference" in frame else ""


def _check_arm(name: str | None, arms: list[str], experiment: str) -> None:
    from workbench.spec import InputError, nearest

    if name is not None and name not in arms:
        raise InputError(
            f"--against '{name}': {experiment} has no such arm{nearest(name, arms)}; its arms: {'; '.join(arms)}"
        )


def _export(each: pd.DataFrame, file: Path) -> None:
    """Write one line per run: run_id, arm, seed, time in steps, event (1 = the collapse, 0 = censored)."""
    from workbench.analysis.survival import observed
    from workbench.cli.shared import note
    from workbench.spec import InputError

    rows = observed(each)
    try:
        rows.assign(event=rows["event"].astype(int)).to_csv(file, index=False)
    except OSError as error:
        raise InputError(f"cannot write --export '{file}': {error.strerror or error}") from None
    note(f"wrote {file}: {len(rows)} runs")


def in_file_order(each: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Sort arms in the order of the grid file next to the runs; arms that it does not name come last."""
    from workbench.grid.config import load
    from workbench.spec import InputError

    try:
        order = {arm: position for position, arm in enumerate(load(file).arms)}
    except InputError:  # runs of another trainer have no grid file, and one of another version may not load
        return each
    return each.sort_values("arm", key=lambda arms: arms.map(order), kind="stable", ignore_index=True)


def show_region(reader: Reader, experiment: str, form: str = "table", against: str | None = None) -> None:
    """Print areas and boundaries by both readings of survival; csv and json carry every bare number."""
    import pandas as pd

    from workbench.analysis.region import (
        FALLS,
        answer,
        by_column,
        by_point,
        by_series,
        landscape,
        readable_columns,
        readable_series,
    )
    from workbench.analysis.runs import KEPT

    found = landscape(reader, experiment)
    both = [found, found.read_as(KEPT)]
    series, columns = [by_series(one, against) for one in both], [by_column(one) for one in both]
    if form in ("json", "csv"):
        every = {"series": series, "columns": columns, "points": [by_point(one) for one in both]}
        parts = {
            name: pd.concat([frame.assign(survival=one.survival) for one, frame in zip(both, frames, strict=True)])
            for name, frames in every.items()
        }
        if form == "json":
            echo(json.dumps({name: json.loads(as_json(frame)) for name, frame in parts.items()}, indent=2))
            return
        keys = ["series", "slice", "survival"]
        show(parts["columns"].merge(parts["series"], on=keys, suffixes=("", "_in_all")), form)
        return
    for one, sizes, edges in zip(both, series, columns, strict=True):
        _heading(f"Stable area, {one.survival}", form)
        show(readable_series(sizes), form)
        _heading(
            f"Boundary: {one.settings.along} at which half of the runs {FALLS[one.survival]}, by {one.across}", form
        )
        show(readable_columns(edges), form)
    if form != "latex":
        (first, *basis), (second, *_) = (answer(*parts) for parts in zip(both, series, columns, strict=True))
        echo("\n" + "\n".join([first, second, *basis]))


def report(grid: Grid, reader: Reader) -> None:
    """Print the tables at the end of `sorl run`, and the state of the search."""
    from workbench.spec import InputError

    assert grid.region is not None
    try:
        show_region(reader, grid.experiment)
    except InputError as error:
        echo(str(error), err=True)
    echo(f"\n{_state(grid.region)}")


def _state(region: Region) -> str:
    progress = region.progress
    spent = f"{len(progress.done)} of the full grid's {region.everything} runs"
    if region.unjudged:
        return (
            f"Search stopped: {region.unjudged} runs are finished but too short for the collapse rule; "
            "give them more iterations."
        )
    if progress.now:
        return f"The search is not done after {spent}: the same command resumes it."
    if progress.exhausted:
        return f"Search stopped after {spent}: budget exhausted; raise [region] runs or minutes to continue."
    return f"Every boundary is found, with {spent}."


def describe_region(grid: Grid, form: str, time: Estimate) -> None:
    """Print the plan of a search: what is searched, its runs, their time. `time` is that of all cells."""
    import pandas as pd

    from workbench.grid.progress import duration
    from workbench.grid.search import usual

    region = grid.region
    assert region is not None
    settings, progress, rule, values = region.settings, region.progress, region.rule, region.settings.lattice
    expected = min(region.most, round(usual(region.neighbours, rule) * len(region.series)))
    left = max(len(progress.now), expected - len(progress.done)) if progress.now else 0
    seconds = time.seconds / len(grid.cells) * left
    if form == "json":
        document = {
            "experiment": grid.experiment,
            "question": grid.question,
            "kind": "region",
            "arms": [arm.label for arm in region.series],
            "columns": list(region.columns),
            "along": settings.along,
            "values": list(values),
            "runs": {
                "done": len(progress.done), "now": len(progress.now), "expected": expected,
                "most": region.most, "full_grid": region.everything,
            },
            "estimate": {"seconds": round(seconds), "workers": time.workers, "basis": time.basis},
        }  # fmt: skip
        echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    echo(f"{grid.experiment}: {grid.question}\n")
    show(pd.DataFrame(_rows(region)), form)
    seeds = f"{rule.probes} seeds for a first try, {rule.seeds} next to a boundary"
    if rule.full:
        seeds = f'{rule.seeds} seeds everywhere (search = "full")'
    listed = ", ".join(f"{value:g}" for value in values)
    echo(f"\n{settings.along} from {values[0]:g} to {values[-1]:g} in {len(values)} values ({listed}); {seeds}.")
    if not any(cell.settings.stop.after_collapse is not None for cell in grid.cells):
        echo("Note: stop.after_collapse is off, so collapsed runs train on to their last iteration.")
    state = "" if progress.now else f" {_state(region)}"
    echo(
        f"At most {region.most} runs, usually about {expected} (the full grid has {region.everything}); "
        f"{len(progress.done)} are finished.{state}"
    )
    if left:
        saved = "less what runs that stop at their collapse save"
        echo(f"About {duration(seconds)}, {time.workers} at a time, {saved} ({time.basis})")


def _rows(region: Region) -> list[dict[str, Any]]:
    """Return one row per arm: the finished and the present runs of each column."""
    from workbench.grid.cell import short

    rows = []
    for i, arm in enumerate(region.series):
        row: dict[str, Any] = {"arm": arm.label, "kind": "control" if arm.control else "crossed"}
        for j, column in enumerate(region.columns):
            name = ", ".join(f"{short(key)} {column[key]:g}" for key in reversed(column)) or "runs"
            trials = (region.progress.done, region.progress.now)
            done, now = (sum((t.arm, t.column) == (i, j) for t in some) for some in trials)
            row[name] = f"{done} done" + (f", {now} now" if now else "")
        rows.append(row)
    return rows
