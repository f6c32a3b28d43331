"""Arrow schemas of the tables, and the rows of table `token`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from workbench.diagnostics import CATALOGUE
from workbench.diagnostics.evidence import Evidence, Rollouts
from workbench.spec import table as declaration

TYPES = {
    "VARCHAR": pa.string(), "BIGINT": pa.int64(), "INTEGER": pa.int32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}  # fmt: skip


@cache
def schema_of(table: str) -> pa.Schema:
    """Return every column of `table` in order, `X[]` as a list of X; KeyError for a table that does not exist."""
    columns = [(c.name, c.type) for c in declaration(table).columns]
    columns += [(d.name, d.sql_type) for d in CATALOGUE if d.table == table]
    lists = {f"{name}[]": pa.list_(kind) for name, kind in TYPES.items()}
    return pa.schema([(name, (TYPES | lists)[kind]) for name, kind in columns])


def to_arrow(values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of `rows` entries: None and masked entries become NULL, NaN and Inf stay; a scalar is repeated."""
    if values is None:
        return pa.nulls(rows, kind)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        data = np.ma.getdata(values)
        if pa.types.is_primitive(kind) and not pa.types.is_temporal(kind):
            data = data.astype(kind.to_pandas_dtype(), copy=False)
        return pa.array(data, kind, np.ma.getmaskarray(values) if np.ma.isMaskedArray(values) else None)
    return pa.array(values if isinstance(values, (list, tuple)) else [values] * rows, kind)


Decode = Callable[[list[int]], Sequence[str]]

MEASURED = ("log_prob_behaviour", "log_prob_old", "log_prob", "entropy", "gradient_weight", "advantages", "values_old")
COLUMN = {"advantages": "advantage", "values_old": "value"}  # of table token, where its name is another


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

    `worst_*` are measured in the one with the largest sum of |gradient_weight| over the trajectory. What is measured on
    trained tokens only is NULL elsewhere; what no update trained on is NULL throughout.
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

    def cut(x: Any, place: Sequence[int]) -> np.ndarray:
        entries = x[place[0], place[1], : len(ids)].detach()
        return np.asarray((entries.double() if x.is_floating_point() else entries).cpu().numpy())

    def trained(values: np.ndarray, place: Sequence[int]) -> list[float | None]:
        return [v if m else None for v, m in zip(values.tolist(), cut(updates.mask, place).tolist(), strict=True)]

    def ratio_and_clip(place: Sequence[int]) -> tuple[list[float | None], list[bool]]:
        stopped = (cut(updates.active_low, place) | cut(updates.active_high, place)).astype(bool)
        log_ratio = cut(updates.log_prob, place) - cut(updates.log_prob_old, place)
        return trained(log_ratio, place), (stopped & cut(updates.mask, place).astype(bool)).tolist()

    def weight(place: Sequence[int]) -> float:
        total = float(np.abs(cut(updates.gradient_weight, place)[cut(updates.mask, place).astype(bool)]).sum())
        return math.inf if math.isnan(total) else total

    last, worst = places[-1], max(places, key=weight)
    for name in MEASURED:
        tensor = getattr(updates, name)
        row[COLUMN.get(name, name)] = None if tensor is None else trained(cut(tensor, last), last)
    row |= {"trained": cut(updates.mask, last).astype(bool).tolist(), "turn_index": cut(updates.turn, last).tolist()}
    row["log_ratio"], row["clipped"] = ratio_and_clip(last)
    row["worst_log_ratio"], row["worst_clipped"] = ratio_and_clip(worst)
    row["worst_gradient_weight"] = trained(cut(updates.gradient_weight, worst), worst)
    return row | {"worst_epoch": int(updates.epoch[worst[0]])}
