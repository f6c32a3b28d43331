"""`sorl sync`: bring the database up to date with the run folders."""

from __future__ import annotations

import typer


def sync(ctx: typer.Context) -> None:
    """Bring sorl.duckdb up to date with the run folders; rebuilds it row for row where it was deleted."""
    from workbench.diagnostics import CATALOGUE
    from workbench.store.connect import database
    from workbench.store.sync import sync as bring_up_to_date

    report = bring_up_to_date(ctx.obj, CATALOGUE)
    for path in report.corrupt:
        typer.echo(f"corrupt segment set aside: {path}", err=True)
    for reason in report.skipped:
        typer.echo(reason, err=True)
    typer.echo(f"{database(ctx.obj)}: {report.rows:,} rows from {report.segments:,} new segments")
    if report.forgotten:
        typer.echo(f"runs whose files changed or went away: {', '.join(report.forgotten)}")
