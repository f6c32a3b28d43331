"""`sorl compare EXPERIMENT`: the table of a grid with intervals, seeds as replicates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.cells import runs_of
from workbench.cli.tables import check_format, show
from workbench.cli.text import echo

if TYPE_CHECKING:
    import pandas as pd


def compare(
    ctx: typer.Context,
    experiment: Annotated[str, typer.Argument(help="Experiment, or its grid file.", show_default=False)],
    form: Annotated[
        str, typer.Option("--format", help="table, csv, md, latex or json; csv and json hold every raw figure.")
    ] = "table",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="ARM", help="Arm that the others are compared with; default: the first.", show_default=False
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="Also write each run's time to collapse or censoring there.", show_default=False
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
    from workbench.cli import fairness
    from workbench.cli.database import current
    from workbench.cli.region import show_region

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
    fairness.tell(fairness.recorded(reader, each))


def _heading(title: str, form: str) -> None:
    from workbench.cli.text import cell

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
    """One line per run: run_id, arm, seed, time in steps, event (1 = the collapse, 0 = censored)."""
    from workbench.analysis.survival import observed
    from workbench.cli.database import note
    from workbench.spec import InputError

    rows = observed(each)
    try:
        rows.assign(event=rows["event"].astype(int)).to_csv(file, index=False)
    except OSError as error:
        raise InputError(f"cannot write --export '{file}': {error.strerror or error}") from None
    note(f"wrote {file}: {len(rows)} runs")


def in_file_order(each: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Arms in the order of the grid file that lies beside the runs; those that it does not name come last."""
    from workbench.grid.config import load
    from workbench.spec import InputError

    try:
        order = {arm: position for position, arm in enumerate(load(file).arms)}
    except InputError:  # runs of another trainer have no grid file, and one of another version may not load
        return each
    return each.sort_values("arm", key=lambda arms: arms.map(order), kind="stable", ignore_index=True)
