"""`sorl sync`: bring the database up to date with the run folders; first restore runs from a file of results."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Context, Option

from workbench.cli.tables import echo, note
from workbench.grid.folder import write_experiment
from workbench.record.segments import SegmentWriter, schema_of
from workbench.store.connect import database
from workbench.store.segments import now
from workbench.store.sync import sync as update

if TYPE_CHECKING:
    from workbench.analysis.results import Results

_FROM = "First restore run folders from results of `sorl report --export`, enough to resume a search."
_UPDATES = ("clip_bias_norm", "value_mae")  # curves that are means over a step's updates


def sync(ctx: Context, results: list[Path] | None = Option(None, "--from", metavar="FILE.parquet", help=_FROM)) -> None:
    """Update sorl.duckdb from the run folders; a deleted database is rebuilt row for row."""
    for file in results or []:
        from workbench.analysis.results import read

        found = read(file)
        written, known = restore(found, ctx.obj)
        there = f"; {known} already exist and were left unchanged" if known else ""
        echo(f"{found.experiment}: {written} runs from {file}{there}")
    report = update(ctx.obj)
    for line in (*(f"corrupt segment set aside: {path}" for path in report.corrupt), *report.skipped):
        note(line)
    echo(f"{database(ctx.obj)}: {report.rows:,} rows from {report.segments:,} new segments")
    if report.forgotten:
        echo(f"runs whose files changed or were removed: {', '.join(report.forgotten)}")


def restore(found: "Results", runs: Path) -> tuple[int, int]:
    """Write missing folders of finished runs (others have no checkpoint); return how many, and how many were there."""
    from workbench.analysis.results import CURVES

    finished = [row for row in found.table.to_pylist() if row["status"] == "finished"]
    missing = [row for row in finished if not (runs / found.experiment / row["run_id"]).exists()]
    for row in missing:
        folder = runs / found.experiment / row["run_id"]
        folder.mkdir(parents=True)
        identity = {name: row[name] for name in ("run_id", "experiment", "algorithm", "arm", "seed")}
        (folder / "run.json").write_text(json.dumps(identity, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        run = {name: row.get(name) for name in schema_of("run").names}
        curves = {name: row[name] for name in CURVES if row[name] is not None}
        updates = {name: curves.pop(name) for name in _UPDATES if name in curves}
        keys = {"run_id": row["run_id"], "step": row["step"]}
        writer = SegmentWriter(folder, flush_seconds=2.0)
        writer.append("run", run | {"detection_step": row["detected"], "written_at": now()})
        if row["step"]:
            writer.append("step", keys | curves)
            if updates:
                writer.append("minibatch", keys | {"epoch": 0, "update": 0} | updates)
        writer.close()
    if found.toml and missing and not (runs / found.experiment / "experiment.toml").exists():
        write_experiment(runs, found.experiment, found.question, found.toml)
    return len(missing), len(finished) - len(missing)
