"""What a chart can be drawn from: the plain columns of an answer, a first choice of axes, and the marks that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

# Columns that say where a value stands rather than what was measured, the likeliest x-axis first.
INDEX = (
    "step", "steps_after_collapse", "percent_of_run", "staleness", "update", "epoch", "turn_index", "written_at",
    "seed", "generation", "attempt", "trajectory", "prompt_group", "rollout_step",
)  # fmt: skip
GROUPS = ("arm", "algorithm", "run_id", "experiment", "status", "outcome")
_FEW = 12  # values of a column that can stand for groups


def drawable(table: pa.Table) -> pd.DataFrame:
    """The columns of numbers, times and texts; a truth value is a text, a decimal number a float."""
    import pyarrow as pa
    import pyarrow.types as kinds

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if kinds.is_decimal(column.type):
            column = column.cast(pa.float64())
        elif kinds.is_boolean(column.type):
            column = column.cast(pa.string())
        elif kinds.is_list(column.type) or kinds.is_null(column.type) or kinds.is_time(column.type):
            continue
        columns[name] = column
    found: pd.DataFrame = pa.table(columns).to_pandas(date_as_object=False)
    return found


def numbers(frame: pd.DataFrame) -> list[str]:
    """The columns of numbers."""
    return [name for name in frame.columns if frame[name].dtype.kind in "iuf"]


def first_choice(frame: pd.DataFrame) -> tuple[str, str, str]:
    """The x, y and colour that such an answer is mostly about; y is empty where there is nothing to draw."""
    known = numbers(frame)
    places = [name for name in INDEX if name in known] + [c for c in frame.columns if frame[c].dtype.kind == "M"]
    measured = [name for name in known if name not in places] or known[-1:]
    groups = [name for name in (*GROUPS, *frame.columns) if name in frame and _groups(frame, name)]
    x = next((name for name in places if name not in measured), next(iter(groups), next(iter(frame.columns), "")))
    y = next((name for name in measured if name != x), "")
    return x, y, next((name for name in groups if name != x), "")


def _groups(frame: pd.DataFrame, name: str) -> bool:
    return frame[name].dtype.kind == "O" and 1 < frame[name].nunique() <= _FEW


def fitting_marks(frame: pd.DataFrame, x: str, colour: str) -> list[str]:
    """The marks that show every row apart, the best first: no bar and no line where rows share an x."""
    place = [x, colour] if colour else [x]
    alone = not frame.duplicated(list(dict.fromkeys(place))).any()
    if not alone:
        return ["points"]
    return ["bars", "points"] if frame[x].dtype.kind == "O" else ["line", "points", "bars"]


def complete(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The rows that a chart of `columns` can show: no NULL, NaN or Inf in any of them."""
    import numpy as np

    shown = frame[list(dict.fromkeys(columns))].replace([np.inf, -np.inf], np.nan)
    return frame[shown.notna().all(axis=1)]
