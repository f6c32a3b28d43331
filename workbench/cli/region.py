"""What `run`, `plan` and `compare` say of an experiment of kind region."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from workbench.cli.tables import as_json, show
from workbench.cli.text import echo

if TYPE_CHECKING:
    import pandas as pd

    from workbench.grid.estimate import Estimate
    from workbench.grid.file import Grid
    from workbench.grid.region import Region
    from workbench.store.reader import Reader


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
    """The tables at the end of `sorl run`, and how the search stands."""
    from workbench.spec import InputError

    assert grid.region is not None
    try:
        show_region(reader, grid.experiment)
    except InputError as error:
        echo(str(error), err=True)
    echo(f"\n{stands(grid.region)}")


def stands(region: Region) -> str:
    """How far the search is, in a sentence."""
    progress = region.progress
    spent = f"{len(progress.done)} of the full grid's {region.everything} runs"
    if region.unjudged:
        return (
            f"Cannot go on: {region.unjudged} runs are finished but too short for the collapse rule; "
            "give them more iterations."
        )
    if progress.now:
        return f"The search goes on after {spent}: the same command resumes it."
    if progress.exhausted:
        return f"Its budget ended the search after {spent}: raise [region] runs or minutes to go on."
    return f"Every boundary is found, with {spent}."


def describe_region(grid: Grid, form: str, seconds_a_run: float, time: Estimate) -> None:
    """The plan of a search: what is searched, how many runs it takes at most and usually, how long."""
    from workbench.grid.progress import duration
    from workbench.grid.search import usual

    region = grid.region
    assert region is not None
    expected = _expected(region, usual(region.neighbours, region.rule))
    left = max(len(region.progress.now), expected - len(region.progress.done)) if region.progress.now else 0
    if form == "json":
        echo(_as_json(grid, region, expected, seconds_a_run * left / time.workers, time))
        return
    echo(f"{grid.experiment}: {grid.question}\n")
    show(_columns(region), form)
    values = region.settings.lattice
    echo(
        f"\n{region.settings.along} from {values[0]:g} to {values[-1]:g} in {len(values)} values "
        f"({', '.join(f'{value:g}' for value in values)}); {_seeds(region)}."
    )
    if not any(cell.settings.stop.after_collapse is not None for cell in grid.cells):
        echo("Note: stop.after_collapse is off, so runs that have collapsed train on to their last iteration.")
    echo(
        f"At most {region.most} runs, usually about {expected} (the full grid has {region.everything}); "
        f"{len(region.progress.done)} are over. {stands(region) if not region.progress.now else ''}".rstrip()
        + (
            f"\nAbout {duration(seconds_a_run * left / time.workers)}, {time.workers} at a time, less what runs that "
            f"stop at their collapse save ({time.basis})"
            if left
            else ""
        )
    )


def _seeds(region: Region) -> str:
    if region.rule.full:
        return f'{region.rule.seeds} seeds everywhere (search = "full")'
    return f"{region.rule.probes} seeds for a first try, {region.rule.seeds} beside a boundary"


def _expected(region: Region, a_series: float) -> int:
    return min(region.most, round(a_series * len(region.series)))


def _columns(region: Region) -> pd.DataFrame:
    """One row per arm: how many runs of each column are over."""
    import pandas as pd

    from workbench.grid.keys import short

    rows = []
    for i, arm in enumerate(region.series):
        row: dict[str, Any] = {"arm": arm.label, "kind": "control" if arm.control else "crossed"}
        for j, column in enumerate(region.columns):
            name = ", ".join(f"{short(key)} {column[key]:g}" for key in reversed(column)) or "runs"
            over = sum(t.arm == i and t.column == j for t in region.progress.done)
            now = sum(t.arm == i and t.column == j for t in region.progress.now)
            row[name] = f"{over} done" + (f", {now} now" if now else "")
        rows.append(row)
    return pd.DataFrame(rows)


def _as_json(grid: Grid, region: Region, expected: int, seconds: float, time: Estimate) -> str:
    settings = region.settings
    return json.dumps(
        {
            "experiment": grid.experiment,
            "question": grid.question,
            "kind": "region",
            "arms": [arm.label for arm in region.series],
            "columns": list(region.columns),
            "along": settings.along,
            "values": list(settings.lattice),
            "runs": {
                "done": len(region.progress.done), "now": len(region.progress.now), "expected": expected,
                "most": region.most, "full_grid": region.everything,
            },
            "estimate": {"seconds": round(seconds), "workers": time.workers, "basis": time.basis},
        },
        indent=2, ensure_ascii=False,
    )  # fmt: skip


def _heading(title: str, form: str) -> None:
    mark = {"md": "### ", "latex": "% "}.get(form, "")
    echo(f"\n{mark}{title}\n")
