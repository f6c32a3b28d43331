"""`sorl sync`: bring the database up to date with the run folders; first restore runs from a
file of results.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer import Context, Option

from sorl.cli.shared import tell_of
from sorl.cli.tables import echo
from sorl.grid.folder import write, write_experiment
from sorl.recording.segments import append, schema_of
from sorl.spec.names import FolderName, folder_to_write, refuse_outside, refuse_twins
from sorl.store import sync as store
from sorl.store.connect import database

_RESTORE = "First restore run folders from results of `sorl report --export`, enough to resume a search."


def sync(
    ctx: Context, files: list[Path] | None = Option(None, "--from", metavar="FILE.parquet", help=_RESTORE)
) -> None:
    """Update sorl.duckdb from the run folders; a deleted database is rebuilt row for row."""
    for file in files or []:
        _restore(file, ctx.obj)
    report = store.sync(ctx.obj)
    tell_of(report)
    echo(f"{database(ctx.obj)}: {report.rows:,} rows from {report.segments:,} new segments")
    if report.forgotten:
        echo(f"runs whose files changed or were removed: {', '.join(report.forgotten)}")


def _restore(file: Path, runs: Path) -> None:
    """Write the missing folders of the finished runs of a file of results; others have no checkpoint."""
    from sorl.analysis.results import read

    results = read(file)
    experiment = FolderName(results.experiment, f"'{file}': its experiment")
    home = folder_to_write(runs, experiment)
    finished = [row for row in results.table.to_pylist() if row["status"] == "finished"]
    for row in finished:  # all of them before the first is written
        row["run_id"] = FolderName(row["run_id"], f"'{file}': a run")
        refuse_outside(runs, home / row["run_id"])
    refuse_twins(home, [row["run_id"] for row in finished])
    missing = [row for row in finished if not (home / row["run_id"]).exists()]
    for row in missing:
        try:
            _restore_run(home / row["run_id"], row)
        except OSError:  # half a run would count as restored the next time
            shutil.rmtree(home / row["run_id"], ignore_errors=True)
            raise
    if results.toml and missing and not (home / "experiment.toml").exists():
        write_experiment(runs, experiment, results.question, results.toml)
    known = len(finished) - len(missing)
    there = f"; {known} already exist and were left unchanged" if known else ""
    echo(f"{results.experiment}: {len(missing)} runs from {file}{there}")


def _restore_run(folder: Path, row: Mapping[str, Any]) -> None:
    """Write the folder of one run from its row: who it is, how it ended, and its curves."""
    from sorl.analysis.results import CURVES, OF_UPDATES

    folder.mkdir(parents=True)
    identity = {name: row[name] for name in ("run_id", "experiment", "algorithm", "arm", "seed")}
    write(folder / "run.json", json.dumps(identity, indent=1, ensure_ascii=False) + "\n")
    columns = {name: row.get(name) for name in schema_of("run").names if name != "written_at"}
    append(folder, row["run_id"], "run", columns | {"detection_step": row["detected"]})
    curves = {name: row[name] for name in CURVES if row[name] is not None}
    updates = {name: curves.pop(name) for name in OF_UPDATES if name in curves}
    if row["step"]:
        append(folder, row["run_id"], "step", curves | {"step": row["step"]})
    if row["step"] and updates:
        place = {"step": row["step"], "epoch": 0, "update": 0}
        append(folder, row["run_id"], "minibatch", updates | place)
