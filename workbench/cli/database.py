"""What every reading verb does first: bring the database up to date if that is quick, and say so if it is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli.text import echo

if TYPE_CHECKING:
    from workbench.store.reader import Reader

_QUICK = 2.0  # seconds to wait for the write lock before reading what is there


def current(runs: Path, *, seconds: float | None = None) -> Reader:
    """A reader of the freshly synced database; where the lock is not free, of the database as it is, with a note.

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
    """A line that is not a result."""
    echo(text, err=True)
