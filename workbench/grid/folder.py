"""The folder of a run as the grid sees it: configuration and identity in, last known status out, and who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from workbench.grid.cell import Cell
from workbench.spec import table

_ARROW = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}
_PREFIX = "queue-"  # the trainer numbers its own segments 000000.parquet, 000001.parquet, ...


def folder_of(runs: Path, cell: Cell) -> Path:
    """`runs/<experiment>/<run_id>`."""
    return runs / cell.experiment / cell.run_id


def prepare(runs: Path, cell: Cell) -> Path:
    """Make the folder of a cell with its `config.toml` (resolved) and `run.json` (who it is)."""
    folder = folder_of(runs, cell)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.toml", tomli_w.dumps(_words(cell.settings.model_dump(mode="json"))))
    _write(folder / "run.json", json.dumps(identity(cell), indent=1, ensure_ascii=False) + "\n")
    return folder


def identity(cell: Cell) -> dict[str, Any]:
    """What the trainer cannot know from the settings: the names under which its rows are filed."""
    return {
        "run_id": cell.run_id,
        "experiment": cell.experiment,
        "algorithm": cell.algorithm,
        "arm": cell.arm,
        "seed": cell.seed,
        "config_hash": cell.config_hash,
    }


def _words(settings: Any) -> Any:
    """TOML has no null; the settings read "none" as switched off."""
    if isinstance(settings, dict):
        return {k: _words(v) for k, v in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [_words(v) for v in settings]
    return "none" if settings is None else settings


def _write(path: Path, text: str) -> None:
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(path)


# ---------------------------------------------------------------------------------------------------------------------
# Status: the last row of table `run` that anyone wrote


def last_row(folder: Path) -> dict[str, Any] | None:
    """The row of table `run` that was written last, by its own `at`; None for a run that nobody queued yet."""
    newest = _newest(folder)
    return None if newest is None else newest[1]


def _newest(folder: Path) -> tuple[pa.Schema, dict[str, Any]] | None:
    files = sorted(f for f in (folder / "segments" / "run").glob("*.parquet") if not f.name.startswith("."))
    found: list[tuple[pa.Schema, dict[str, Any]]] = []
    for file in files:
        try:
            rows = pq.read_table(file)
        except (pa.ArrowInvalid, OSError):
            continue  # a torn segment is the store's to set aside; the row before it still stands
        found += [(rows.schema, row) for row in rows.to_pylist()]
    return max(found, key=lambda entry: entry[1].get("at") or datetime.min, default=None)


def write_row(folder: Path, cell: Cell, **changes: Any) -> None:
    """Append a row to table `run`: the last one with `changes`, or a first one; columns not known yet are NULL."""
    newest = _newest(folder)
    if newest is None:
        schema = pa.schema([(c.name, _ARROW[c.type]) for c in table("run").columns])
        row = {**dict.fromkeys(schema.names), **identity(cell), "config": cell.settings.model_dump_json()}
    else:
        schema, row = newest
        for name in (*changes, "at"):
            if name not in schema.names:
                schema = schema.append(pa.field(name, _ARROW[{c.name: c.type for c in table("run").columns}[name]]))
    row = {**row, **identity(cell), "at": now(), **changes}
    segments = folder / "segments" / "run"
    segments.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(f.stem.removeprefix(_PREFIX)) for f in segments.glob(f"{_PREFIX}*.parquet")), default=-1)
    target = segments / f"{_PREFIX}{number:06d}.parquet"
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    pq.write_table(pa.Table.from_pylist([row], schema=schema), unfinished)
    unfinished.rename(target)


def write_experiment(runs: Path, experiment: str, question: str, toml: str) -> None:
    """Keep the grid file beside its runs and append its row of table `experiment` when it changed."""
    folder = runs / experiment
    kept = folder / "experiment.toml"
    if kept.is_file() and kept.read_text(encoding="utf-8") == toml:
        return
    segments = folder / "segments" / "experiment"
    segments.mkdir(parents=True, exist_ok=True)
    row = {"experiment": experiment, "question": question, "toml": toml, "at": now()}
    schema = pa.schema([(c.name, _ARROW[c.type]) for c in table("experiment").columns])
    number = 1 + max((int(f.stem) for f in segments.glob("[0-9]*.parquet")), default=-1)
    target = segments / f"{number:06d}.parquet"
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    pq.write_table(pa.Table.from_pylist([row], schema=schema), unfinished)
    unfinished.rename(target)
    _write(kept, toml)


def now() -> datetime:
    """The present in UTC, without a zone, as every timestamp of the store."""
    return datetime.now(UTC).replace(tzinfo=None)


# ---------------------------------------------------------------------------------------------------------------------
# Who holds it


def held(folder: Path, name: str = "lock") -> bool:
    """True while some process holds the folder's lock: the trainer for as long as it lives, however it was started."""
    path = folder / name
    if not path.exists():
        return False
    with path.open("r") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def claim(folder: Path) -> IO[str] | None:
    """Take the cell for this grid, or None when another grid has it or its trainer still lives.

    The claim is a second lock beside the trainer's own: between "nobody trains this" and the trainer's first line lie
    seconds of imports, in which a second grid must not start the cell too. The handle is inherited by the child, so
    the claim outlives a grid that is killed for exactly as long as its trainer does.
    """
    handle = (folder / "claim").open("a")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    if held(folder):
        handle.close()
        return None
    return handle


def forget(folder: Path) -> None:
    """Delete a run's folder, for `--fresh`: it is renamed away first, so that no reader sees half a run."""
    if not folder.exists():
        return
    away = folder.with_name(f".forgotten-{folder.name}-{os.getpid()}")
    folder.rename(away)
    shutil.rmtree(away)


def last_line(log: Path, size: int = 8192) -> str:
    """The last line of a log that says something and is not a progress line."""
    if not log.is_file():
        return ""
    with log.open("rb") as handle:
        handle.seek(0, os.SEEK_END)
        handle.seek(max(0, handle.tell() - size))
        lines = [line.strip() for line in handle.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not _is_progress(line)), "")


def _is_progress(line: str) -> bool:
    return line.startswith('{"step"') or line.endswith("it/s]")  # the latter is a bar of somebody's library


def status_of(row: Mapping[str, Any] | None, alive: bool) -> str:
    """The status to show: what the last row says, except that a dead trainer cannot be running."""
    if row is None or row.get("status") is None:
        return "queued"
    status = str(row["status"])
    return "interrupted" if status == "running" and not alive else status
