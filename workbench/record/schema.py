"""Arrow schemas of the tables, and the rows of table `token`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.evidence import Evidence, Rollouts
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
    """Return every column of `table` in order; KeyError for a table that does not exist."""
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


Decode = Callable[[list[int]], Sequence[str]]

MEASURED = {
    "log_prob_behaviour": "log_prob_behaviour",
    "log_prob_old": "log_prob_old",
    "log_prob": "log_prob",
    "entropy": "entropy",
    "advantage": "advantages",
    "value": "values_old",
    "gradient_weight": "gradient_weight",
}


def sample(step: int, count: int, n: int, gradient_share: np.ndarray | None) -> list[int]:
    """`count` of `n` trajectories: the one with the largest share of the gradient, and others in turn, step by step."""
    if count <= 0 or n == 0:
        return []
    culprit = [] if gradient_share is None else [int(np.argmax(np.ma.filled(gradient_share, -1.0)))]
    others = [(step * max(1, count - 1) + j) % n for j in range(n)]
    return [*culprit, *[i for i in others if i not in culprit]][:count]


def token_rows(
    chosen: Sequence[int], rollouts: Rollouts, updates: Evidence | None, decode: Decode | None
) -> dict[str, Any]:
    """Columns of table `token` for the `chosen` trajectories, measured in the last update that trained on each.

    What is measured on trained tokens only is NULL elsewhere; what no update trained on is NULL throughout.
    """
    rows = [_row(i, rollouts, updates) for i in chosen]
    columns: dict[str, Any] = {key: [row.get(key) for row in rows] for key in dict.fromkeys(k for r in rows for k in r)}
    columns["token"] = [list(decode(ids)) if decode is not None else None for ids in columns["token_id"]]
    return columns


def _row(i: int, rollouts: Rollouts, updates: Evidence | None) -> dict[str, Any]:
    ids = list(rollouts.tokens[i])
    row: dict[str, Any] = {"trajectory": i, "token_id": ids}
    places = [] if updates is None else (updates.trajectory == i).nonzero().tolist()
    if updates is None or not places:
        return row
    u, b = places[-1]

    def cut(x: Any) -> np.ndarray:
        entries = x[u, b, : len(ids)].detach()
        return np.asarray((entries.double() if x.is_floating_point() else entries).cpu().numpy())

    mask = cut(updates.mask).astype(bool)
    for name, source in MEASURED.items():
        tensor = getattr(updates, source)
        row[name] = None if tensor is None else _on(mask, cut(tensor))
    row["trained"] = mask.tolist()
    row["turn_index"] = cut(updates.turn).tolist()
    row["log_ratio"] = _on(mask, cut(updates.log_prob) - cut(updates.log_prob_old))
    row["clipped"] = (mask & (cut(updates.active_low) | cut(updates.active_high)).astype(bool)).tolist()
    return row


def _on(mask: np.ndarray, values: np.ndarray) -> list[float | None]:
    return [v if m else None for v, m in zip(values.tolist(), mask.tolist(), strict=True)]
