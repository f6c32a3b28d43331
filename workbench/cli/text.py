"""Text of logs and tables on a terminal: nothing in it may act as a control sequence or as markup."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import typer

from workbench.store.text import visible as visible

_LONGEST = 4000  # characters of a message that quotes what somebody gave


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print on stdout, or on stderr: the one way out of the verbs, through which no control character passes.

    They are shown as JSON escapes them, so JSON stays the JSON that it was; files (--output) hold the text as it is.
    """
    typer.echo(visible(text), err=err, nl=nl)


def message(text: str) -> str:
    """What is said of a mistake: cut where it would quote a whole file."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text) - _LONGEST:,} more characters)"


def cell(value: Any, *, null: str = "") -> str:
    """A value in a cell: NULL as `null`, numbers with four significant digits, lists cut short."""
    if value is None:
        return null
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list):
        shown = " ".join(cell(v, null="NULL") for v in value[:6])
        return f"[{shown}{f' ... {len(value)}' if len(value) > 6 else ''}]"
    return visible(str(value)).replace("\n", "\\n").replace("\t", " ")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, null: str = "") -> None:
    """A table on stdout: drawn to fit on a terminal, plain aligned columns (nothing cut) in a pipe."""
    cells = [[cell(value, null=null) for value in row] for row in rows]
    right = [all(v is None or isinstance(v, int | float) for v in column) for column in zip(*rows, strict=True)] or [
        False for _ in columns
    ]
    names = [cell(c) for c in columns]
    if sys.stdout.isatty():
        _draw(names, cells, right)
        return
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for line in [names, ["-" * w for w in widths], *cells]:
        parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        echo("  ".join(parts).rstrip())


def _draw(columns: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, numbers in zip(columns, right, strict=True):
        table.add_column(Text(column), justify="right" if numbers else "left", overflow="fold")
    for line in cells:
        table.add_row(*(Text(c) for c in line))  # Text, not str: a str would be read as markup
    Console(highlight=False).print(table)
