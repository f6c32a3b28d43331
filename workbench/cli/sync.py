"""`sorl sync`: bring the database up to date with the run folders; first restore runs from a file of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.shared import echo

if TYPE_CHECKING:
    from workbench.analysis.results import Results

_FROM = {"detection_step": "detected"}  # column of table `run` -> its name in the file
_UPDATES = ("clip_bias_norm", "value_mae")  # curves that are means over a step's updates


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

    found = read(file)
    written, known = restore(found, runs)
    there = f"; {len(known)} are there already and were left alone" if known else ""
    echo(f"{found.experiment}: {len(written)} runs from {file}{there}")


def restore(found: Results, runs: Path) -> tuple[list[str], list[str]]:
    """Write the folders of the finished runs that are not there; returns those written and those left alone.

    A run that was cut off has no checkpoint here to go on from, so it is not made to look as if it had.
    """
    from workbench.grid.folder import write_experiment

    written, known = [], []
    for row in found.table.to_pylist():
        if row["status"] != "finished":
            continue
        folder = runs / found.experiment / row["run_id"]
        if folder.exists():
            known.append(row["run_id"])
            continue
        _write(folder, row)
        written.append(row["run_id"])
    if found.toml and written and not (runs / found.experiment / "experiment.toml").exists():
        write_experiment(runs, found.experiment, found.question, found.toml)
    return written, known


def _write(folder: Path, row: dict[str, Any]) -> None:
    from workbench.analysis.results import CURVES
    from workbench.record.schema import schema_of
    from workbench.record.segments import SegmentWriter
    from workbench.store.segments import now

    columns = {name: row.get(_FROM.get(name, name)) for name in schema_of("run").names}
    steps = row["step"] or []
    curves = {name: row[name] for name in CURVES if row[name] is not None}
    folder.mkdir(parents=True)
    identity = {name: row[name] for name in ("run_id", "experiment", "algorithm", "arm", "seed")}
    (folder / "run.json").write_text(json.dumps(identity, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    writer = SegmentWriter(folder, flush_seconds=2.0)
    try:
        writer.append("run", {name: [value] for name, value in (columns | {"written_at": now()}).items()})
        if steps:
            who = {"run_id": row["run_id"], "step": steps}
            writer.append("step", who | {name: values for name, values in curves.items() if name not in _UPDATES})
            updates = {name: curves[name] for name in _UPDATES if name in curves}
            if updates:
                writer.append("minibatch", who | {"epoch": [0] * len(steps), "update": [0] * len(steps)} | updates)
    finally:
        writer.close()
