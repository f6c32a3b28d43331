"""Arrow schemas of the tables: identity columns of the vocabulary, then the declared diagnostics, in a stable type."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from workbench.diagnostics import CATALOGUE
from workbench.spec import table as declaration

TYPES = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}


def arrow_type(sql: str) -> pa.DataType:
    """Arrow type of a SQL type; `X[]` is a list of X."""
    return pa.list_(arrow_type(sql[:-2])) if sql.endswith("[]") else TYPES[sql]


@cache
def schema_of(table: str) -> pa.Schema:
    """Every column of `table` in order; KeyError for a table that does not exist."""
    fields = [pa.field(c.name, arrow_type(c.type)) for c in declaration(table).columns]
    fields += [pa.field(d.name, arrow_type(d.sql_type)) for d in CATALOGUE if d.table == table]
    return pa.schema(fields)


def to_arrow(values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of `rows` entries: None and masked entries become NULL, NaN and Inf stay; a scalar is repeated."""
    if values is None:
        return pa.nulls(rows, kind)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        data = np.ma.getdata(values)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            data = data.astype(kind.to_pandas_dtype(), copy=False)
        mask = np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else None
        return pa.array(data, type=kind, mask=mask)
    if isinstance(values, (list, tuple)):
        return pa.array(values, type=kind)
    return pa.array([values] * rows, type=kind)


def length_of(columns: dict[str, Any]) -> int:
    """Rows of a chunk of columns: the length of its lists and arrays, 1 when every column is a scalar."""
    lengths = {
        len(v) for v in columns.values() if isinstance(v, (list, tuple)) or (isinstance(v, np.ndarray) and v.ndim > 0)
    }
    if len(lengths) > 1:
        raise ValueError(f"columns of different lengths: { {k: np.shape(v)[:1] for k, v in columns.items()} }")
    return lengths.pop() if lengths else 1
