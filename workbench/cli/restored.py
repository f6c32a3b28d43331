"""Run folders from a file of results: a search goes on where another machine's left off, and every verb knows them.

A file of results holds a run's settings, verdict and curves per step; turns, tokens and checkpoints it does not hold.
Nor does it hold each update: `sorl report EXPERIMENT --from FILE --export` keeps the file's own medians over them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.analysis.results import Results

_FROM = {"detection_step": "detected"}  # column of table `run` -> its name in the file
_UPDATES = ("clip_bias_norm", "value_mae")  # curves that are means over a step's updates


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
