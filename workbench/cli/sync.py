"""`sorl sync`: bring the database up to date with the run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.text import echo


def sync(
    ctx: typer.Context,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE.parquet",
            help="First write the runs of a file of results (`sorl report --export`) as run folders: settings, "
            "verdict and curves, so that a search goes on from them.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Bring sorl.duckdb up to date with the run folders; rebuilds it row for row where it was deleted."""
    for file in results or []:
        _restore(ctx.obj, file)
    from workbench.diagnostics import CATALOGUE
    from workbench.store.connect import database
    from workbench.store.sync import sync as bring_up_to_date

    report = bring_up_to_date(ctx.obj, CATALOGUE)
    for path in report.corrupt:
        echo(f"corrupt segment set aside: {path}", err=True)
    for reason in report.skipped:
        echo(reason, err=True)
    echo(f"{database(ctx.obj)}: {report.rows:,} rows from {report.segments:,} new segments")
    if report.forgotten:
        echo(f"runs whose files changed or went away: {', '.join(report.forgotten)}")


def _restore(runs: Path, file: Path) -> None:
    from workbench.analysis.results import read
    from workbench.cli.restored import restore

    found = read(file)
    written, known = restore(found, runs)
    there = f"; {len(known)} are there already and were left alone" if known else ""
    echo(f"{found.experiment}: {len(written)} runs from {file}{there}")
