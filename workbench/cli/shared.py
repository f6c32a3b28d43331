"""What the verbs share: output that no text can turn into control sequences, the synced database, common options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.store.text import visible as visible

if TYPE_CHECKING:
    from workbench.grid.config import Grid
    from workbench.grid.folder import History
    from workbench.store.reader import Reader

_LONGEST = 4000  # characters of a message that quotes what somebody gave


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print on stdout, or on stderr: the one way out of the verbs, through which no control character passes.

    They are shown as JSON escapes them, so JSON stays the JSON that it was; files (--output) hold the text as it is.
    """
    typer.echo(visible(text), err=err, nl=nl)


def message(text: str) -> str:
    """Shorten an error message that would quote a whole file."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text) - _LONGEST:,} more characters)"


def cell(value: Any, *, null: str = "") -> str:
    """Format a value for a cell: NULL as `null`, numbers with four significant digits, lists cut short."""
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


_QUICK = 2.0  # seconds to wait for the write lock before reading what is there


def current(runs: Path, *, seconds: float | None = None) -> Reader:
    """Return a reader of the database after a sync; if the lock is taken, of the database as it is, with a note.

    `seconds` limits the running time of a question. Raises InputError for a folder that does not exist, or that has no
    database and takes none.
    """
    from workbench.store.connect import Busy, database
    from workbench.store.reader import Reader
    from workbench.store.sync import sync

    try:
        report = sync(runs, seconds=_QUICK)
    except Busy as busy:
        if not database(runs).exists():
            raise
        note(f"not synced, showing the rows of the last sync: {busy}")
    else:
        for path in report.corrupt:
            note(f"corrupt segment set aside: {path}")
        for reason in report.skipped:
            note(reason)
    return Reader(runs) if seconds is None else Reader(runs, seconds=seconds)


def note(text: str) -> None:
    """Print a line that is not a result, on stderr."""
    echo(text, err=True)


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of every cell, e.g. learn.staleness=0; also seeds=[0]. Repeatable.",
        show_default=False,
    ),
]
Arms = Annotated[
    list[str] | None,
    typer.Option("--arm", metavar="NAME", help="Only this arm of the file. Repeatable.", show_default=False),
]


def grid_of(file: Path, overrides: Sequence[str], history: History | None = None, only: Sequence[str] = ()) -> Grid:
    """Return the cells of a grid file. Raises InputError for unknown algorithms and slots, and impossible group sizes.

    `history` holds the recorded runs, for a grid whose cells depend on them; `only` names the arms, empty = all.
    """
    from workbench.grid.config import load

    return load(file, overrides, history, only)


def runs_of(ctx: typer.Context) -> Path:
    """Return the folder of the global option --runs."""
    return Path(ctx.obj)
