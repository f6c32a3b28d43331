"""`sorl compare EXPERIMENT`: the table of a grid with intervals, seeds as replicates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli.cells import runs_of
from workbench.cli.tables import check_format, show

if TYPE_CHECKING:
    import pandas as pd


def compare(
    ctx: typer.Context,
    experiment: Annotated[str, typer.Argument(help="Experiment, or its grid file.", show_default=False)],
    form: Annotated[str, typer.Option("--format", help="table, csv, md, latex or json.")] = "table",
) -> None:
    """Compare the arms of an experiment: success, collapses, onset, clip fraction, gradient norm, with intervals."""
    check_format(form)
    name = Path(experiment).stem if experiment.endswith(".toml") else experiment
    show_comparison(runs_of(ctx), name, form)


def show_comparison(runs: Path, experiment: str, form: str = "table") -> None:
    """Print the comparison; csv and json carry the bare numbers, the others readable cells and the answer."""
    from workbench.cli.database import current
    from workbench.verdict import table

    each = table.runs(current(runs), experiment)
    frame = _in_file_order(table.summarise(each), runs / experiment / "experiment.toml")
    show(frame if form in ("csv", "json") else table.readable(frame), form)
    if form in ("table", "md"):
        typer.echo(f"\n{table.answer(frame)}")
        for note in _notes(each):
            typer.echo(f"Note: {note}.")


def _in_file_order(frame: pd.DataFrame, file: Path) -> pd.DataFrame:
    """Arms in the order of the grid file that lies beside the runs; those that it does not name come last."""
    from workbench.grid.file import load
    from workbench.spec import InputError

    try:
        order = {arm: position for position, arm in enumerate(load(file).arms)}
    except InputError:  # runs of another trainer have no grid file, and one of another version may not load
        return frame
    return frame.sort_values("arm", key=lambda arms: arms.map(order), kind="stable", ignore_index=True)


def _notes(each: pd.DataFrame) -> list[str]:
    """What makes the arms incomparable, from the configurations that were stored with the runs."""
    from workbench.grid import guard
    from workbench.spec import RunSettings

    try:
        arms = {arm: RunSettings.model_validate_json(c) for arm, c in zip(each["arm"], each["config"], strict=True)}
    except ValueError:
        return ["some runs carry settings of another version of sorl, so the fairness of the comparison is not checked"]
    return guard.notes(arms, {str(arm): int(n) for arm, n in each.groupby("arm", sort=False).size().items()})
