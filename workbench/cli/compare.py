"""`sorl compare EXPERIMENT`: its arms with intervals and tests over seeds; for a search, the
stable regions.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, Context, Option

from sorl.algorithms import resolve
from sorl.cli.shared import current, experiment_of, one_of
from sorl.cli.tables import FORMATS, cell, document, echo, plain, records, show, writing
from sorl.grid import fairness
from sorl.grid.config import load
from sorl.spec import InputError, RunSettings, nearest
from sorl.spec.names import FolderName
from sorl.store.reader import Reader

if TYPE_CHECKING:
    import pandas as pd


def compare(
    ctx: Context,
    experiment: str = Argument(..., help="An experiment or its grid file."),
    form: str = one_of("--format", *FORMATS, default="table", more="; csv and json hold unrounded numbers"),
    against: str | None = Option(None, metavar="ARM", help="Reference arm; default: the first."),
    export: Path | None = Option(
        None, metavar="FILE.csv", help="Also write each run's time to collapse or censoring."
    ),
) -> None:
    """Compare the arms of an experiment: success, collapses and time to collapse, with intervals and tests.

    Forks are compared within their parents as well.
    """
    from sorl.analysis import compare as arms
    from sorl.analysis import forks
    from sorl.analysis.region import region_file
    from sorl.analysis.runs import runs as runs_in
    from sorl.analysis.survival import observed

    name = experiment_of(experiment)
    reader = current(ctx.obj)
    each = runs_in(reader, name)
    searched = region_file(reader, name) is not None
    each = each if searched else in_file_order(each, ctx.obj, name)
    names = list(dict.fromkeys(each["arm"]))
    if against is not None and against not in names and not searched:
        known = f"its arms: {'; '.join(names)}"
        raise InputError(f"--against '{against}': {name} has no such arm{nearest(against, names)}; {known}")
    if export is not None:
        rows = observed(each).drop(columns="recovered")
        with writing(export, f"{len(rows)} runs"):
            rows.assign(event=rows["event"].astype(int)).to_csv(export, index=False)
    if searched:
        show_region(reader, name, form, against)
        return
    frame = arms.figures(each, against)
    # the bare numbers; the other formats have readable cells and say what these mean
    if form in ("csv", "json"):
        show(frame, form)
        return
    show(arms.readable(frame), form)
    pairs = arms.against_reference(frame)
    corrected = ", p-values also with Holm's correction" if len(pairs) > 1 else ""
    reference = str(frame["reference"].dropna().iloc[0]) if "reference" in frame else ""
    children = forks.children(reader)
    children = children[children["run_id"].isin(each["run_id"])]
    parts = (
        (
            "Time to collapse (Kaplan-Meier), runs without one censored where they end",
            arms.time_to_collapse(frame),
        ),
        (f"Against {reference}{corrected}", pairs),
        ("Over the conditions that all algorithms share", arms.over_conditions(frame)),
        ("Forks against those of the same parent that are left unchanged", forks.table(children)),
    )
    for title, part in parts:
        if len(part):
            _heading(title, form)
            show(part, form)
    if form != "latex":
        said = [forks.sentence(children), forks.ABOUT] if len(children) else []
        echo("\n" + "\n".join([*said, arms.answer(frame), *arms.reading(frame)]))
        tell(unfair(reader, each))


def _heading(title: str, form: str) -> None:
    mark = {"md": "### ", "latex": "% "}.get(form, "")
    echo(f"\n{mark}{cell(title)}\n")


def in_file_order(each: "pd.DataFrame", runs: Path, experiment: str) -> "pd.DataFrame":
    """Sort arms in the order of the grid file next to the runs; arms that it does not name come last."""
    try:
        file = runs / FolderName(experiment, "experiment") / "experiment.toml"
        order = {arm: position for position, arm in enumerate(load(file).arms)}
    except InputError:  # runs of another trainer have no grid file, and one of another version may not load
        return each
    return each.sort_values("arm", key=lambda arms: arms.map(order), kind="stable", ignore_index=True)


def unfair(reader: Reader, frame: "pd.DataFrame") -> list[fairness.Finding]:
    """Return findings in recorded runs (run_id, arm, seed, status, config); those without settings are left
    out, and those with settings that cannot be read are named.
    """
    runs = []
    unread = []
    for row in frame[frame["config"].notna()].to_dict(orient="records"):
        try:
            settings = RunSettings.model_validate_json(row["config"])
            names = (row["run_id"], str(row["arm"]), int(row["seed"]))
            algorithm = resolve(settings.algorithm, settings.slots)
            runs.append(fairness.Run(*names, settings, algorithm, row["status"] == "finished"))
        except (ValueError, InputError):
            unread.append(str(row["run_id"]))
    found = [*fairness.planned(runs), *fairness.recorded(reader, runs)] if runs else []
    if unread:
        more = f" and {len(unread) - 5} more" if len(unread) > 5 else ""
        whose = f"{len(unread)} of {len(unread) + len(runs)} runs ({', '.join(unread[:5])}{more})"
        message = f"the settings of {whose} cannot be read, or are of another version of sorl"
        found.append(fairness.Finding("task", f"{message}: the fairness of their comparison is not checked"))
    return found


def tell(findings: Iterable[fairness.Finding], err: bool = False) -> None:
    """Print the findings, a line each, violations first, on stdout or on stderr."""
    for line in fairness.lines(findings):
        echo(cell(line), err=err)


def show_region(reader: Reader, experiment: str, form: str = "table", against: str | None = None) -> None:
    """Print areas and boundaries by both readings of survival; csv and json hold every bare number."""
    import pandas as pd

    from sorl.analysis import region, region_words
    from sorl.analysis.runs import KEPT

    found = region.landscape(reader, experiment)
    both = [found, found.read_as(KEPT)]
    series = [region.by_series(one, against) for one in both]
    columns = [region.by_column(one) for one in both]
    if form in ("json", "csv"):
        tables = {"series": series, "columns": columns, "points": [region.by_point(one) for one in both]}
        parts = {
            name: pd.concat(
                [frame.assign(survival=one.survival) for one, frame in zip(both, frames, strict=True)]
            )
            for name, frames in tables.items()
        }
        if form == "json":
            echo(document({name: records(*plain(frame)) for name, frame in parts.items()}), nl=False)
            return
        keys = ["series", "slice", "survival"]
        show(parts["columns"].merge(parts["series"], on=keys, suffixes=("", "_in_all")), form)
        return
    for one, sizes, edges in zip(both, series, columns, strict=True):
        _heading(f"Stable area, {one.survival}", form)
        show(region_words.readable_series(sizes), form)
        ends = region_words.FALLS[one.survival]
        _heading(f"Boundary: {one.settings.along} at which half of the runs {ends}, by {one.across}", form)
        show(region_words.readable_columns(edges), form)
    if form != "latex":
        (first, *basis), (second, *_) = (
            region_words.answer(*parts) for parts in zip(both, series, columns, strict=True)
        )
        echo("\n" + "\n".join([first, second, *basis]))
