"""Rows that are added to a run from outside its training, in a segment of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.record.schema import length_of, schema_of, to_arrow


def append(folder: Path, run_id: str, table: str, columns: Mapping[str, Any]) -> Path:
    """Write one segment of `table` into the run's folder, also while the run is being trained; returns the file.

    Its name is no number, so it never meets the trainer's own segments. Raises KeyError for a column that the table
    does not have, OSError where the disk refuses.
    """
    schema = schema_of(table)
    filled = {"run_id": run_id, "written_at": datetime.now(UTC).replace(tzinfo=None), **columns}
    unknown = set(filled) - set(schema.names)
    if unknown:
        raise KeyError(f"table {table} has no column {sorted(unknown)}")
    rows = length_of(filled)
    data = pa.Table.from_arrays([to_arrow(filled.get(f.name), f.type, rows) for f in schema], schema=schema)
    target = folder / "segments" / table / f"added-{time.time_ns()}-{os.getpid()}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.writing")
    pq.write_table(data, unfinished, compression="snappy", use_dictionary=False)
    os.replace(unfinished, target)
    return target
