"""The entries of the glossary: diagnostics out of the dictionary, one a name and meaning, and the search in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# Table -> what a row of it is, in the order in which an entry names them.
LEVELS = {
    "step": "step", "minibatch": "optimizer update", "turn_step": "turn index", "turn": "turn",
    "trajectory": "trajectory", "token": "token",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A diagnostic: its words, the formula at each of its tables, and the alarms (table, words with the reason)."""

    name: str
    unit: str
    description: str
    source: str
    formulas: Mapping[str, str]
    alarms: Sequence[tuple[str, str]]

    @property
    def by_formula(self) -> list[tuple[list[str], str]]:
        """Tables that share a formula, and the formula."""
        found: dict[str, list[str]] = {}
        for table, formula in self.formulas.items():
            found.setdefault(formula, []).append(table)
        return [(tables, formula) for formula, tables in found.items()]

    @property
    def text(self) -> str:
        """Everything that a search looks at besides the name."""
        words = [self.unit, self.description, self.source, *self.formulas, *self.formulas.values()]
        return " ".join([*words, *(alarm for _, alarm in self.alarms)])


def entries(rows: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Entries from rows of table `diagnostic`, by name; columns of one name and meaning are one entry."""
    order = list(LEVELS)

    def place(row: Mapping[str, Any]) -> tuple[str, int]:
        table = str(row["table_name"])
        return str(row["name"]), order.index(table) if table in order else len(order)

    groups: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=place):
        name, unit, told, source = (str(row[column] or "") for column in ("name", "unit", "description", "source"))
        groups.setdefault((name, unit, told, source), []).append(row)
    return [Entry(*key, *_at_tables(group)) for key, group in groups.items()]


def _at_tables(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The formula and the alarm at each table."""
    formulas = {str(row["table_name"]): str(row["formula"] or "") for row in rows}
    return formulas, [(str(row["table_name"]), str(row["alarm"])) for row in rows if row["alarm"]]


def search(found: Iterable[T], asked: str, name: Callable[[T], str], text: Callable[[T], str]) -> list[T]:
    """What holds every word of `asked`: the name itself first, then names that begin with or hold it, then the rest."""
    words = asked.lower().split()
    whole = " ".join(words)

    def rank(one: T) -> int:
        title = name(one).lower()
        if not words or title == whole:
            return 0
        if title.startswith(whole):
            return 1
        if all(word in title for word in words):
            return 2
        return 3 if all(word in f"{title} {text(one).lower()}" for word in words) else 4

    ranked = [(rank(one), one) for one in found]
    return [one for place, one in sorted(ranked, key=lambda pair: pair[0]) if place < 4]
