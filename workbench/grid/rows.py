"""Rows that the grid writes itself, as segments beside those of the trainer; and the newest row of table `run`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.spec import table

_ARROW = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}
_PREFIX = "queue-"  # the trainer numbers its own segments 000000.parquet, 000001.parquet, ...


def now() -> datetime:
    """The present in UTC, without a zone, as every timestamp of the store."""
    return datetime.now(UTC).replace(tzinfo=None)


def append(folder: Path, name: str, row: Mapping[str, Any], schema: pa.Schema | None = None) -> None:
    """Write one row of table `name` as a segment of its own under `folder`; columns that it lacks are NULL."""
    schema = schema or pa.schema([(c.name, _ARROW[c.type]) for c in table(name).columns])
    segments = folder / "segments" / name
    segments.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(f.stem.removeprefix(_PREFIX)) for f in segments.glob(f"{_PREFIX}*.parquet")), default=-1)
    target = segments / f"{_PREFIX}{number:06d}.parquet"
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    pq.write_table(pa.Table.from_pylist([dict(row)], schema=schema), unfinished)
    unfinished.rename(target)


def last_row(folder: Path) -> dict[str, Any] | None:
    """The row of table `run` that was written last, by its own `written_at`; None for a run that nobody queued yet."""
    newest = _newest(folder)
    return None if newest is None else newest[1]


def change(folder: Path, identity: Mapping[str, Any], **changes: Any) -> None:
    """Append a row to table `run`: the last one (or none) with `identity` and `changes`; other columns are NULL."""
    newest = _newest(folder)
    types = {c.name: _ARROW[c.type] for c in table("run").columns}
    schema, row = newest or (pa.schema(list(types.items())), {})
    for name in (*identity, *changes, "written_at"):
        if name not in schema.names:  # a run of an earlier version
            schema = schema.append(pa.field(name, types[name]))
    append(folder, "run", {**row, **identity, "written_at": now(), **changes}, schema)


def _newest(folder: Path) -> tuple[pa.Schema, dict[str, Any]] | None:
    files = sorted(
        f for f in (folder / "segments" / "run").glob("*.parquet") if not f.name.startswith(".") and f.is_file()
    )
    found: list[tuple[pa.Schema, dict[str, Any]]] = []
    for file in files:
        try:
            rows = pq.read_table(file)
        except (pa.ArrowInvalid, OSError):
            continue  # a torn segment is the store's to set aside; the row before it still stands
        found += [(rows.schema, row) for row in rows.to_pylist()]
    return max(found, key=lambda entry: entry[1].get("written_at") or datetime.min, default=None)
