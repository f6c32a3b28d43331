"""A DataFrame as text for the terminal, a paper or another program."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from workbench.cli.latex import tabular
from workbench.cli.text import cell, echo, print_table
from workbench.spec import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("table", "csv", "md", "latex", "json")


def check_format(name: str, allowed: tuple[str, ...] = FORMATS) -> None:
    """Refuse an unknown --format before any work is done."""
    if name not in allowed:
        raise InputError(f"--format '{name}' is unknown{nearest(name, allowed)}; allowed: {', '.join(allowed)}")


def show(frame: pd.DataFrame, form: str = "table") -> None:
    """Print `frame` in one of FORMATS on stdout; a table is drawn to fit on a terminal and plain in a pipe."""
    if form == "csv":
        echo(frame.to_csv(index=False), nl=False)
    elif form == "json":
        echo(as_json(frame))
    elif form == "table":
        print_table([str(c) for c in frame.columns], [list(row) for row in frame.itertuples(index=False)])
    else:
        header, rows = (
            [str(c) for c in frame.columns],
            [[cell(v) for v in row] for row in frame.itertuples(index=False)],
        )
        echo(_markdown(header, rows) if form == "md" else tabular(header, rows))


def as_json(frame: pd.DataFrame) -> str:
    """One object per row; a missing value (NaN among them) is null, an infinite one the text "inf" or "-inf"."""
    rows = [{str(k): _json(v) for k, v in row.items()} for row in frame.to_dict(orient="records")]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False)


def _json(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value  # numpy scalars
    if value is None or value != value:
        return None
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, list, dict)) else str(value)


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *([c.replace("|", "\\|") for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
