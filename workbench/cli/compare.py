"""`sorl compare EXPERIMENT`: its arms with intervals and tests over seeds; for a search, the
stable regions.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

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

    from sorl.analysis.region import Landscape


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
    from sorl.analysis.region import region_file
    from sorl.analysis.runs import runs as runs_in

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
        _export(each, export)
    if searched:
        show_region(reader, name, form, against)
        return
    frame = arms.figures(each, against)
    # the bare numbers; the other formats have readable cells and say what these mean
    if form in ("csv", "json"):
        show(frame, form)
        return
    _show_comparison(reader, each, frame, form)


def _export(each: "pd.DataFrame", file: Path) -> None:
    """Write each run's time to collapse or censoring."""
    from sorl.analysis.survival import observed

    rows = observed(each).drop(columns="recovered")
    with writing(file, f"{len(rows)} runs"):
        rows.assign(event=rows["event"].astype(int)).to_csv(file, index=False)


def _show_comparison(reader: Reader, each: "pd.DataFrame", frame: "pd.DataFrame", form: str) -> None:
    """Print the tables of a comparison, and what they say; `each` are the runs, `frame` the arms."""
    from sorl.analysis import compare as arms
    from sorl.analysis import forks

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
        about_forks = [forks.sentence(children), forks.ABOUT] if len(children) else []
        echo("\n" + "\n".join([*about_forks, arms.answer(frame), *arms.reading(frame)]))
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
    findings = [*fairness.planned(runs), *fairness.recorded(reader, runs)] if runs else []
    if unread:
        more = f" and {len(unread) - 5} more" if len(unread) > 5 else ""
        whose = f"{len(unread)} of {len(unread) + len(runs)} runs ({', '.join(unread[:5])}{more})"
        message = f"the settings of {whose} cannot be read, or are of another version of sorl"
        findings.append(
            fairness.Finding("task", f"{message}: the fairness of their comparison is not checked")
        )
    return findings


def tell(findings: Iterable[fairness.Finding], err: bool = False) -> None:
    """Print the findings, a line each, violations first, on stdout or on stderr."""
    for line in fairness.lines(findings):
        echo(cell(line), err=err)


def show_region(reader: Reader, experiment: str, form: str = "table", against: str | None = None) -> None:
    """Print areas and boundaries by both readings of survival; csv and json hold every bare number."""
    from sorl.analysis import region
    from sorl.analysis.runs import KEPT

    landscape = region.landscape(reader, experiment)
    readings = [_RegionReading.of(each, against) for each in (landscape, landscape.read_as(KEPT))]
    if form in ("json", "csv"):
        _show_region_numbers(readings, form)
    else:
        _show_region_tables(readings, form)


class _RegionReading(NamedTuple):
    """A region by one reading of survival, and its tables."""

    landscape: "Landscape"
    series: "pd.DataFrame"
    columns: "pd.DataFrame"

    @classmethod
    def of(cls, landscape: "Landscape", against: str | None) -> Self:
        """The reading with its tables; areas are compared with that of `against`."""
        from sorl.analysis import region

        return cls(landscape, region.by_series(landscape, against), region.by_column(landscape))


def _show_region_numbers(readings: Sequence[_RegionReading], form: str) -> None:
    import pandas as pd

    from sorl.analysis import region

    survivals = [reading.landscape.survival for reading in readings]

    def joined(frames: "list[pd.DataFrame]") -> "pd.DataFrame":
        pairs = zip(survivals, frames, strict=True)
        return pd.concat([frame.assign(survival=survival) for survival, frame in pairs])

    series = joined([reading.series for reading in readings])
    columns = joined([reading.columns for reading in readings])
    if form == "json":
        points = joined([region.by_point(reading.landscape) for reading in readings])
        parts = {"series": series, "columns": columns, "points": points}
        echo(document({name: records(*plain(frame)) for name, frame in parts.items()}), nl=False)
        return
    keys = ["series", "slice", "survival"]
    show(columns.merge(series, on=keys, suffixes=("", "_in_all")), form)


def _show_region_tables(readings: Sequence[_RegionReading], form: str) -> None:
    from sorl.analysis import region_words

    for landscape, sizes, edges in readings:
        _heading(f"Stable area, {landscape.survival}", form)
        show(region_words.readable_series(sizes), form)
        ends = region_words.FALLS[landscape.survival]
        along = landscape.settings.along
        _heading(f"Boundary: {along} at which half of the runs {ends}, by {landscape.across}", form)
        show(region_words.readable_columns(edges), form)
    if form != "latex":
        (first, *basis), (second, *_) = (region_words.answer(*reading) for reading in readings)
        echo("\n" + "\n".join([first, second, *basis]))
