"""Rows of a log as columns: blocks of rows in, one value a step and metric out, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from sorl.integrations.names import STEP
from sorl.spec import InputError

# rows that are held as rows, and keys in them
BLOCK = 4096
KEYS = 500_000
# values of a log, as 1.5 million steps of 40 metrics; metrics that are looked at
CELLS = 64_000_000
METRICS = 2000
LONGEST = 200  # characters of a metric's name
LARGEST = 1e100  # what no sum of some thousands would hold is infinite
CLOCKS = ("time", "timestamp", "_timestamp", "_runtime", "runtime", "epoch")  # in the rows of every producer
ATTEMPTS = 64  # restarts of a run; a log with more is in no order

# float64: masked where nothing was logged; NaN and infinities are values
Column = np.ma.MaskedArray[Any, Any]


class Rows:
    """Collects the rows of one run in the order of its log.

    `config` is what the source says of its settings, by dotted key; `notes` say what was left out, replaced
    or assumed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.status = "finished"
        self.config: dict[str, Any] = {}
        self.notes: list[str] = []
        self._blocks: list[tuple[int, dict[str, Column]]] = []  # rows, metrics
        self._names: dict[str, None] = {}
        self._cells = 0
        self._stepped = False
        self._full = False

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> Rows:
        """Take rows; what is no number in them is left out."""
        block: list[Mapping[str, Any]] = []
        held = 0
        for row in chain(rows, [None]):
            if row is not None:
                block.append(row)
                held += len(row)
            if block and (row is None or len(block) == BLOCK or held > KEYS):
                names = self._room(dict.fromkeys(chain.from_iterable(block)))
                self.block({name: numbers([one.get(name) for one in block]) for name in names}, len(block))
                block = []
                held = 0
        return self

    def __len__(self) -> int:
        return sum(size for size, _ in self._blocks)

    def block(self, columns: Mapping[str, Column], size: int) -> None:
        """Take `size` rows as columns. Raises InputError for a log of more than CELLS values."""
        self._stepped = self._stepped or any(name in columns for name in STEP)
        known = {
            name: columns[name] for name in self._room(columns) if not np.ma.getmaskarray(columns[name]).all()
        }
        self._names |= dict.fromkeys(known)
        self._cells += size * len(known)
        self._blocks.append((size, known))
        if max(self._cells, len(self)) > CELLS:
            raise InputError(
                f"'{self.name}' holds more than {CELLS:,} values; give a part of it, or fewer metrics"
            )

    def _room(self, names: Iterable[str]) -> list[str]:
        """Return the names that are looked at: of a log of too many metrics the first."""
        room: list[str] = []
        for name in names:
            if name in self._names or (len(self._names) + len(room) < METRICS and len(name) <= LONGEST):
                room.append(name)
            else:
                self._full = True
        return room

    def by_step(self) -> tuple[np.ndarray, dict[str, Column]]:
        """Return the steps, ascending, and the metrics, a value a step; the rows are gone afterwards.

        Attempts that a restart replaced are left out, of equal steps the last value counts (`folded`). Raises
        InputError for a log without a row, or whose rows name no step that is a whole number of at least 0.
        """
        if not (size := len(self)):
            raise InputError(f"'{self.name}' holds no rows")
        if size * len(self._names) > 4 * CELLS:
            raise InputError(
                f"'{self.name}' has {size:,} rows of {len(self._names):,} metrics; give a part of it"
            )
        if self._full:
            self.notes.append(f"only the first {METRICS:,} metrics were read")
        steps = np.ma.filled(self._steps(), -1.0)
        usable = (steps >= 0) & (steps < 2.0**53)
        if not usable.any():
            raise InputError(f"no row of '{self.name}' has a step that is a number")
        if lost := int((~usable).sum()):
            self.notes.append(f"{lost:,} rows without a step were left out")
        rows = slice(None) if usable.all() else usable  # a slice copies nothing
        metrics = {name: self._column(name)[rows] for name in self._names if name not in STEP}
        return folded(steps[usable].astype(np.int64), metrics, self.notes)

    def _column(self, name: str) -> Column:
        """Return all rows of a metric, and forget its blocks."""
        found = [block.pop(name, np.ma.MaskedArray(np.zeros(size), True)) for size, block in self._blocks]
        return np.ma.concatenate(found)

    def _steps(self) -> Column:
        """Return the step of each row, by the first name of one that the row has; the number of the row
        without any.
        """
        present = [name for name in STEP if name in self._names]
        present = [name for name in present if name != "_step"] or present  # it counts calls of the tracker
        if not present and not self._stepped:
            self.notes.append("no column names the step: rows are numbered instead")
            return np.ma.MaskedArray(np.arange(len(self), dtype=float))
        steps = np.ma.MaskedArray(np.zeros(len(self)), True)
        for name in present:
            steps = np.ma.where(np.ma.getmaskarray(steps), self._column(name), steps)
        return np.ma.masked_invalid(steps)


def numbers(values: list[Any]) -> Column:
    """Return values as a column: None and what is no number is masked; "nan" and "inf" are what they say."""
    try:
        found = np.array(values, dtype=float)
        if found.ndim != 1:
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        values = [_number(value) for value in values]
        found = np.array(values, dtype=float)
    return column(found, np.array([value is None for value in values]) if None in values else np.ma.nomask)


def column(values: np.ndarray, mask: Any) -> Column:
    """Return a column of floats, where what is larger than LARGEST is infinite."""
    with np.errstate(invalid="ignore"):
        large = np.abs(values) > LARGEST
    if large.any():
        values = np.where(large, np.sign(values) * np.inf, values)
    return np.ma.MaskedArray(values, mask)


def _number(value: Any) -> float | None:
    if isinstance(value, str) and len(value) > 64:
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (ValueError, TypeError):
        return None


def of_events(events: Iterable[tuple[Any, str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows of (step, metric, value): what follows each other with one step, each metric
    once, is a row.
    """
    row: dict[str, Any] = {}
    for at, metric, value in events:
        if row and (row["step"] != at or metric in row):
            yield row
            row = {}
        row["step"] = at
        row[metric] = value
    if row:
        yield row


def folded(
    steps: np.ndarray, metrics: dict[str, Column], notes: list[str]
) -> tuple[np.ndarray, dict[str, Column]]:
    """Return (steps, metrics) with one row a step; takes the columns out of `metrics` as it goes.

    A row in which the steps of most metrics run backwards begins a new attempt: what earlier attempts logged
    from that step on is gone, also of metrics that the new one has not logged again. Producers at different
    steps of one attempt (rollout and trainer of an asynchronous run) replace nothing. Of equal steps the last
    value counts.
    """
    if not (np.diff(steps) > 0).all():
        begun = _begun(steps, metrics)
        if 2 * len(begun) > len(steps) or len(begun) > ATTEMPTS:
            notes.append("steps are in no order: of equal steps the last value counts")
            begun = begun[:0]
        # The rows at which each metric begins again: so often is its attempt at a row.
        again = {name: np.intersect1d(_back(steps, values), begun) for name, values in metrics.items()}
        # attempt, of most metrics -> its last such row and largest step
        restarts: dict[int, tuple[int, int]] = {}
        for row in begun.tolist():
            own = [
                np.searchsorted(rows, row, "right")
                for name, rows in again.items()
                if name not in CLOCKS and row in rows
            ]
            attempt = int(np.median(own))
            restarts[attempt] = (row, max(int(steps[row]), restarts.get(attempt, (0, 0))[1]))
        for _, first in restarts.values():
            notes.append(f"restarted at step {first:,}: what was logged from there on before was replaced")
        at = np.arange(len(steps))
        order = np.argsort(steps, kind="stable")
        ordered = steps[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        for name, rows in again.items():
            values = metrics.pop(name)
            kept = ~np.ma.getmaskarray(values)
            attempts = np.searchsorted(rows, at, "right")
            for attempt, (row, first) in restarts.items():
                kept &= (at >= row) | (steps < first) | (attempts >= attempt)
            last = np.maximum.reduceat(np.where(kept[order], at, -1), starts)
            if (last >= 0).any():
                metrics[name] = np.ma.MaskedArray(np.ma.getdata(values)[order][last], last < 0)
        steps = ordered[starts]
    used = np.zeros(len(steps), bool)
    for values in metrics.values():
        used |= ~np.ma.getmaskarray(values)
    return (
        (steps, metrics)
        if used.all()
        else (steps[used], {name: values[used] for name, values in metrics.items()})
    )


# the rows at which the steps of a metric run backwards
def _back(steps: np.ndarray, values: Column) -> np.ndarray:
    rows = np.flatnonzero(~np.ma.getmaskarray(values))
    return rows[1:][np.diff(steps[rows]) < 0]


def _begun(steps: np.ndarray, metrics: Mapping[str, Column]) -> np.ndarray:
    """Return the rows at which an attempt begins: in more than half of a row's metrics steps
    run backwards.
    """
    logged = np.zeros(len(steps), int)
    back = np.zeros(len(steps), int)
    for name, values in metrics.items():
        if name not in CLOCKS:
            logged += ~np.ma.getmaskarray(values)
            back[_back(steps, values)] += 1
    return np.flatnonzero(2 * back > logged)
