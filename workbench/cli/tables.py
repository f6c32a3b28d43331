"""Tables on stdout: drawn for a terminal, or as CSV, Markdown, LaTeX or JSON."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.cli.shared import cell, echo
from workbench.spec import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("table", "csv", "md", "latex", "json")
_PLAIN = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)
_MATHS = {
    "·": r"\cdot", "×": r"\times", "±": r"\pm", "≤": r"\leq", "≥": r"\geq", "≠": r"\neq", "∞": r"\infty",
    "→": r"\to", "−": "-", "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\varepsilon",
    "κ": r"\kappa", "λ": r"\lambda", "μ": r"\mu", "π": r"\pi", "ρ": r"\rho", "σ": r"\sigma", "τ": r"\tau",
}  # fmt: skip
_ACCENTS = {"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r", "\u0327": "c"}


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


def tabular(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The lines of a tabular with rules, the first column left-aligned, the others right."""
    lines = [_line(row) for row in rows]
    columns = "l" + "r" * (len(header) - 1)
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _line(header),
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _line(row: Sequence[str]) -> str:
    text = " & ".join(escape(cell) for cell in row)
    # After the \\ of the line before, [ would open its optional argument and * would be its starred form.
    return (f"{{}}{text}" if text.startswith(("[", "*")) else text) + r" \\"


def escape(text: str) -> str:
    """`text` as it is read, in characters that any LaTeX typesets; one that has no name there is its code point."""
    return "".join(_character(c) for c in text)


def _character(c: str) -> str:
    if c.isascii():
        return c.translate(_PLAIN)
    if c in _MATHS:
        return f"${_MATHS[c]}$"
    base, *marks = list(unicodedata.normalize("NFD", c))
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
        return f"\\{_ACCENTS[marks[0]]}{{{base}}}"
    return f"[U+{ord(c):04X}]"
