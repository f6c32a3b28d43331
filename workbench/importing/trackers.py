"""Logs of trackers: TensorBoard, W&B, SwanLab, trackio, MLflow and Aim.

TensorBoard, W&B and SwanLab write frames of bytes around protobuf messages. Two framings and the wire format
of protobuf take little room in `framing`; the libraries would take hundreds of megabytes and W&B's no longer
has a reader.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from sorl.importing.configs import flattened
from sorl.importing.framing import (
    MESSAGE,
    LevelRecords,
    TfRecords,
    double_field,
    fields_inside,
    messages,
    text_field,
)
from sorl.importing.rows import Rows, of_events
from sorl.spec import InputError
from sorl.spec.files import MIB, from_json, leaves, open_file, read_text

_PATIENCE_SECONDS = 2.0  # with a database that another process writes
_COPIED = 2048 * MIB  # bytes of a database that is copied
EVENTS = 4_000_000  # of a log that is sorted by time
Event = tuple[float, Any, str, Any]  # time, step, metric, value
DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, struct.error)  # what a damaged record raises


def tensorboard(path: Path) -> Iterator[Rows]:
    """Scalars of an event file, or of those of a folder in the order of their names, which begin with the
    time: files that continue each other are one run, files that each begin at the first step are runs.
    """
    files = sorted(path.glob("*tfevents*"))
    if not files:
        yield _scalars_in(path, path.parent.name)
        return
    runs: list[Rows] = []
    for file in files:
        part = _scalars_in(file, file.name)
        continued = _continued_by(part, runs)
        if continued is None:
            runs.append(part)
        else:
            continued.absorb(part)
    if len(runs) == 1:
        runs[0].name = path.name
    for run in runs:
        run.name = re.sub(r"^events\.out\.tfevents\.", "", run.name)
        yield run


def _scalars_in(file: Path, name: str) -> Rows:
    rows = Rows(name)
    with open_file(file) as opened:
        scalars = _of_each(TfRecords(opened, rows).records(), partial(_scalars, config=rows.config), rows)
        return rows.extend(of_events(scalars))


def _continued_by(part: Rows, runs: list[Rows]) -> Rows | None:
    """Return the run that an event file belongs to; None where it begins another one.

    It belongs to the run that ended nearest to its first step. Where that step is nearer to the beginning of
    each run with the same metrics than to its end, it begins another one.
    """
    if not runs:
        return None
    span = part.span()
    if span is None:
        return runs[-1]
    best: Rows | None = None
    smallest_gap = 0.0
    for run in runs:
        before = run.span()
        if before is None or not set(run.metrics) & set(part.metrics):
            if len(runs) == 1:
                return run  # hyperparameters, or another writer of the same run
            continue
        gap = abs(span[0] - before[1])
        begins_again = span[0] - before[0] < gap
        if not begins_again and (best is None or gap <= smallest_gap):
            best = run
            smallest_gap = gap
    return best


def _of_each(records: Iterable[Any], read: Callable[[Any], Iterable[Any]], rows: Rows) -> Iterator[Any]:
    """Yield what `read` finds in each record; one that it cannot read is left out."""
    for number, record in enumerate(records, start=1):
        rows.account.records += 1
        try:
            values = [*read(record)]
        except DAMAGE:
            rows.account.leave_out("a damaged record", f"record {number:,}", unit="records")
            rows.account.records -= 1
        else:
            yield from values


def _scalars(record: bytes, config: dict[str, Any]) -> Iterator[tuple[int, str, float]]:
    """Yield (step, tag, value) of an event; what is text or a hyperparameter goes to `config`."""
    event = fields_inside(record)
    for field, data in messages(event.get(5)):
        if field != 1:
            continue
        value = fields_inside(data)
        tag = text_field(value.get(1))
        step = event.get(2, 0)
        tensor = fields_inside(value.get(8))
        # A tensor of one number: its type (1), and the number in one of the fields for its type.
        number = tensor.get(4) or tensor.get(5) or tensor.get(6) or b""
        form = {1: "<f", 2: "<d"}.get(tensor.get(1))
        if 2 in value:
            yield step, tag, struct.unpack("<f", value[2])[0]
        elif tag.endswith("text_summary"):
            with suppress(ValueError):
                config |= flattened(from_json(text_field(tensor.get(8))))
        elif tag == "_hparams_/session_start_info":
            config |= _hyperparameters(value.get(9))
        elif form and len(number) == struct.calcsize(form):
            yield step, tag, struct.unpack(form, number)[0]


def _hyperparameters(plugin: Any) -> dict[str, Any]:
    """Return the hyperparameters of a session: a map from names to numbers (2), texts (3) and truths (4)."""
    values: dict[str, Any] = {}
    for _, entry in messages(fields_inside(plugin, 1, 2, 3)):
        kind, value = next(iter(fields_inside(fields_inside(entry, 2)).items()), (0, None))
        read = {2: double_field, 3: text_field}.get(kind, bool)
        values[text_field(fields_inside(entry, 1))] = read(value)
    return values


def wandb(path: Path) -> Iterator[Rows]:
    """The history and configuration in an offline run's .wandb file."""
    rows = Rows(path.stem.removeprefix("run-"))
    with open_file(path) as file:
        history = _of_each(LevelRecords(file, rows).records(), partial(_history, run=rows), rows)
        yield rows.extend(history)


def _history(record: bytes, run: Rows) -> Iterator[dict[str, Any]]:
    """Yield the row of the history in a record; name, configuration and how it ended go to `run`."""
    for field, data in messages(record):
        if field == 2:  # history: items (1) and the step (2)
            items = dict(_item(item) for part, item in messages(data) if part == 1)
            yield {"_step": fields_inside(data, 2, 1) or 0, **dict(leaves(items))}
        elif field in (5, 17):  # config, run
            inner = data if field == 5 else fields_inside(data, 4)
            run.config |= flattened(dict(_item(item) for part, item in messages(inner) if part == 1))
            run.name = (field == 17 and text_field(fields_inside(data, 8))) or run.name
        elif field == 18 and fields_inside(data, 1):  # exit
            run.status = "failed"


def _item(data: bytes) -> tuple[str, Any]:
    """Return (key, value) of an item: its value is JSON text, or, since 0.26, a field of its own type."""
    name = list[str]()
    value = None
    for field, content in messages(data):
        if field in (1, 2):
            name.append(text_field(content))
        elif field in (8, 16):
            with suppress(ValueError):
                value = from_json(text_field(content))
        elif field in _TYPES:
            value = _TYPES[field](content)
    return ".".join(name), value


_TYPES: dict[int, Callable[[Any], Any]] = {
    4: bool,
    5: lambda content: content - (1 << 64) if content >> 63 else content,
    6: double_field,
    7: text_field,
}


def swanlab(path: Path) -> Iterator[Rows]:
    """The scalars in an offline run's .swanlab file (version 2 of the format)."""
    rows = Rows(path.stem.removeprefix("run-"))
    with open_file(path) as file:
        if file.peek(7)[6:7] != b"\x02":
            raise InputError(f"'{path}' is of another version of SwanLab's format; read are those of 0.10")
        scalars = _of_each(LevelRecords(file, rows).records(), partial(_swan_scalars, run=rows), rows)
        yield rows.extend(of_events(scalars))


def _swan_scalars(record: bytes, run: Rows) -> Iterator[tuple[int, str, float]]:
    for field, data in messages(record):
        inner = fields_inside(data)
        if field == 10:  # start
            run.name = text_field(inner.get(4)) or run.name
        elif field == 11 and inner.get(2):  # finish, with an error
            run.status = "failed"
        elif field == 13 and 5 in inner:
            value = double_field(fields_inside(inner[5]).get(1, bytes(8)))
            yield inner.get(2, 0), text_field(inner.get(1)), value


# SQLite


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database to be read; of one that its writer holds a copy, with what belongs to it."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE_SECONDS)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        with tempfile.TemporaryDirectory() as folder:
            connection = sqlite3.connect(_copied(path, Path(folder)))
            try:
                yield connection
            finally:
                connection.close()
        return
    try:
        yield connection
    finally:
        connection.close()


def _copied(path: Path, folder: Path) -> Path:
    """Copy a database with its journals. Raises InputError for one that is too large to copy."""
    size = path.stat().st_size
    if size > _COPIED:
        raise InputError(
            f"another process writes '{path}' ({size / MIB:,.0f} MiB): run it again when it is done"
        )
    for suffix in ("", "-journal", "-wal"):
        part = path.with_name(path.name + suffix)
        if part.is_file():
            shutil.copyfile(part, folder / part.name)
    return folder / path.name


def has_tables(path: Path, head: bytes, *tables: str) -> bool:
    """Whether a file is a SQLite database with these tables."""
    with suppress(sqlite3.Error):
        if head.startswith(b"SQLite format 3\0"):
            with _connected(path) as base:
                return set(tables) <= {row[0] for row in base.execute("SELECT name FROM sqlite_master")}
    return False


def _read_rows(cursor: Iterator[tuple[Any, ...]], rows: Rows) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query as far as the database is whole."""
    number = 0
    try:
        for row in cursor:
            number += 1
            yield row
    except sqlite3.DatabaseError:
        rows.account.leave_out(
            "the database is damaged from there on", f"record {number + 1:,}", unit="records"
        )


def trackio(path: Path) -> Iterator[Rows]:
    """Every run of a project: a row a call of `log`, with its metrics as JSON."""
    with _connected(path) as base:
        columns = {row[1] for row in base.execute("PRAGMA table_info(metrics)")}
        key = "run_id" if "run_id" in columns else "run_name"
        named = f"SELECT {key}, min(run_name) FROM metrics GROUP BY 1 ORDER BY min(id)"
        logged = f"SELECT step, CASE WHEN length(metrics) < {MESSAGE} THEN metrics END FROM metrics"
        for run, name in base.execute(named).fetchall():
            rows = Rows(f"{path.stem}/{name}")
            rows.config = _trackio_config(base, key, run, rows)
            cursor = base.execute(f"{logged} WHERE {key} = ? ORDER BY id", [run])
            yield rows.extend(_of_each(_read_rows(cursor, rows), _trackio_row, rows))


def _trackio_row(record: tuple[Any, Any]) -> Iterator[dict[str, Any]]:
    step, text = record
    metrics = from_json(text)
    if not isinstance(metrics, dict):
        raise ValueError("it is no object")
    yield {"_step": step} | metrics


def _trackio_config(base: sqlite3.Connection, key: str, run: Any, rows: Rows) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for (text,) in base.execute(f"SELECT config FROM configs WHERE {key} = ?", [run]):
        try:
            config = flattened(from_json(text))
        except DAMAGE:
            rows.notes.append("the configuration in the database was not read: it is no JSON")
    return config


def mlflow(path: Path) -> Iterator[Rows]:
    """Every run of a database that was not deleted."""
    with _connected(path) as base:
        asked = "SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time"
        logged = (
            "SELECT step, key, CASE WHEN is_nan THEN 'nan' ELSE value END FROM metrics WHERE run_uuid = ?"
        )
        for run, name, status in base.execute(asked).fetchall():
            rows = Rows(str(name or run))
            cursor = base.execute(f"{logged} ORDER BY timestamp, step", [run])
            values = _of_each(_read_rows(cursor, rows), lambda record: [record], rows)
            rows.extend(of_events(values))
            rows.config = dict(
                base.execute("SELECT key, value FROM params WHERE run_uuid = ?", [run]).fetchall()
            )
            rows.status = "failed" if status == "FAILED" else "finished"
            yield rows


# Folders


def mlflow_folder(path: Path) -> Iterator[Rows]:
    """The run of a folder: a file a metric, and one a parameter."""
    title = path / "tags" / "mlflow.runName"
    rows = Rows(read_text(title, 1000).strip() if title.is_file() else path.name)
    params = filter(Path.is_file, path.glob("params/**/*"))
    rows.config = {file.relative_to(path / "params").as_posix(): read_text(file, MIB) for file in params}
    yield rows.extend(_in_time(path, _mlflow_events(path / "metrics", rows)))


def _mlflow_events(folder: Path, rows: Rows) -> Iterator[Event]:
    for file in sorted(filter(Path.is_file, folder.glob("**/*"))):
        metric = file.relative_to(folder).as_posix()
        with open_file(file) as lines:
            for number, line in enumerate(iter(partial(lines.readline, 200), b""), start=1):
                try:
                    time, value, step, *_ = line.split()
                    yield float(time), int(step), metric, value.decode()
                    rows.account.records += 1
                except ValueError:
                    place = f"line {number:,} of {metric}"
                    rows.account.leave_out("no line 'time value step'", place, unit="records")


def aim(path: Path) -> Iterator[Rows]:
    """Every run of a repository, through Aim's own library, as nothing else reads its files; nothing is
    written.
    """
    from aim import Repo, Run

    repository = Repo.from_path(str(path))
    for key in repository.list_all_runs():
        run = Run(key, repo=repository, read_only=True)
        rows = Rows(str(run.name or run.hash)).extend(_in_time(path, _aim_events(run)))
        if not rows:
            raise InputError(
                f"Aim has not indexed run {key}: type `aim storage --repo '{path}' reindex`, then again"
            )
        rows.config = flattened(run.get("hparams"))
        yield rows


def _aim_events(run: Any) -> Iterator[Event]:
    for metric in run.metrics():
        steps, (values, _, times) = metric.data.items_list()
        name = "/".join([*map(str, metric.context.to_dict().values()), metric.name])
        yield from zip(times, steps, [name] * len(steps), values, strict=True)


def _in_time(path: Path, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Return rows of events that were kept by metric, in the order of their times."""
    held = list(islice(events, EVENTS + 1))
    if len(held) > EVENTS:
        raise InputError(f"'{path}' has more than {EVENTS:,} values in a run; give it as JSON lines")
    held.sort(key=lambda event: event[0])
    return of_events((step, metric, value) for _, step, metric, value in held)
