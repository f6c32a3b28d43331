"""The questions that come with the workbench: one SQL file each, whose first line is a comment with its title."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.spec import InputError, nearest

QUERIES = Path(__file__).parent / "queries"


@dataclass(frozen=True)
class Saved:
    """A saved question."""

    name: str
    title: str
    sql: str


def saved() -> list[Saved]:
    """All saved questions, by name."""
    found = []
    for file in sorted(QUERIES.glob("*.sql")):
        first, _, body = file.read_text(encoding="utf-8").partition("\n")
        found.append(Saved(file.stem, first.removeprefix("--").strip(), body.strip()))
    return found


def saved_query(name: str) -> Saved:
    """The saved question `name`; InputError with the nearest name for an unknown one."""
    known = {query.name: query for query in saved()}
    if name not in known:
        raise InputError(f"no saved query '{name}'{nearest(name, known)}; there is: {', '.join(known)}")
    return known[name]
