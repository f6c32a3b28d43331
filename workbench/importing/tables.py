"""Tables, as text parted by commas, semicolons, tabs, bars or blanks, and as Parquet."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

from sorl.importing.names import is_known, is_step, place
from sorl.importing.numbers import Column, column
from sorl.importing.rows import CELLS, Rows
from sorl.importing.text import LINE, ZEROS, Line, UsualLength, numbered_lines, opened, text_of
from sorl.importing.title import title_of
from sorl.spec import InputError
from sorl.spec.files import MIB, open_file

SEPARATORS = (",", ";", "\t", "|")
CELLS_AT_ONCE = 400_000  # that are held as text
QUOTED_LINES = 200  # of a cell with line ends in it
_NUMBERS = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE")  # physical types of Parquet
_TABLE_ROWS = 20_000  # of Parquet that are read at once
_RULE = re.compile(r"[\s:|+=-]+")  # between the heading and the rows of a Markdown table
_PANEL = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<end>__MIN|__MAX|__STEP)?")  # W&B: a chart saved as CSV
_MAYBE_NUMBER = re.compile(r"[+-]?[\d.,]+(?:[eE][+-]?\d+)?%?|nan|[+-]?inf(?:inity)?", re.IGNORECASE)
_HEADING_LINES = 50  # at most that stand before the heading


@dataclass(frozen=True)
class Heading:
    """The names of a table's columns, and what parts its cells (None: blanks)."""

    separator: str | None
    names: tuple[str, ...]

    @property
    def knows_a_metric(self) -> bool:
        """Whether a column has a name that is known here."""
        return any(is_known(name) for name in self.names)

    def cells(self, text: str) -> list[str] | None:
        """Return the cells of a row; None where its quotes are damaged."""
        return _split(text, self.separator)


def _split(text: str, separator: str | None) -> list[str] | None:
    if separator is None:
        return text.split()
    bare = text.strip()
    if separator == "|" and bare.startswith("|"):
        bare = bare.removeprefix("|").removesuffix("|")
        return [cell.strip() for cell in bare.split("|")]
    if '"' not in text:
        return [cell.strip() for cell in text.split(separator)]
    try:
        cells = next(csv.reader([text], delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        return None
    return [cell.strip() for cell in cells]


def _heading_of(text: str) -> Heading | None:
    """Return a line as the names of columns; None where it is none."""
    separator: str | None = max(SEPARATORS, key=text.count)
    if separator is not None and separator not in text:
        separator = None
    names = _split(text, separator)
    if not names or all(_MAYBE_NUMBER.fullmatch(name) or not name for name in names):
        return None
    return Heading(separator, tuple(name.strip("*`") for name in names))


def _find_heading(lines: Iterator[Line]) -> tuple[Heading, list[Line]] | None:
    """Return the first line that names columns, and the rows that were met before it was known.

    A comment names them where the first row that is none has as many cells.
    """
    comment: Heading | None = None
    for line, _ in zip(lines, range(_HEADING_LINES), strict=False):
        text = line.text.strip()
        if not text or _RULE.fullmatch(text):
            continue
        if line.too_long:
            raise InputError(f"line {line.number} is longer than {LINE // MIB} MiB")
        if text.startswith("#"):
            comment = _heading_of(text.lstrip("# ")) or comment
            continue
        heading = _heading_of(text)
        if heading is not None:
            return heading, []
        if comment is not None and len(comment.cells(text) or ()) == len(comment.names):
            return comment, [line]
        return None
    return None


def is_table(path: Path, head: bytes) -> bool:
    """Whether a file is a table as text, by its ending or by names that are known here."""
    if path.suffix in (".csv", ".tsv"):
        return True
    lines = (Line(number, text, True, False) for number, text in enumerate(text_of(head).splitlines(), 1))
    table_head = _find_heading(lines)
    if table_head is None:
        return False
    heading, first_rows = table_head
    if len(heading.names) < 2 or not heading.knows_a_metric:
        return False
    if any(map(_MAYBE_NUMBER.fullmatch, heading.names)):
        return False  # a box of keys and values
    if heading.separator is not None:
        return True
    row = next(chain(first_rows, lines), None)  # words may be prose
    cells = row.text.split() if row else []
    numbers = [cell for cell in cells if _MAYBE_NUMBER.fullmatch(cell)]
    return len(cells) == len(heading.names) and 2 * len(numbers) > len(cells)


def table(path: Path) -> Iterator[Rows]:
    """Text parted by comma, semicolon, tab, bar or blanks; with semicolons `0,5` is a number.

    A chart that W&B has saved as CSV has a column `RUN - METRIC` a run: it is many runs.
    """
    with opened(path) as text:
        lines = numbered_lines(text)
        table_head = _find_heading(lines)
        if table_head is None:
            raise InputError(f"'{path}' cannot be read as CSV: its first line does not name the columns")
        heading, first_rows = table_head
        yield from TableReader(path, heading, text).runs(chain(first_rows, lines))


class TableReader:
    """Reads the rows of a table as text into the runs that it holds."""

    def __init__(self, path: Path, heading: Heading, file: TextIO) -> None:
        self._path = path
        self._file = file
        self._heading = heading
        self._decimal_comma = True if heading.separator == ";" else None
        self._collected: dict[str, Rows] = {}  # by the run's name
        self._metrics: dict[str, dict[str, str]] = {}  # of a run: column -> metric
        self._usual = UsualLength()
        self._repeated = 0
        self._short: list[
            tuple[int, list[str]]
        ] = []  # rows with fewer cells than the heading, with their lines
        self._use(heading)

    def runs(self, lines: Iterator[Line]) -> Iterator[Rows]:
        """Yield the runs of the table."""
        held: list[list[str]] = []
        positions: list[int] = []
        for number, cells in self._records(lines):
            if cells is None:
                self._leave_out("damaged quotes", number)
                continue
            heading = self._next_heading(cells)
            if heading is not None:
                self._take(held, positions)
                held = []
                positions = []
                self._use(heading)
                continue
            row = self._fitted(cells, number)
            if row is not None:
                held.append(row)
                positions.append(number)
            if (len(held) + len(self._short)) * len(self._heading.names) > CELLS_AT_ONCE:
                self._take(held, positions)
                held = []
                positions = []
        self._take(held, positions)
        for rows in self._collected.values():
            self._add_notes(rows)
            yield rows

    def _use(self, heading: Heading) -> None:
        """Read the next rows by this heading."""
        self._heading = heading
        panels = list(filter(None, map(_PANEL.fullmatch, heading.names)))
        curves = [panel for panel in panels if not panel["end"]]
        charts = bool(curves) and all(place(panel["metric"]) for panel in panels)
        self._metrics = {}
        if charts:
            for curve in curves:
                self._metrics.setdefault(curve["run"], {})[curve[0]] = curve["metric"]
            keys = {name: name for name in heading.names if is_step(name)}
            self._metrics = {run: keys | own for run, own in self._metrics.items()}
        else:
            self._metrics[title_of(self._path)] = {name: name for name in heading.names if name}
        for run in self._metrics:
            if run not in self._collected:
                self._collected[run] = Rows(run, place_unit="line", decimal_comma=self._decimal_comma)

    def _records(self, lines: Iterator[Line]) -> Iterator[tuple[int, list[str] | None]]:
        """Yield (line number, cells) of each row; None for one whose quotes are damaged."""
        waiting: deque[Line] = deque()
        while True:
            line = waiting.popleft() if waiting else next(lines, None)
            if line is None:
                return
            text = line.text
            if line.too_long:
                self._leave_out(f"longer than {LINE // MIB} MiB", line.number)
                continue
            if "\0" in text:
                self._leave_out(ZEROS, line.number, self._usual.lines_in(text))
                continue
            if not text.strip():
                continue
            if text.lstrip().startswith("#") or _RULE.fullmatch(text):
                continue
            self._usual.add(text)
            if text.count('"') % 2 == 0:
                yield line.number, self._cut_cells(text, line)
                continue
            more = self._until_quotes_close(text, waiting, lines)
            cells = None if more is None else self._heading.cells("\n".join([text, *more]))
            if cells is not None and len(cells) == len(self._heading.names):
                for _ in more or ():
                    waiting.popleft()
                yield line.number, cells
            else:
                yield line.number, None

    def _cut_cells(self, text: str, line: Line) -> list[str] | None:
        """Return the cells of a row; nothing of a last row that has too few, as its last may be cut."""
        cells = self._heading.cells(text)
        if cells is not None and not line.ended and len(cells) < len(self._heading.names):
            self._leave_out("cut off in the last line", line.number)
            return []
        return cells

    def _until_quotes_close(self, text: str, waiting: deque[Line], lines: Iterator[Line]) -> list[str] | None:
        """Return the lines that end an open quote, which stay in `waiting`; None where none does."""
        quotes = text.count('"')
        size = len(text)
        taken: list[str] = []
        while len(taken) < QUOTED_LINES and size < LINE:
            if len(taken) == len(waiting):
                line = next(lines, None)
                if line is None:
                    return None
                waiting.append(line)
            following = waiting[len(taken)].text
            taken.append(following)
            size += len(following)
            quotes += following.count('"')
            if quotes % 2 == 0:
                return taken
        return None

    def _next_heading(self, cells: list[str]) -> Heading | None:
        """Return the heading that a row is: a table may be begun again, with other columns too."""
        if not cells or any(_MAYBE_NUMBER.fullmatch(cell) for cell in cells):
            return None
        heading = Heading(self._heading.separator, tuple(cells))
        if heading.names == self._heading.names:
            self._repeated += 1
            return heading
        return heading if heading.knows_a_metric and len(cells) > 1 else None

    def _fitted(self, cells: list[str], number: int) -> list[str] | None:
        """Return a row as wide as the heading; None for a wider one, and for a narrower one, which waits."""
        width = len(self._heading.names)
        if not cells:
            return None
        if len(cells) > width:
            if any(cells[width:]):
                self._leave_out("more cells than the heading has", number)
                return None
            return cells[:width]
        if len(cells) < width:
            self._short.append((number, cells))
            return None
        return cells

    def _take(self, rows: list[list[str]], positions: list[int]) -> None:
        """Hand a block of rows to the runs.

        Rows with fewer cells than the heading may be cut inside of a number. They are read where most rows
        are so, as of a logger that leaves the last cells out.
        """
        for number, cells in self._short:
            if len(self._short) <= len(rows) or not any(map(_MAYBE_NUMBER.fullmatch, cells)):
                self._leave_out("fewer cells than the heading has", number)
            else:
                rows.append(cells + [""] * (len(self._heading.names) - len(cells)))
                positions.append(number)
        self._short = []
        if not rows:
            return
        by_name = dict(zip(self._heading.names, zip(*rows, strict=True), strict=False))
        for run, metrics in self._metrics.items():
            collected = self._collected[run]
            places = np.array(positions)
            columns: dict[str, Column] = {}
            for name, metric in metrics.items():
                values = [None if cell == "" else cell for cell in by_name[name]]
                columns[metric] = collected.numbers(metric, values, places)
            collected.block(columns, len(rows), places)

    def _leave_out(self, reason: str, number: int, count: int = 1) -> None:
        for rows in self._collected.values():
            rows.account.leave_out(reason, rows.place(number), count)

    def _add_notes(self, rows: Rows) -> None:
        if self._repeated:
            rows.notes.append(f"the heading is repeated {self._repeated:,} times")


def parquet(path: Path) -> Iterator[Rows]:
    """The columns of numbers, those inside of structures too, and texts with a name that is known here.

    Its rows are counted first, as a few bytes of a file can be more than memory holds. A damaged row group
    costs itself.
    """
    import pyarrow.parquet as pq

    rows = Rows(title_of(path))
    with open_file(path) as raw:
        schema = pq.ParquetFile(raw).schema
        texts = [leaf.path for leaf in _leaves(schema) if _is_known_text(leaf)]
        columns = [leaf.path for leaf in _leaves(schema) if _is_number(leaf)] + texts
        # Texts stay in their dictionaries: a few bytes of a file can say one of a megabyte many times.
        parquet_file = pq.ParquetFile(raw, read_dictionary=texts)
        if parquet_file.metadata.num_rows * max(len(columns), 1) > CELLS:
            raise InputError(
                f"'{path}' says it holds {parquet_file.metadata.num_rows:,} rows; give a part of it"
            )
        begun = 0
        for group in range(parquet_file.metadata.num_row_groups):
            size = parquet_file.metadata.row_group(group).num_rows
            try:
                batches = [*parquet_file.iter_batches(_TABLE_ROWS, row_groups=[group], columns=columns)]
            except (pa.ArrowException, OSError):
                rows.account.leave_out("damaged row group", rows.place(begun + 1), size)
            else:
                for batch in batches:
                    _take_batch(batch, rows)
            begun += size
    yield rows


def _leaves(schema: Any) -> Iterator[Any]:
    """Yield the columns of a Parquet schema that hold one value a row."""
    for index in range(len(schema)):
        leaf = schema.column(index)
        if leaf.max_repetition_level == 0:
            yield leaf


def _is_number(leaf: Any) -> bool:
    is_decimal = leaf.logical_type.type == "DECIMAL"
    is_time = leaf.logical_type.type in ("DATE", "TIME", "TIMESTAMP")
    return is_decimal or (leaf.physical_type in _NUMBERS and not is_time)


def _is_known_text(leaf: Any) -> bool:
    known = is_known(leaf.path)
    return known and leaf.physical_type == "BYTE_ARRAY" and not _is_number(leaf)


def _take_batch(batch: pa.RecordBatch, rows: Rows) -> None:
    """Hand a batch of Parquet over."""
    flat = pa.Table.from_batches([batch])
    while any(pa.types.is_struct(field.type) for field in flat.schema):
        flat = flat.flatten()
    start = len(rows) + 1
    places = np.arange(start, start + flat.num_rows)
    columns = {}
    for name, array in zip(flat.column_names, flat.columns, strict=True):
        if pa.types.is_dictionary(array.type):
            columns[name] = rows.numbers(name, _texts_of(array), places)
        else:
            values = array.cast(pa.float64(), safe=False)
            columns[name] = column(values.fill_null(0.0).to_numpy(), array.is_null().to_numpy())
    rows.block(columns, flat.num_rows, places)


def _texts_of(array: pa.ChunkedArray) -> list[str | None]:
    """Return the texts of a dictionary-encoded column, each held once."""
    texts: list[str | None] = []
    for chunk in array.chunks:
        words = chunk.dictionary.cast(pa.string()).to_pylist()
        texts += [None if index is None else words[index] for index in chunk.indices.to_pylist()]
    return texts
