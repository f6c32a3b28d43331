"""What became of the records of a log: which were left out, why, and where the first of them stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sorl.spec.reading import MATERIAL, Reading

Unit = Literal["rows", "records"]  # a record of a framed file is one scalar, or a row


@dataclass
class LeftOut:
    """Rows or records that were left out for one reason."""

    unit: Unit
    reason: str
    count: int
    first_place: str  # such as "line 4"; empty where a format has no places


class Account:
    """Counts what is left out of one run; a reader reports each row or record as it meets it."""

    def __init__(self) -> None:
        self.records = 0  # that were read of a framed file
        self._left_out: dict[tuple[Unit, str], LeftOut] = {}

    def leave_out(self, reason: str, place: str = "", count: int = 1, unit: Unit = "rows") -> None:
        """Count `count` rows or records that are not read, because of `reason`, the first at `place`."""
        key = (unit, reason)
        if key in self._left_out:
            self._left_out[key].count += count
        else:
            self._left_out[key] = LeftOut(unit, reason, count, place)

    def absorb(self, later: Account) -> None:
        """Add what another part of the log left out."""
        self.records += later.records
        for part in later._left_out.values():
            self.leave_out(part.reason, part.first_place, part.count, part.unit)

    def count(self, unit: Unit) -> int:
        """How many were left out."""
        return sum(part.count for part in self._left_out.values() if part.unit == unit)

    def reading(self, rows: int, warnings: Iterable[str], notes: Iterable[str]) -> Reading:
        """Return how a log of `rows` rows was read, where other `warnings` and `notes` are known of it.

        What is left out is a warning where it is more than MATERIAL of the rows or records, else a note.
        """
        totals: dict[Unit, int] = {"rows": rows, "records": self.records + self.count("records")}
        grave: list[str] = []
        slight: list[str] = []
        worst: Unit = "rows"
        for unit, total in totals.items():
            lost = self.count(unit)
            sentences = [_sentence(part, total) for part in self._left_out.values() if part.unit == unit]
            if lost > MATERIAL * total:
                summary = f"{lost:,} of {total:,} {unit} are missing from this verdict"
                grave += sentences if len(sentences) == 1 else [summary, *sentences]
            else:
                slight += sentences
            if lost * totals[worst] > self.count(worst) * total:
                worst = unit
        return Reading(totals[worst], self.count(worst), (*grave, *warnings), (*slight, *notes))


def _sentence(part: LeftOut, total: int) -> str:
    place = f", first in {part.first_place}" if part.first_place else ""
    return f"{part.count:,} of {total:,} {part.unit} left out: {part.reason}{place}"
