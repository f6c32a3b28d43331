"""The records in a JSON value, found by shape and size: whatever its keys are called.

Read are lists of objects at any depth, objects by step, columns of one length, and lists of lists below a
heading. What else the value says is its configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sorl.importing.names import is_known, is_step

Record = Mapping[str, Any]

SHORTEST_COLUMN = 3  # values of a column: shorter lists of numbers are settings
SHORTEST_ALONE = 8  # of a single column without a known name
SHARED = 0.5  # of the metrics of two tables that make them runs of one kind
SIMILAR = 0.1  # of the rows of the largest run that another one has at least
_NODES = 200_000  # lists and objects that are looked at
_DEPTH = 12  # of them inside each other
_LOOKED_AT = 200  # elements of a list by which its shape is told
_STEP_KEY = re.compile(r"(?i)(?:(?:global_?)?step|iter|iteration|epoch|update|checkpoint)?[\s_:-]*(\d{1,15})")
_HELD_OUT = re.compile(r"(?i)(?:eval|evaluation|val|valid|validation|test|heldout|held_out|dev)(?:[_\W].*)?")
_NAMED = 8  # columns that are named as left out
_PLAIN = (int, float, str, type(None))


@dataclass
class Table:
    """Records of one run, at a place of a JSON value."""

    place: tuple[str, ...]  # keys that lead to it
    records: Sequence[Record]
    metrics: frozenset[str]
    notes: tuple[str, ...] = ()  # what of it was left out
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.records) * max(1, len(self.metrics))


@dataclass
class Found:
    """The runs in a JSON value, by name (empty: there is one), and what else it says."""

    runs: dict[str, list[Record]]
    config: dict[str, Any]
    notes: tuple[str, ...] = ()  # what was left out


def runs_of(value: Any) -> Found:
    """Return the runs in a JSON value; none where it holds no records."""
    tables = _Search().tables_in(value, ())
    if not tables:
        return Found({}, {})
    largest = max(tables, key=lambda table: table.size)
    config = {} if isinstance(value, list) else _settings_in(value, tables)
    group = _of_one_kind(largest, tables)
    if len(group) == 1:
        records = [*largest.records, *_held_out_beside(largest, tables)]
        return Found({"": records}, config, largest.notes)
    if any(_HELD_OUT.fullmatch(name) for name in group):
        return Found({"": list(_joined(group))}, config)
    return Found({name: list(table.records) for name, table in group.items()}, config)


class _Search:
    """Walks a JSON value, within bounds."""

    def __init__(self) -> None:
        self._budget = iter(range(_NODES))

    def tables_in(self, value: Any, place: tuple[str, ...]) -> list[Table]:
        """Return the tables in a value, those inside of a table left out."""
        if next(self._budget, None) is None or len(place) > _DEPTH:
            return []
        if isinstance(value, list):
            return self._in_list(value, place)
        return self._in_object(value, place) if isinstance(value, dict) else []

    def _in_list(self, value: list[Any], place: tuple[str, ...]) -> list[Table]:
        if _is_records(value):
            return [_table(place, value)]
        headed = _below_heading(value[0], value[1:]) if len(value) > 1 else None
        if headed is not None:
            return [_table(place, headed)]
        if len(value) >= SHORTEST_ALONE and _is_column(value):
            return [_table(place, [{"value": number} for number in value])]
        tables: list[Table] = []
        for number, inner in enumerate(value):
            if isinstance(inner, dict | list):
                tables += self.tables_in(inner, (*place, _name_in(inner) or f"{number}"))
        return tables

    def _in_object(self, value: dict[str, Any], place: tuple[str, ...]) -> list[Table]:
        by_step = _records_by_step(value)
        if by_step:
            return [_table(place, by_step)]
        columns = _Columns.of(value)
        records = columns.records or _records_of_split(value)
        if records:
            return [_table(place, records, columns.notes)]
        tables: list[Table] = []
        for key, inner in value.items():
            if isinstance(inner, dict | list):
                tables += self.tables_in(inner, (*place, str(key)))
        return tables


def _table(place: tuple[str, ...], records: Sequence[Record], notes: tuple[str, ...] = ()) -> Table:
    names: set[str] = set()
    for record in islice(records, _LOOKED_AT):
        if isinstance(record, dict):
            names |= _metrics_of(record)
    return Table(place, records, frozenset(names), notes)


def _metrics_of(record: Record, deep: int = 3) -> set[str]:
    """Return the names of the numbers in a record, those inside of objects too."""
    names: set[str] = set()
    for key, value in record.items():
        if _is_number(value) and not is_step(key):
            names.add(key)
        elif isinstance(value, dict) and deep:
            names |= _metrics_of(value, deep - 1)
        elif isinstance(value, list) and is_known(key):
            names.add(key)  # the rewards of a step's rollouts
    return names


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_numeric_text(value: Any) -> bool:
    return isinstance(value, str) and bool(
        re.fullmatch(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?%?|nan|[+-]?inf", value)
    )


def _is_records(values: list[Any]) -> bool:
    """Whether most elements are objects with a number."""
    beginning = values[:_LOOKED_AT]
    records = [value for value in beginning if isinstance(value, dict) and _has_number(value)]
    return bool(records) and 2 * len(records) >= len(beginning) and not all(map(_is_run, records))


def _has_number(record: Record) -> bool:
    if any(map(_is_numeric_text, record.values())):
        return True
    return bool(_metrics_of(record))


def _is_run(record: Record) -> bool:
    """Whether an object is a run of columns or records of its own, and no record."""
    lists = [value for value in record.values() if isinstance(value, list)]
    scalars = [key for key, value in record.items() if _is_number(value) and is_step(key)]
    long = [value for value in lists if len(value) >= SHORTEST_ALONE]
    series = [value for value in long if _is_column(value) or _is_records(value)]
    return bool(series) and not scalars and bool(_name_in(record))


def _name_in(value: Any) -> str:
    """Return the name that an object gives itself."""
    if isinstance(value, dict):
        for key in ("name", "run", "run_name", "run_id", "id", "label", "title", "tag"):
            name = value.get(key)
            if isinstance(name, str) and name:
                return name[:100]
    return ""


def _is_column(values: Any) -> bool:
    """Whether a value is a list of numbers, with gaps perhaps."""
    if not isinstance(values, list) or not all(isinstance(value, _PLAIN) for value in values):
        return False
    numbers = [value for value in values if _is_number(value) or _is_numeric_text(value)]
    return 2 * len(numbers) > len(values)


@dataclass(frozen=True)
class _Columns:
    """The rows of an object of columns; `notes` names columns of other lengths."""

    records: list[Record]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> _Columns:
        """Return the rows of the lists of one length: of several lengths the one with most values.

        Columns may be objects from row to number too, as pandas writes them.
        """
        by_rows = _records_of_indexed_columns(value)
        if by_rows:
            return cls(by_rows)
        columns: dict[int, dict[str, list[Any]]] = {}
        for key, inner in _columns_in(value):
            columns.setdefault(len(inner), {})[key] = inner
        if not columns:
            return cls([])
        length, chosen = max(columns.items(), key=lambda item: item[0] * len(item[1]))
        is_alone = len(chosen) == 1 and not any(map(is_known, chosen))
        if length < (SHORTEST_ALONE if is_alone else SHORTEST_COLUMN):
            return cls([])
        others: list[str] = []
        for other in sorted(columns.keys() - {0, 1, length}):
            values = f"it has {other:,} values, and most columns have {length:,}"
            others += [f"'{key}' was left out: {values}" for key in columns[other]]
        rows = zip(*chosen.values(), strict=True)
        records: list[Record] = [dict(zip(chosen, row, strict=True)) for row in rows]
        return cls(records, tuple(others[:_NAMED]))


def _columns_in(value: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of numbers of an object, and beside them those of the objects in it."""
    own = [(key, inner) for key, inner in value.items() if _is_column(inner)]
    yield from own
    for inner in value.values() if own else ():
        if isinstance(inner, dict):
            yield from ((key, column) for key, column in inner.items() if _is_column(column))


def _records_of_indexed_columns(value: Mapping[str, Any]) -> list[Record]:
    """Return the rows of {"reward": {"0": 0.5, "1": 0.6}, ...}."""
    columns = {key: inner for key, inner in value.items() if isinstance(inner, dict) and inner}
    if not columns or len(columns) < len(value):
        return []
    rows: dict[int, dict[str, Any]] = {}
    for key, inner in columns.items():
        for index, number in inner.items():
            if not (isinstance(index, str) and index.isdigit() and len(index) < 16):
                return []
            if not isinstance(number, _PLAIN):
                return []
            rows.setdefault(int(index), {})[key] = number
    if len(rows) < SHORTEST_COLUMN or (any(map(str.isdigit, columns)) and not any(map(is_known, columns))):
        return []
    names_step = any(map(is_step, columns))
    return [rows[index] if names_step else {"step": index} | rows[index] for index in sorted(rows)]


def _records_of_split(value: Mapping[str, Any]) -> list[Record]:
    """Return the rows of {"columns": ["step", "reward"], "data": [[0, 0.5], ...]}, whatever the keys are."""
    headings = [inner for inner in value.values() if _is_heading(inner)]
    for rows in value.values():
        for heading in headings:
            if isinstance(rows, list) and rows:
                records = _below_heading(heading, rows)
                if records is not None:
                    return records
    return []


def _is_heading(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(name, str) for name in value)


def _below_heading(heading: Any, rows: list[Any]) -> list[Record] | None:
    """Return lists of values as records; None where they do not fit a heading of names."""
    if not _is_heading(heading) or any(map(_is_numeric_text, heading)):
        return None
    beginning = rows[:_LOOKED_AT]
    if not beginning or not all(isinstance(row, list) and len(row) == len(heading) for row in beginning):
        return None
    if not any(_is_number(value) or _is_numeric_text(value) for value in beginning[0]):
        return None
    return [dict(zip(heading, row, strict=False)) for row in rows if isinstance(row, list)]


def _records_by_step(value: Mapping[str, Any]) -> list[Record]:
    """Return the records of {"10": {...}, "20": {...}} or {"step_10": {...}}, each with its step."""
    if len(value) < 2:
        return []
    records: list[tuple[int, Record]] = []
    for key, inner in value.items():
        match = _STEP_KEY.fullmatch(str(key))
        if match is None or not isinstance(inner, dict) or not _has_number(inner):
            return []
        records.append((int(match[1]), inner))
    records.sort(key=lambda record: record[0])
    return [inner if any(map(is_step, inner)) else {"step": step} | dict(inner) for step, inner in records]


# Several tables


def _of_one_kind(largest: Table, tables: Iterable[Table]) -> dict[str, Table]:
    """Return the tables whose place differs from that of the largest in one key, by that key, and which have
    much the same metrics: runs of one kind.
    """
    group: dict[str, Table] = {}
    position = _differing_key(largest, tables)
    for table in tables:
        if position is None or not _differs_in(largest.place, table.place, position):
            continue
        shared = len(table.metrics & largest.metrics)
        alike = shared >= SHARED * min(len(table.metrics), len(largest.metrics))
        if alike and len(table.records) >= SIMILAR * len(largest.records):
            group[table.place[position]] = table
    return group or {"": largest}


def _differing_key(largest: Table, tables: Iterable[Table]) -> int | None:
    """Return the position of the key in which most other tables differ from the largest."""
    counts: dict[int, int] = {}
    for table in tables:
        if len(table.place) == len(largest.place):
            differing = [at for at, key in enumerate(table.place) if key != largest.place[at]]
            if len(differing) == 1:
                counts[differing[0]] = counts.get(differing[0], 0) + 1
    return max(counts, key=lambda at: counts[at]) if counts else None


def _differs_in(first: Sequence[str], second: Sequence[str], position: int) -> bool:
    if len(first) != len(second):
        return False
    return all(key == second[at] for at, key in enumerate(first) if at != position)


def _joined(group: Mapping[str, Table]) -> Iterator[Record]:
    """Yield the records of a run's producers, training before evaluation."""
    for name, table in group.items():
        if not _HELD_OUT.fullmatch(name):
            yield from table.records
    for name, table in group.items():
        if _HELD_OUT.fullmatch(name):
            yield from _named_held_out(table.records)


def _held_out_beside(largest: Table, tables: Iterable[Table]) -> Iterator[Record]:
    """Yield the evaluations that stand beside the records of a run."""
    for table in tables:
        is_beside = table.place[:-1] == largest.place[:-1] and table is not largest
        if is_beside and table.place and _HELD_OUT.fullmatch(table.place[-1]):
            yield from _named_held_out(table.records)


def _named_held_out(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        yield {key if is_step(key) else f"eval/{key}": value for key, value in record.items()}


def _settings_in(value: Any, tables: Sequence[Table]) -> dict[str, Any]:
    """Return an object without what leads to its tables."""
    leading = {table.place[0] for table in tables if table.place}
    if any(not table.place for table in tables) or not isinstance(value, dict):
        return {}
    return {key: inner for key, inner in value.items() if key not in leading and not isinstance(inner, list)}
