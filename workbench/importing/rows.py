"""Rows of a log as columns: blocks of rows in, one value a step and metric out, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np

from sorl.diagnosis.standing import counted
from sorl.importing.account import Account
from sorl.importing.names import STEP, is_step, place, step_names
from sorl.importing.numbers import Column, NumberReader
from sorl.spec import InputError
from sorl.spec.reading import MATERIAL, Reading

# rows that are held as rows, and keys in them
BLOCK = 4096
KEYS = 500_000
# values of a log, as 1.5 million steps of 40 metrics; metrics that are looked at
CELLS = 64_000_000
METRICS = 2000
LONGEST = 200  # characters of a metric's name
CLOCKS = ("time", "timestamp", "_timestamp", "_runtime", "runtime", "epoch")  # in the rows of every producer
ATTEMPTS = 64  # restarts of a run; a log with more is in no order
REMARKS = 8  # metrics of which it is said how their values were written
WIDEST_STEP = 2.0**53  # a float holds no larger whole number exactly


class Rows:
    """Collects the rows of one run in the order of its log.

    `config` is what the source says of its settings, by dotted key; `notes` say what was replaced or assumed;
    `account` counts the records that were left out. A reader that knows where a row stands sets `position`
    before it yields the row: the number of its line, record or row, as `place_unit` says.
    """

    def __init__(self, name: str, *, place_unit: str = "row", decimal_comma: bool | None = None) -> None:
        self.name = name
        self.status = "finished"
        self.config: dict[str, Any] = {}
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.is_numbered = False  # no row has a step: each is its number
        self.account = Account()
        self.place_unit = place_unit
        self.position = 0
        self._decimal_comma = decimal_comma
        self._readers: dict[str, NumberReader] = {}
        self._blocks: list[tuple[int, dict[str, Column]]] = []  # rows, metrics
        self._positions: list[np.ndarray] = []  # of the rows of each block
        self._names: dict[str, None] = {}
        self._metrics_of_rows: dict[str, int] = {}
        self._cells = 0
        self._stepped = False
        self._full = False
        self._total = 0  # rows that say anything, and damaged records

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> Rows:
        """Take rows; what is no number in them is left out."""
        block: list[Mapping[str, Any]] = []
        positions: list[int] = []
        keys = 0
        for row in rows:
            block.append(row)
            positions.append(self.position or len(self) + len(block))
            keys += len(row)
            if len(block) == BLOCK or keys > KEYS:
                self._take(block, positions)
                block = []
                positions = []
                keys = 0
        if block:
            self._take(block, positions)
        return self

    def _take(self, rows: list[Mapping[str, Any]], positions: list[int]) -> None:
        """Take rows as a block of columns."""
        places = np.array(positions)
        columns = {}
        for name in self._room(dict.fromkeys(chain.from_iterable(rows))):
            columns[name] = self.numbers(name, [row.get(name) for row in rows], places)
        self.block(columns, len(rows), places)

    @property
    def names(self) -> list[str]:
        """The names that were logged, in their order."""
        return list(self._names)

    def span(self) -> tuple[float, float] | None:
        """Return the first and the last step that the rows name; None where they name none."""
        steps = []
        for _, columns in self._blocks:
            for name in step_names():
                if name in columns:
                    steps.append(columns[name].compressed())
                    break
        named = np.concatenate(steps) if steps else np.zeros(0)
        named = named[np.isfinite(named)]
        return (float(named.min()), float(named.max())) if len(named) else None

    def absorb(self, later: Rows) -> None:
        """Take the rows of another part of the same run behind these; the part is empty afterwards."""
        behind = len(self)
        for (size, columns), positions in zip(later._blocks, later._positions, strict=True):
            self.block(columns, size, positions + behind)
        self._readers = later._readers | self._readers
        self.config = self.config | later.config
        self.notes += [note for note in later.notes if note not in self.notes]
        self.account.absorb(later.account)
        self._full = self._full or later._full
        later._blocks = []
        later._positions = []

    @property
    def metrics(self) -> list[str]:
        """The names that were logged but for those of the step."""
        return [name for name in self._names if not is_step(name)]

    def __len__(self) -> int:
        return sum(size for size, _ in self._blocks)

    def numbers(self, name: str, values: list[Any], positions: np.ndarray) -> Column:
        """Return values of a metric as numbers, read as its earlier values were."""
        if name not in self._readers:
            self._readers[name] = NumberReader(decimal_comma=self._decimal_comma)
        return self._readers[name].read(values, positions)

    def block(self, columns: Mapping[str, Column], size: int, positions: np.ndarray | None = None) -> None:
        """Take `size` rows as columns. Raises InputError for a log of more than CELLS values."""
        self._stepped = self._stepped or any(name in columns for name in step_names())
        known = {
            name: columns[name] for name in self._room(columns) if not np.ma.getmaskarray(columns[name]).all()
        }
        if positions is None:
            positions = np.arange(len(self) + 1, len(self) + size + 1)
        self._names |= dict.fromkeys(known)
        self._cells += size * len(known)
        self._blocks.append((size, known))
        self._positions.append(positions)
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
        size = len(self)
        if not size:
            raise InputError(f"'{self.name}' {self.why_empty()}")
        if size * len(self._names) > 4 * CELLS:
            raise InputError(
                f"'{self.name}' has {size:,} rows of {len(self._names):,} metrics; give a part of it"
            )
        if self._full:
            self.notes.append(f"only the first {METRICS:,} metrics were read")
        damaged = self.account.count("rows")
        positions = np.concatenate(self._positions)
        steps = self._steps()
        no_metrics = {*STEP, *step_names()}
        metrics = {name: self._column(name) for name in self._names if name not in no_metrics}
        filled = np.zeros(size, bool)
        for values in metrics.values():
            filled |= ~np.ma.getmaskarray(values)
        usable = self._usable(steps, filled, positions)
        self._total = damaged + int((filled | usable).sum())
        for name, values in metrics.items():
            self._metrics_of_rows[name] = int((~np.ma.getmaskarray(values)).sum())
        if not usable.all():
            metrics = {name: metrics[name][usable] for name in [*metrics]}
        whole = np.ma.getdata(steps)[usable].astype(np.int64)
        return folded(whole, metrics, self, positions[usable])

    def why_empty(self) -> str:
        """Return that there are no rows, and what was left out."""
        reasons = self.account.reading(self.account.count("rows"), (), ()).warnings
        return "; ".join(["holds no rows", *reasons])

    def place(self, position: int) -> str:
        """Return the words for where a row stands, such as "line 4"."""
        return f"{self.place_unit} {position:,}"

    def _usable(self, steps: Column, filled: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return which rows have a step that is a whole number of at least 0, and count the others."""
        values = np.ma.filled(steps, np.nan)
        with np.errstate(invalid="ignore"):
            fractional = values != np.floor(values)
            reasons = {
                self._no_step(): np.isnan(values),
                "the step is negative": values < 0,
                "the step is beyond 2^53": values >= WIDEST_STEP,
                "the step is no whole number": fractional & ~np.isnan(values) & np.isfinite(values),
            }
        bad = np.zeros(len(values), bool)
        for reason, applies in reasons.items():
            lost = applies & filled & ~bad
            bad |= applies
            if lost.any():
                self.account.leave_out(reason, self.place(int(positions[lost][0])), int(lost.sum()))
        if bad.all():
            raise InputError(f"no row of '{self.name}' has a step that is a number")
        return ~bad

    def _no_step(self) -> str:
        unreadable = [
            name for name in step_names() if name in self._readers and self._readers[name].unreadable
        ]
        if not unreadable:
            return "they have no step that is a number"
        name = unreadable[0]
        return f"'{name}' is no number ('{self._readers[name].first_unreadable}')"

    def _column(self, name: str) -> Column:
        """Return all rows of a metric, and forget its blocks."""
        parts = [block.pop(name, np.ma.MaskedArray(np.zeros(size), True)) for size, block in self._blocks]
        return np.ma.concatenate(parts)

    def _steps(self) -> Column:
        """Return the step of each row, by the first name of one that the row has; the number of the row
        without any.
        """
        present = [name for name in step_names() if name in self._names]
        present = [name for name in present if name != "_step"] or present  # it counts calls of the tracker
        if not present and not self._stepped:
            self.notes.append("no column names the step: rows are numbered instead")
            self.is_numbered = True
            return np.ma.MaskedArray(np.arange(len(self), dtype=float))
        steps = np.ma.MaskedArray(np.zeros(len(self)), True)
        for name in present:
            steps = np.ma.where(np.ma.getmaskarray(steps), self._column(name), steps)
        return self._numbered(np.ma.masked_invalid(steps))

    def _numbered(self, steps: Column) -> Column:
        """Return steps of which most are fractions (an epoch, a share of the run) by their rank."""
        known = steps.compressed()
        fractional = known != np.floor(known)
        if 2 * np.count_nonzero(fractional) <= len(known):
            return steps
        ranked = np.unique(known, return_inverse=True)[1]
        last = int(ranked.max())
        self.notes.append(
            f"the steps are fractions ({known[fractional][0]:g}): numbered 0 to {last:,} by size"
        )
        numbered = np.ma.MaskedArray(np.zeros(len(steps)), np.ma.getmaskarray(steps))
        numbered[~np.ma.getmaskarray(steps)] = ranked
        return numbered

    def reading(self, read: Iterable[str]) -> Reading:
        """Return how the log was read, after `by_step`; `read` are the metrics that have a column of ours."""
        known = set(read)
        warnings: list[str] = []
        notes: list[str] = []
        remarks = 0
        for name, reader in self._readers.items():
            if name in step_names():
                notes += reader.notes(name)
                continue
            numbers = self._metrics_of_rows.get(name, 0)
            ours = name in known or place(name) is not None
            if not ours and (remarks >= REMARKS or not numbers):
                continue  # a text is no metric
            sentences = reader.notes(name) if ours else []
            if reader.unreadable:
                count = numbers + reader.unreadable
                where = f"'{reader.first_unreadable}', first in {self.place(reader.first_position)}"
                sentence = f"'{name}': {reader.unreadable:,} of {count:,} values are no numbers ({where})"
                if ours and reader.unreadable > MATERIAL * count:
                    warnings.append(sentence)
                else:
                    sentences.append(sentence)
            remarks += bool(sentences)
            notes += sentences
        return self.account.reading(self._total, [*warnings, *self.warnings], [*notes, *self.notes])


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


class Restart(NamedTuple):
    """An attempt that replaces what was logged before it."""

    row: int  # at which it begins
    step: int  # from which on it replaces


def folded(
    steps: np.ndarray, metrics: dict[str, Column], rows: Rows, positions: np.ndarray
) -> tuple[np.ndarray, dict[str, Column]]:
    """Return (steps, metrics) with one row a step; takes the columns out of `metrics` as it goes.

    A row in which the steps of most metrics run backwards begins a new attempt: what earlier attempts logged
    from that step on is gone, also of metrics that the new one has not logged again. Producers at different
    steps of one attempt (rollout and trainer of an asynchronous run) replace nothing. Of equal steps the last
    value counts. `rows` is told what was replaced.
    """
    if not (np.diff(steps) > 0).all():
        steps, metrics = _merged(steps, metrics, rows, positions)
    used = np.zeros(len(steps), bool)
    for values in metrics.values():
        used |= ~np.ma.getmaskarray(values)
    if used.all():
        return steps, metrics
    return steps[used], {name: values[used] for name, values in metrics.items()}


def _merged(
    steps: np.ndarray, metrics: dict[str, Column], rows: Rows, positions: np.ndarray
) -> tuple[np.ndarray, dict[str, Column]]:
    """Return (steps, metrics) of rows that are not in the order of their steps, with one row a step."""
    begun = _attempts(steps, metrics, rows)
    # The rows at which each metric begins again: so often is its attempt at a row.
    again = {name: np.intersect1d(_back(steps, values), begun) for name, values in metrics.items()}
    restarts = _restarts(steps, begun, again)
    by_step = _RowsByStep.of(steps)
    fate = _Replacements(_number_of_earlier(sorted(restart.row for restart in restarts.values()), len(steps)))
    merged = dict[str, Column]()
    for name, own_starts in again.items():
        values = metrics.pop(name)
        valid = ~np.ma.getmaskarray(values) & _is_current(steps, own_starts, restarts)
        last = by_step.last_rows(valid)
        if name not in CLOCKS:
            fate.add(values, valid, last.or_minus_1()[by_step.rank])
        if not last.is_missing.all():
            merged[name] = np.ma.MaskedArray(np.ma.getdata(values)[last.rows], last.is_missing)
    fate.report(rows, positions, sorted(restarts.values()))
    return by_step.steps, merged


def _attempts(steps: np.ndarray, metrics: Mapping[str, Column], rows: Rows) -> np.ndarray:
    """Return the rows at which an attempt begins; none where the rows are in another order, which `rows` is
    told.
    """
    begun = _begun(steps, metrics)
    if len(begun) and not _logged_twice(steps, metrics):
        rows.notes.append("the rows are not in the order of their steps: sorted")
        return begun[:0]
    if 4 * len(begun) > len(steps) or len(begun) > ATTEMPTS:
        rows.notes.append("steps are in no order: of equal steps the last value counts")
        return begun[:0]
    return begun


def _number_of_earlier(starts: Sequence[int] | np.ndarray, size: int) -> np.ndarray:
    """Return how many of the starts lie at or before each row."""
    return np.searchsorted(starts, np.arange(size), "right")


def _is_current(steps: np.ndarray, own_starts: np.ndarray, restarts: Mapping[int, Restart]) -> np.ndarray:
    """Return the rows at which no restart has replaced a metric, which begins again at `own_starts`.

    A restart replaces what lies before it, from its step on; but not the rows of a metric that has begun
    as often already.
    """
    index = np.arange(len(steps))
    attempts = _number_of_earlier(own_starts, len(steps))
    current = np.ones(len(steps), bool)
    for attempt, restart in restarts.items():
        current &= (index >= restart.row) | (steps < restart.step) | (attempts >= attempt)
    return current


class _LastRows(NamedTuple):
    """The last row of each step in which a metric is valid; where there is none, any row."""

    rows: np.ndarray
    is_missing: np.ndarray

    def or_minus_1(self) -> np.ndarray:
        """Return the rows, with -1 for those that are missing."""
        return np.where(self.is_missing, -1, self.rows)


class _RowsByStep(NamedTuple):
    """Rows in the order of their steps; rows of one step stay in the order of the log."""

    order: np.ndarray  # the rows
    starts: np.ndarray  # where in `order` each step begins
    steps: np.ndarray  # each once, ascending
    rank: np.ndarray  # of each row, that of its step among `steps`

    @classmethod
    def of(cls, steps: np.ndarray) -> Self:
        """Sort the rows with these steps."""
        order = np.argsort(steps, kind="stable")
        ordered = steps[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        unique = ordered[starts]
        return cls(order, starts, unique, np.searchsorted(unique, steps))

    def last_rows(self, valid: np.ndarray) -> _LastRows:
        """Return the last valid row of each step."""
        places = np.where(valid[self.order], np.arange(len(self.order)), -1)
        last = np.maximum.reduceat(places, self.starts)
        return _LastRows(self.order[last], last < 0)


class _Replacements:
    """What becomes of each row's values: they count, a restart replaced them, or a later row of its step."""

    def __init__(self, attempts: np.ndarray) -> None:
        size = len(attempts)
        self._attempts = attempts  # of each row
        self._counts = np.zeros(size, bool)
        self._restarted = np.zeros(size, bool)
        self._overwritten = np.zeros(size, bool)

    def add(self, values: Column, valid: np.ndarray, last: np.ndarray) -> None:
        """Add a metric: where no restart replaced it, and at each row the row that counts for its step (-1:
        none). A value that the same value replaced is not lost.
        """
        restarted = ~np.ma.getmaskarray(values) & ~valid
        data = np.ma.getdata(values)
        final = data[last]
        counts = valid & (last >= 0) & ((data == final) | (np.isnan(data) & np.isnan(final)))
        self._counts |= counts
        by_restart = valid & ~counts & (self._attempts[last] > self._attempts)
        self._restarted |= restarted | by_restart
        self._overwritten |= valid & ~counts & ~by_restart

    def report(self, rows: Rows, positions: np.ndarray, restarts: list[Restart]) -> None:
        """Say in `rows` how many rows were replaced, and by what."""
        for restart in restarts:
            rows.notes.append(
                f"restarted at step {restart.step:,}: what was logged from there on before was replaced"
            )
        gone = int((self._restarted & ~self._counts & ~self._overwritten).sum())
        if gone:
            rows.notes.append(f"{counted(gone, 'row')} of earlier attempts replaced")
        lost = self._overwritten & ~self._counts
        if lost.any():
            reason = "a later row has the same step"
            rows.account.leave_out(reason, rows.place(int(positions[lost][0])), int(lost.sum()))
        partly = int((self._overwritten & self._counts).sum())
        if partly:
            rows.notes.append(f"{counted(partly, 'row')} partly replaced by a later row of the same step")


def _restarts(steps: np.ndarray, begun: np.ndarray, again: Mapping[str, np.ndarray]) -> dict[int, Restart]:
    """Return each attempt, by its number among those of most metrics."""
    restarts: dict[int, Restart] = {}
    for row in begun.tolist():
        own = [
            np.searchsorted(rows, row, "right")
            for name, rows in again.items()
            if name not in CLOCKS and row in rows
        ]
        attempt = int(np.median(own))
        earlier = restarts.get(attempt, Restart(0, 0)).step
        restarts[attempt] = Restart(row, max(int(steps[row]), earlier))
    return restarts


def _logged_twice(steps: np.ndarray, metrics: Mapping[str, Column]) -> bool:
    """Whether some metric has two values of one step: without one no attempt has replaced another."""
    for name, values in metrics.items():
        own = steps[~np.ma.getmaskarray(values)]
        if name not in CLOCKS and len(np.unique(own)) < len(own):
            return True
    return False


def _back(steps: np.ndarray, values: Column) -> np.ndarray:
    """Return the rows at which the steps of a metric run backwards."""
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
