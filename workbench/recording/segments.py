"""Append-only segments: rows become a parquet file as soon as they come, once a second at most, renamed into
place.

A thread writes, so that a training step that hangs does not hold back the rows of the steps before it. Files
are not synced to the disk: a killed process does not need that, and after a power cut the reader sets a torn
file aside.
"""

import errno
import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sorl.measures import column_types
from sorl.spec import InputError
from sorl.spec import table as declaration
from sorl.spec.files import naming

_TEXTS = ("transcript",)  # tables of long texts, which are worth a slower compression
TOGETHER = 0.05  # seconds in which the tables of one step arrive
TYPES = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}

log = logging.getLogger("sorl.recording")


@cache
def schema_of(table: str) -> pa.Schema:
    """Return every column of `table` in order, `X[]` as a list of X; KeyError for a table that does not
    exist.
    """
    lists = {f"{name}[]": pa.list_(kind) for name, kind in TYPES.items()}
    return pa.schema([(name, (TYPES | lists)[kind]) for name, kind in column_types(table).items()])


class SegmentWriter:
    """Buffers rows per table and writes them under `folder/segments/<table>/NNNNNN.parquet`.

    Steps that a table already holds are dropped: a resumed run is bit-identical to the one that was cut off,
    and a step's rows of a table land in one segment, so each row exists once. Tables whose later rows replace
    earlier ones keep them all.
    """

    def __init__(self, folder: Path, flush_seconds: float) -> None:
        self.folder = folder / "segments"
        self._buffer: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        self._next = dict[str, int]()
        self._done = dict[str, int]()
        self._error: OSError | None = None
        self._lock = threading.Lock()  # the buffer
        self._writing = threading.Lock()  # one writer at a time
        # rows wait; the end
        self._come = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._work, args=(flush_seconds,), name="sorl-segments", daemon=True
        )
        self._thread.start()

    def append(self, table: str, columns: Mapping[str, Any]) -> None:
        """Take rows of `table`, as `Recorder.rows` does; arrays are kept, not copied."""
        chunk = dict(columns)
        rows = _rows_of(table, chunk)
        if "step" in chunk and not declaration(table).latest_wins:
            fresh = np.broadcast_to(np.asarray(chunk["step"]) > self.last_step(table), rows)
            if not fresh.all():
                chunk = {k: chosen(v, fresh) for k, v in chunk.items()}
                rows = int(fresh.sum())
        if rows:
            with self._lock:
                self._buffer.setdefault(table, []).append((rows, chunk))
            self._come.set()

    def flush(self) -> bool:
        """Write what is buffered; False when a write failed (its rows stay buffered for the next try)."""
        with self._writing:
            with self._lock:
                taken = self._buffer
                self._buffer = {}
            failed: OSError | None = None
            for table, chunks in taken.items():
                try:
                    number = self._number(table)
                    _put(self.folder / table / f"{number:06d}.parquet", table, chunks)
                    self._next[table] = number + 1
                except OSError as error:
                    failed = error
                    with self._lock:
                        self._buffer[table] = chunks + self._buffer.get(table, [])
            if failed is not None and self._error is None:
                log.warning("cannot write rows, keeping them in memory and trying again: %s", failed)
            self._error = failed
        return failed is None

    @property
    def refused(self) -> bool:
        """Whether the disk refused the last write."""
        return self._error is not None

    def close(self) -> None:
        """Write what is left and stop. Raises InputError when rows remain unwritten."""
        self._stop.set()
        self._come.set()
        self._thread.join()
        if not self.flush() and self._error is not None:
            rows = sum(n for n, _ in chain.from_iterable(self._buffer.values()))
            full = self._error.errno in (errno.ENOSPC, errno.EDQUOT)
            why = (
                f"{rows} rows could not be written to '{self.folder}':"
                f" {'the disk is full' if full else self._error}."
            )
            rest = (
                "What was written before is intact; make room (or make the folder writable) and run the same"
                " command"
            )
            raise InputError(f"{why} {rest} again to resume") from self._error

    def files(self, table: str) -> list[Path]:
        """Segments of `table` on the disk, oldest first."""
        return sorted((self.folder / table).glob("[0-9]*.parquet"))

    def _work(self, seconds: float) -> None:
        while self._come.wait() and not self._stop.wait(min(TOGETHER, seconds)):
            self._come.clear()
            if not self.flush():
                self._come.set()
            if self._stop.wait(seconds):
                return  # `close` may have set both events before `clear`: waiting for rows would hang it

    def _number(self, table: str) -> int:
        """Return the first number that no file of the table has ever had, one set aside as
        corrupt included.
        """
        if table not in self._next:
            matches = (re.match(r"\d+", path.name) for path in (self.folder / table).glob("[0-9]*"))
            used = [int(match[0]) for match in matches if match]
            self._next[table] = max(used, default=-1) + 1
        return self._next[table]

    def last_step(self, table: str) -> int:
        """Return the last step on the disk when this session began, -1 without one; torn segments do not
        count.
        """
        if table not in self._done:
            self._done[table] = -1
            for file in self.files(table):
                with suppress(OSError, pa.ArrowException):
                    top = pc.max(pq.read_table(file, columns=["step"])["step"]).as_py()
                    self._done[table] = max(self._done[table], -1 if top is None else top)
        return self._done[table]


def chosen(values: Any, keep: np.ndarray) -> Any:
    """Return the entries of a column where `keep`; a scalar as it is."""
    if isinstance(values, np.ndarray):
        return values[keep]
    if isinstance(values, (list, tuple)):
        return [v for v, k in zip(values, keep, strict=True) if k]
    return values


def append(
    folder: Path,
    run_id: str,
    table: str,
    columns: Mapping[str, Any],
    more: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Write one segment of `table` into the run's folder, also while the run is being trained; returns the
    file.

    Its name is no number, so it never meets the trainer's own segments. `more` are columns of floats beyond
    those of the table. Raises KeyError for a column that the table does not have, OSError where the disk
    refuses.
    """
    columns = filled(run_id, table, columns)
    more = dict(more or {})
    target = folder / "segments" / table / f"added-{time.time_ns()}-{os.getpid()}.parquet"
    _put(target, table, [(_rows_of(table, columns), columns | more)], tuple(more))
    return target


def filled(run_id: str, table: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with the run's id and the time, where the table has them."""
    constants = {"run_id": run_id, "written_at": datetime.now(UTC).replace(tzinfo=None)}
    return {name: value for name, value in constants.items() if name in schema_of(table).names} | dict(
        columns
    )


def _rows_of(table: str, columns: Mapping[str, Any]) -> int:
    """Return the number of rows: the length of the lists and arrays, 1 when every column is a scalar."""
    if unknown := set(columns) - set(schema_of(table).names):
        raise KeyError(f"table {table} has no column {sorted(unknown)}")
    lengths = {len(v) for v in columns.values() if isinstance(v, (list, tuple)) or np.ndim(v)}
    if len(lengths) > 1:
        raise ValueError(
            f"columns of different lengths: { {k: np.shape(v)[:1] for k, v in columns.items()} }"
        )
    return lengths.pop() if lengths else 1


def _put(
    target: Path, table: str, chunks: Sequence[tuple[int, Mapping[str, Any]]], more: Sequence[str] = ()
) -> None:
    schema = pa.schema([*schema_of(table), *((name, pa.float64()) for name in more)])
    tables = [_table_of(columns, schema, rows) for rows, columns in chunks]
    sink = pa.BufferOutputStream()
    compression = "zstd" if table in _TEXTS else "snappy"
    pq.write_table(pa.concat_tables(tables), sink, compression=compression, use_dictionary=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.writing")
    with naming(target):
        unfinished.write_bytes(sink.getvalue())
        os.replace(unfinished, target)


def _table_of(columns: Mapping[str, Any], schema: pa.Schema, rows: int) -> pa.Table:
    """So many rows with the columns of the schema."""
    arrays = [_to_arrow(columns.get(field.name), field.type, rows) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _to_arrow(values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of `rows` entries: None and masked entries become NULL, NaN and Inf stay; a scalar is
    repeated.
    """
    if values is None:
        return pa.nulls(rows, kind)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        plain = pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)
        return pa.array(values.astype(kind.to_pandas_dtype(), copy=False) if plain else values, kind)
    return pa.array(values if isinstance(values, (list, tuple)) else [values] * rows, kind)
