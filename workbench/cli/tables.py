"""Output without control sequences: messages; tables for a terminal, as CSV, Markdown, LaTeX, JSON or
Parquet.
"""

import json
import math
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sorl.store.text import as_csv, as_json, shortened, visible

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FORMATS = ("table", "csv", "md", "latex", "json")
Rows = Sequence[Sequence[Any]]
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
_MATHS = {
    "·": r"\cdot",
    "×": r"\times",
    "±": r"\pm",
    "≤": r"\leq",
    "≥": r"\geq",
    "≠": r"\neq",
    "∞": r"\infty",
    "→": r"\to",
    "−": "-",
    "α": r"\alpha",
    "β": r"\beta",
    "γ": r"\gamma",
    "δ": r"\delta",
    "ε": r"\varepsilon",
    "κ": r"\kappa",
    "λ": r"\lambda",
    "μ": r"\mu",
    "π": r"\pi",
    "ρ": r"\rho",
    "σ": r"\sigma",
    "τ": r"\tau",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0308": '"',
    "\u030a": "r",
    "\u0327": "c",
}


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print on stdout or stderr; every verb prints through this, which shows control characters
    as JSON does.
    """
    typer.echo(visible(text), err=err, nl=nl)


def note(text: str) -> None:
    """Print a line that is not a result, on stderr."""
    echo(text, err=True)


REFUSED = 5  # logs of a folder of which it is said why they are not read


def note_refused(reasons: Sequence[str]) -> None:
    """Print which logs of a source were not read, and why, on stderr."""
    if not reasons:
        return
    lines = [f"left out: {shortened(reason)}" for reason in reasons[:REFUSED]]
    if len(reasons) > REFUSED:
        lines.append(f"left out: {len(reasons) - REFUSED:,} more")
    note("\n".join(lines))


@contextmanager
def writing(file: Path, what: str = "") -> Iterator[None]:
    """Say on stderr that `file` was written. Raises InputError where it cannot be."""
    from sorl.spec import InputError
    from sorl.spec.files import words_of

    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write '{file}': {words_of(error)}") from None
    note(f"wrote {file}{what and ': '}{what}")


def show(table: "pd.DataFrame | Sequence[Mapping[str, Any]]", form: str = "table") -> None:
    """Print a DataFrame, or an object a row, on stdout in one of FORMATS."""
    import pandas as pd

    columns, rows = plain(pd.DataFrame(table))
    if form == "table":
        print_table(columns, rows)
    else:
        echo(as_text(columns, rows, form), nl=False)


def save(text: str, output: Path | None) -> None:
    """Write a result to stdout, or to a file. Raises InputError if the file cannot be written."""
    if output is None:
        echo(text, nl=False)
    else:
        with writing(output):
            output.write_text(text, encoding="utf-8")


def save_parquet(table: "pa.Table", output: Path) -> None:
    """Write a Parquet file. Raises InputError if it cannot be written."""
    import pyarrow.parquet as pq

    with writing(output, f"{table.num_rows:,} rows"):
        pq.write_table(table, output)


def plain(frame: "pd.DataFrame") -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of Python values; what is missing (NaN among it) is None."""
    rows = [list(map(_plain_value, row)) for row in frame.itertuples(index=False)]
    return [str(c) for c in frame.columns], rows


def _plain_value(value: Any) -> Any:
    """Return a value of NumPy or pandas as Python's; NaN and NaT, which differ from themselves, as None."""
    if hasattr(value, "item"):
        value = value.item()
    return None if value != value else value


def records(columns: Sequence[str], rows: Rows) -> list[dict[str, Any]]:
    """Return one object per row."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


def document(value: Any) -> str:
    """Return JSON text: None is null, NaN and infinities are the strings "NaN", "Infinity" and
    "-Infinity".
    """
    return json.dumps(as_json(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_text(columns: Sequence[str], rows: Rows, form: str) -> str:
    """Return a table as csv, json, md or latex."""
    if form == "csv":
        return as_csv(columns, rows)
    if form == "json":
        return document(records(columns, rows))
    cells = [list(map(cell, row)) for row in rows]
    if form == "latex":
        return tabular(columns, cells) + "\n"
    from sorl.spec.markdown import markdown_table  # not above: the help page starts without sorl.spec

    return markdown_table(columns, cells) + "\n"


def cell(value: Any, *, null: str = "") -> str:
    """Format a value for a cell: NULL as `null`, numbers with four significant digits, lists and long texts
    cut short.
    """
    if value is None:
        return null
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, list):
        beginning = " ".join(cell(v, null="NULL") for v in value[:6])
        rest = f" ... {len(value)}" if len(value) > 6 else ""
        return f"[{beginning}{rest}]"
    return visible(shortened(str(value))).replace("\n", "\\n").replace("\t", " ")


def print_table(columns: Sequence[str], rows: Rows, *, null: str = "") -> None:
    """Print a table: drawn to fit on a terminal, plain aligned columns in a pipe; `cell` shortens."""
    names = [cell(c) for c in columns]
    as_cell = partial(cell, null=null)
    cells = [list(map(as_cell, row)) for row in rows]
    is_numeric = [_is_numeric(rows, column) for column in range(len(names))]
    if sys.stdout.isatty():
        _draw(names, cells, is_numeric)
    else:
        _print_aligned(names, cells, is_numeric)


def _is_numeric(rows: Rows, column: int) -> bool:
    """Whether a column holds only numbers and NULLs; without a row it does not."""
    values = [row[column] for row in rows]
    return bool(values) and all(value is None or isinstance(value, int | float) for value in values)


def _print_aligned(names: Sequence[str], cells: Sequence[Sequence[str]], is_numeric: Sequence[bool]) -> None:
    """Print plain columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for line in [names, ["-" * width for width in widths], *cells]:
        columns = zip(line, widths, is_numeric, strict=True)
        parts = [text.rjust(width) if right else text.ljust(width) for text, width, right in columns]
        echo("  ".join(parts).rstrip())


def _draw(names: Sequence[str], cells: Sequence[Sequence[str]], is_numeric: Sequence[bool]) -> None:
    """Draw a table that fits on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, is_number in zip(names, is_numeric, strict=True):
        table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for line in cells:
        table.add_row(*map(Text, line))  # Text, not str: a str would be read as markup
    Console(highlight=False).print(table)


def tabular(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Return a tabular (needs `\usepackage{booktabs}`), the first column left-aligned, the others right."""

    def line(row: Sequence[str]) -> str:
        text = " & ".join(escape(cell) for cell in row)
        # or \\ would take the cell as its argument
        return f"{'{}' if text[:1] in ('[', '*') else ''}{text} \\\\"

    begin = rf"\begin{{tabular}}{{{'l' + 'r' * (len(header) - 1)}}}"
    body = [r"\toprule", line(header), r"\midrule", *map(line, rows), r"\bottomrule"]
    return "\n".join([begin, *body, r"\end{tabular}"])


def escape(text: str) -> str:
    """Escape text for LaTeX; a character without a LaTeX name becomes its code point."""

    def escaped(c: str) -> str:
        base, *marks = list(unicodedata.normalize("NFD", c))
        if c in _MATHS:
            return f"${_MATHS[c]}$"
        if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
            return f"\\{_ACCENTS[marks[0]]}{{{base}}}"
        return _LATEX.get(c, c if c.isascii() else f"[U+{ord(c):04X}]")

    return "".join(map(escaped, text))
