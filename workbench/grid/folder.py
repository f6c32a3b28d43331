"""The folder of a run: its configuration and identity, its locks, the rows that the grid writes, its console log."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from workbench.grid.cell import Cell
from workbench.spec import InputError, table
from workbench.spec.files import MIB, from_json, lock_file, open_file, read_text
from workbench.store.text import plain, tail

_ARROW = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}
_PREFIX = "queue-"  # of the grid's segments; the trainer's are 000000.parquet, 000001.parquet, ...
_REASON = 400  # most characters of a reason: it is read in a table
_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')


def folder_of(runs: Path, cell: Cell) -> Path:
    """`runs/<experiment>/<run_id>`."""
    return runs / cell.experiment / cell.run_id


def prepare(runs: Path, cell: Cell) -> Path:
    """Make the folder of a cell, with its resolved `config.toml` and its names in `run.json`."""
    folder = folder_of(runs, cell)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.toml", tomli_w.dumps(_without_null(cell.settings.model_dump(mode="json"))))
    _write_identity(folder, {**read_identity(folder), **identity(cell)})
    return folder


def identity(cell: Cell) -> dict[str, Any]:
    """Return the names under which a run's rows are filed; the trainer cannot know them from the settings."""
    names = ("run_id", "experiment", "algorithm", "arm", "seed", "config_hash", "generation")
    return {name: getattr(cell, name) for name in names}


def read_identity(folder: Path) -> dict[str, Any]:
    """Return the run's `run.json`; empty if it is missing or unreadable, and then the grid writes it again."""
    try:
        found = from_json(read_text(folder / "run.json", MIB))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def next_attempt(folder: Path, begun: bool) -> int:
    """Count one more attempt in `run.json` and return its number, from 1. Call it only while holding the claim.

    `begun` says that the run was begun before, for folders whose attempts nobody counted.
    """
    stored = read_identity(folder)
    attempt = 1 + int(stored.get("attempt") or begun)
    _write_identity(folder, {**stored, "attempt": attempt})
    return attempt


def write_experiment(runs: Path, experiment: str, question: str, toml: str) -> None:
    """Keep the grid file with its runs, and append its row of table `experiment` if the file changed."""
    folder = runs / experiment
    kept = folder / "experiment.toml"
    if not (kept.is_file() and kept.read_text(encoding="utf-8", errors="replace") == toml):
        append(folder, "experiment", {"experiment": experiment, "question": question, "toml": toml})
        _write(kept, toml)


def checkpoint(folder: Path) -> int | None:
    """Steps done at the newest complete checkpoint; None without one."""
    found = (folder / "checkpoints").glob("[0-9]*/progress.json")
    return max((int(f.parent.name) for f in found if f.parent.name.isdigit()), default=None)


def _without_null(settings: Any) -> Any:
    """TOML has no null: settings that are switched off are written as "none"."""
    if isinstance(settings, dict):
        return {k: _without_null(v) for k, v in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [_without_null(v) for v in settings]
    return "none" if settings is None else settings


def _write_identity(folder: Path, stored: Mapping[str, Any]) -> None:
    _write(folder / "run.json", json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(path)


# ---------------------------------------------------------------------------------------------------------------------
# Locks


def held(folder: Path, name: str = "lock") -> bool:
    """Return True while a process holds the lock: `lock` is the trainer's, `claim` that of the grid that watches it."""
    try:
        handle = open_file(folder / name)
    except OSError:  # not there yet, or a pipe of that name
        return False
    with handle:
        return not _lock(handle, fcntl.LOCK_SH)


def claim(folder: Path) -> IO[str] | None:
    """Lock the cell for this grid until the handle is closed; None if another grid has it or a trainer still runs.

    The trainer takes a lock of its own, which outlives a grid that is killed: a cell is never trained twice at once.
    Raises InputError if the claim is not a regular file.
    """
    handle = lock_file(folder / "claim")
    if _lock(handle, fcntl.LOCK_EX) and not held(folder):
        return handle
    handle.close()
    return None


def _lock(handle: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        folder = Path(handle.name).parent
        raise InputError(
            f"'{folder}' is on storage without file locks ({error.strerror}), so two processes could train one run; "
            "mount it with flock, or name another folder with --runs"
        ) from None
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Rows


@dataclass(frozen=True)
class Kind:
    """A kind of event that the grid writes: its severity and its meaning."""

    name: str
    severity: Literal["info", "warning", "critical"]
    meaning: str


KINDS: tuple[Kind, ...] = (
    Kind("resumed", "info", "the same command continued the run; the value is the number of the new attempt"),
    Kind("retried", "warning", "an attempt failed and the next one began at once; the value is its number"),
    Kind("interrupted", "info", "Ctrl-C or SIGTERM; the run wrote a checkpoint if it had begun"),
    Kind("hang", "critical", "no sign of life for `--hang-seconds`, so the trainer was killed"),
    Kind("out_of_memory", "critical", "an allocator failed, or the cell went over the limit of `--memory`"),
    Kind("killed", "critical", "a signal ended the trainer, or its Ray worker died"),
    Kind("failed", "critical", "an exception ended the trainer; the traceback is in console.log"),
)


def now() -> datetime:
    """Return the present in UTC without a time zone, like every timestamp of the store."""
    return datetime.now(UTC).replace(tzinfo=None)


def write_event(folder: Path, kind: str, step: int | None, message: str, value: float | None = None) -> None:
    """Append an event of one of KINDS to the run in `folder`; KeyError for another kind."""
    severity = {k.name: k.severity for k in KINDS}[kind]
    row = {"run_id": folder.name, "step": step, "kind": kind, "severity": severity, "diagnostic": "", "value": value}
    append(folder, "event", {**row, "message": message})


def append(folder: Path, name: str, row: Mapping[str, Any], schema: pa.Schema | None = None) -> None:
    """Write one row of table `name` as a segment of its own under `folder`; missing columns are NULL."""
    schema = schema or _schema(name)
    segments = folder / "segments" / name
    segments.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(f.stem.removeprefix(_PREFIX)) for f in segments.glob(f"{_PREFIX}*.parquet")), default=-1)
    target = segments / f"{_PREFIX}{number:06d}.parquet"
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    pq.write_table(pa.Table.from_pylist([{"written_at": now(), **row}], schema=schema), unfinished)
    unfinished.rename(target)


def last_row(folder: Path) -> dict[str, Any] | None:
    """Return the row of table `run` with the latest `written_at`; None for a run that was never queued."""
    return _newest(folder)[1]


def change(folder: Path, identity: Mapping[str, Any], **changes: Any) -> None:
    """Append a row to table `run`: the last one with `identity` and `changes`; other columns are NULL."""
    recorded, row = _newest(folder)
    schema = pa.unify_schemas([_schema("run"), recorded])
    append(folder, "run", {**(row or {}), **identity, "written_at": now(), **changes}, schema)


def _schema(name: str) -> pa.Schema:
    return pa.schema([(column.name, _ARROW[column.type]) for column in table(name).columns])


def _newest(folder: Path) -> tuple[pa.Schema, dict[str, Any] | None]:
    found: list[tuple[pa.Schema, dict[str, Any]]] = []
    for rows in read_segments(folder, "run"):
        found += [(rows.schema, row) for row in rows.to_pylist()]
    return max(found, key=lambda entry: entry[1].get("written_at") or datetime.min, default=(pa.schema([]), None))


def read_segments(folder: Path, name: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The readable segments of a table, in order; the store sets torn ones aside, and what is no file is skipped."""
    for file in sorted((folder / "segments" / name).glob("[!.]*.parquet")):
        if file.is_file():
            with suppress(pa.ArrowException, OSError, KeyError):
                yield pq.read_table(file, columns=columns)


def status_of(row: Mapping[str, Any] | None, alive: bool) -> str:
    """Return the status to show: that of the last row, but a run whose trainer is dead is not running."""
    if row is None or row.get("status") is None:
        return "queued"
    status = str(row["status"])
    return "interrupted" if status == "running" and not alive else status


def one_line(text: str) -> str:
    """`text` in one line of at most 400 characters, without control characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= _REASON else f"{line[: _REASON - 4]} ..."


# ---------------------------------------------------------------------------------------------------------------------
# The console log


class Follower:
    """Read the progress lines that are appended to a log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.began = self._offset = log.stat().st_size if log.exists() else 0

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the progress lines since the last call; an unfinished line is left for the next one."""
        if not self.log.exists():
            return
        with self.log.open("rb") as handle:
            handle.seek(self._offset)
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            if (row := _progress(line)) is not None:
                yield row


def last_line(log: Path, since: int = 0) -> str:
    """Return the last line of text that is neither progress nor a library's progress bar; empty if there is none."""
    lines = (line.strip() for line in reversed(tail(log, since)))
    return next((line for line in lines if line and _progress(line) is None and not line.endswith("it/s]")), "")


def last_step(log: Path) -> int | None:
    """Steps done at the last progress line; None before the first."""
    return next((row["step"] for line in reversed(tail(log)) if (row := _progress(line)) is not None), None)


def where(log: Path, since: int = 0) -> str:
    """`recv (socket.py:706)`: where the main thread was in the last dump of the stacks; empty without a dump."""
    lines = tail(log, since)
    # The main thread is the current one of a dump by signal, and the oldest and therefore last one of a timeout's.
    starts = [i for i, line in enumerate(lines) if line.startswith("Current thread")]
    starts = starts or [i for i, line in enumerate(lines) if line.startswith("Thread 0x")]
    for line in lines[starts[-1] + 1 :] if starts else []:
        if found := _FRAME.search(line):
            file, number, function = found.groups()
            return f"{function} ({Path(file).name}:{number})"
    return ""


def _progress(line: str | bytes) -> dict[str, Any] | None:
    """Return the row of a progress line; None for any other line."""
    if line[:7] not in ('{"step"', b'{"step"'):
        return None
    with suppress(ValueError, TypeError):
        row = json.loads(line)
        return {**row, "step": int(row["step"])}
    return None
