"""The beginning of an answer as an Arrow table of columns that every reader of files understands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 2048  # rows that are read at once: as many as DuckDB makes at once


@dataclass(frozen=True)
class Excerpt:
    """The rows that were read; `cut` says that the answer goes on."""

    table: pa.Table
    cut: bool


def excerpt(batches: pa.RecordBatchReader, rows: int, size: int) -> Excerpt:
    """At most `rows` rows, and no further batch once `size` bytes are exceeded.

    A column name that occurs again gets a number; structs, maps, intervals and other types that Parquet or a table on a
    screen do not know become text.
    """
    import pyarrow as pa

    parts: list[pa.RecordBatch] = []
    seen = taken = 0
    while seen <= rows and taken <= size and (batch := next(batches, None)) is not None:
        parts.append(batch)
        seen, taken = seen + batch.num_rows, taken + batch.nbytes
    cut = seen > rows or next(batches, None) is not None
    table = pa.Table.from_batches(parts, schema=batches.schema).slice(0, rows)
    columns = [_plain(column) for column in table.columns]
    return Excerpt(pa.Table.from_arrays(columns, names=list(_distinct(table.column_names))), cut)


def _distinct(names: Iterable[str]) -> Iterable[str]:
    taken: set[str] = set()
    for name in names:
        found = name
        for number in count(2):
            if found not in taken:
                break
            found = f"{name}_{number}"
        taken.add(found)
        yield found


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.types as kinds

    if kinds.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if _scalar(column.type) or (kinds.is_list(column.type) and _scalar(column.type.value_type)):
        return column
    texts: list[Any] = [None if value is None else str(value) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _scalar(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    known = (
        kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_string, kinds.is_timestamp,
        kinds.is_date, kinds.is_time,
    )  # fmt: skip
    return any(is_kind(kind) for is_kind in known)
