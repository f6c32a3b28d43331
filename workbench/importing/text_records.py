"""Records of metrics in any text: a console, a paste, a table in a notebook.

A record is a dictionary anywhere in a line, a row of pairs (`loss: 0.1 | reward: 0.5`, `loss=0.1,
reward=0.5`, `step:3 - actor/entropy:0.5`), a row of a table, or a block of lines with one pair each. Its step
is what it says itself, what stands before it (`Step 28`, `Epoch:[1/1](5/9751)`), the counter of a progress
bar, or its number.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from sorl.importing.configs import flattened
from sorl.importing.dict_text import LONGEST, DictReader, NotADict
from sorl.importing.names import STEP, is_known, is_step, place, settings
from sorl.importing.printed_settings import PrintedSettings, has_metric
from sorl.importing.rows import Rows
from sorl.importing.text import Line, numbered_lines, opened
from sorl.importing.title import title_of
from sorl.spec import InputError
from sorl.store.text import plain

_NUMBER = r"[+-]?(?:\d[\d,_]*\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|NaN|NAN|[iI]nf(?:inity)?)"
_VALUE = rf"(?:[A-Za-z_][\w.]*\(\s*{_NUMBER}[^()]*\)|{_NUMBER})"
_UNIT = r"(?:\s*(?:%|[A-Za-zµ]{1,12}(?:/[A-Za-z]{1,12})?))?(?:\s*\([^()]*\))?"
# One pair, alone between separators: a key with a letter, and a number perhaps with a unit.
_PAIR = re.compile(
    rf"(?P<key>[^:=|{{}}]*?[A-Za-z_][^:=|{{}}]*?)\s*[:=]\s*(?P<value>{_VALUE}){_UNIT}\s*[.,;]?"
)
_EQUALS = re.compile(rf"(?P<key>[A-Za-z_][\w./@-]*)=(?P<value>{_VALUE})(?=[\s,;\])]|$)")
_COLONS = re.compile(rf"(?P<key>[A-Za-z_][\w./@-]*):\s*(?P<value>{_VALUE})(?=[\s,;\])]|$)")
_SEPARATORS = (" - ", " | ", "|", ", ", "; ", "\t", "  ")
_BULLET = re.compile(r"^\s*(?:[•*·▪-]\s+|[│|]\s*)?")
_FRAME = re.compile(r"[\s\-+=|_│┃┌┐└┘├┤┬┴┼─━═╭╮╯╰╞╡╪╔╗╚╝║╠╣]*")
_BOX = re.compile(r"[│┃║]")
_BARE_DICT = re.compile(r"""(?:^|[\s:])(['"])[A-Za-z_][^'"]*\1\s*:\s*[-+\d'"nN\[{]""")
_BAR = re.compile(r"(?P<title>[^|\r]*?)(?:\d+%)?\|[^|]*\|\s*(?P<done>\d+)/(?P<total>\d+)\s*\[")
_OF_A_WORKER = re.compile(r"^\((?:[\w.:/-]+ )?pid=\d+[^)]*\) ?")  # Ray, before every line
# What stands before a record, the surest first.
_STEPS = (
    re.compile(r"(?i)\b(?:global[ _]?step|train(?:ing)?[ _]?step|step|iteration|iter)\b\s*[:#=\[(]*\s*(\d+)"),
    re.compile(r"(?i)\bepoch\b\s*:?\s*\[[^\]]*\]\s*\((\d+)\s*/\s*\d+\)"),
    re.compile(r"(?i)\b(?:rollout|update|batch|episode|round)\b\s*[:#=\[(]*\s*(\d+)\b"),
)
_OWN_STEPS = (
    "step",
    "global_step",
    "global_step/max_steps",
    "global step",
    "iteration",
    "iter",
    "training step",
    "train step",
)
_USUAL = frozenset(("loss", "epoch", "step", "global_step", "eval_loss"))  # in records of trainers
_ERROR = re.compile(r"^(?:\[rank\d+\]:? ?)?(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)")
_BARS = 8  # progress bars that are watched
_DECIDED = 2000  # records by which the bar that counts the steps is chosen
_ERROR_LENGTH = 100  # characters of an error that are shown
_SPAN = 4000  # lines of a dictionary
_OPEN_ENDS = 8  # dictionaries that do not end, behind which the next ones are read no further than
_SHORT_SPAN = 100  # lines
_HEADING_CELLS = 2  # cells that a heading has at least


@dataclass
class Record:
    """Metrics of one place of a text."""

    line: int
    values: dict[str, Any]
    step: int | None = None
    bars: dict[str, int] = field(default_factory=dict)  # title and total -> counter at that place


def text_log(path: Path) -> Iterator[Rows]:
    """The records of a text as one run."""
    rows = Rows(title_of(path), place_unit="line")
    with opened(path) as file:
        finder = RecordFinder(numbered_lines(file), rows)
        rows.extend(with_steps(finder.records(), rows))
    if not rows:
        raise InputError(f"'{path}' has no record of metrics that is known here{finder.what_was_met()}")
    yield rows


class RecordFinder:
    """Finds the records of a text; settings that it prints go to `rows.config`."""

    def __init__(self, lines: Iterable[Line], rows: Rows) -> None:
        self._lines = iter(lines)
        self._waiting: deque[Line] = deque()
        self._rows = rows
        self._bars: dict[str, int] = {}
        self._step: int | None = None  # that a line without metrics has announced
        self._block: Record | None = None  # of lines with one pair each
        self._columns: list[str] = []  # of the table that is being read
        self._first_text = ""
        self._unknown: list[Record] = []  # records without a known name, in case there are no others
        self._any_known = False
        self._settings = PrintedSettings()
        self._open_ends = 0  # dictionaries that did not end
        self._error = ""  # that was printed since the last record, with its line

    def what_was_met(self) -> str:
        """Return the first line of the text, for a message."""
        return f"; its first line is {self._first_text[:60]!r}" if self._first_text else ""

    def records(self) -> Iterator[Record]:
        """Yield the records in the order of the text."""
        while (line := self._next_line()) is not None:
            text = _cleaned(line.text).rstrip()
            if not text.strip():
                continue
            self._first_text = self._first_text or text.strip()
            for record in self._records_of(line, text):
                self._error = ""
                yield record
            error = _ERROR.match(text)
            if error is not None:
                self._error = f"{error['error'][:_ERROR_LENGTH]} (line {line.number})"
        yield from self._close_block()
        if self._error:
            self._rows.warnings.append(f"the text ends in an error: {self._error}")
        self._settings.end()
        self._rows.config = self._settings.found | self._rows.config
        if not self._any_known:
            yield from self._unknown

    def _next_line(self) -> Line | None:
        return self._waiting.popleft() if self._waiting else next(self._lines, None)

    def _records_of(self, line: Line, text: str) -> Iterator[Record]:
        row = self._row_of_table(line, text)
        if row is not None:
            yield row
            return
        self._watch_bars(text)
        if self._settings.take(text):
            return
        record = self._dict_in(line, text) or self._pairs_in(line, text)
        if record is not None:
            yield from self._close_block()
            yield from self._accepted(record)
            return
        if self._starts_table(text):
            return
        yield from self._loose(line, text)

    def _accepted(self, record: Record) -> Iterator[Record]:
        """Yield a record; one that holds settings and no metric goes to the configuration."""
        flat = flattened(record.values)
        nested = any(isinstance(value, dict) for value in record.values.values())
        if not has_metric(flat) and (nested or len(settings(flat)) > 1):
            self._rows.config = flat | self._rows.config
            return
        record.values = flat if nested else record.values
        record.step = _own_step(record.values, record.step)
        record.bars = dict(self._bars)
        if has_metric(flat) or (self._any_known and _USUAL & flat.keys()):
            self._any_known = True
            yield record
        elif len(self._unknown) < _DECIDED:
            self._unknown.append(record)

    # Progress bars and steps before a record

    def _watch_bars(self, text: str) -> None:
        for match in _BAR.finditer(text) if "|" in text and "[" in text else ():
            title = f"{match['title'].strip()}/{match['total']}"
            if title in self._bars or len(self._bars) < _BARS:
                self._bars[title] = int(match["done"])

    def _step_before(self, text: str) -> int | None:
        for pattern in _STEPS:
            match = pattern.search(text)
            if match is not None:
                return int(match[1]) if len(match[1]) < 16 else None
        return None

    # Dictionaries

    def _dict_in(self, line: Line, text: str) -> Record | None:
        start = text.find("{")
        if (start >= 0 and ":" in text[start:]) or text.endswith("{"):
            record = self._braced_dict(line, text, start)
            if record is not None:
                return record
        match = _BARE_DICT.search(text) if start < 0 else None
        if match is None:
            return None
        values = DictReader(text).read_bare(match.start())
        return self._record(line, values, text[: match.start()]) if len(values) > 1 else None

    def _braced_dict(self, line: Line, text: str, start: int) -> Record | None:
        """Return the dictionary that begins in a line, which may end some lines below."""
        reader = DictReader(text)
        try:
            return self._record(line, reader.read_braced(start), text[:start])
        except NotADict:
            if text.count("{") <= text.count("}"):
                return None
        joined = [text]
        size = len(text)
        taken: list[Line] = []
        open_braces = text.count("{") - text.count("}")
        most = _SPAN if self._open_ends < _OPEN_ENDS else _SHORT_SPAN
        while len(taken) < most and size < LONGEST:
            following = self._next_line()
            if following is None:
                break
            taken.append(following)
            more = _cleaned(following.text)
            joined.append(more)
            size += len(more)
            open_braces += more.count("{") - more.count("}")
            if open_braces > 0:
                continue
            try:
                values = DictReader("\n".join(joined)).read_braced(start)
            except NotADict:
                continue
            return self._record(line, values, text[:start])
        self._open_ends += 1
        self._waiting.extendleft(reversed(taken))
        if has_metric(DictReader(text).read_bare(start + 1)):
            self._rows.account.leave_out("a dictionary that is cut off", self._rows.place(line.number))
        return None

    def _record(self, line: Line, values: dict[str, Any], before: str) -> Record | None:
        if not values:
            return None
        step = self._step_before(before)
        return Record(line.number, values, self._step if step is None else step)

    # Pairs

    def _pairs_in(self, line: Line, text: str) -> Record | None:
        if ":" not in text and "=" not in text:
            return None
        best: dict[str, str] = {}
        before = ""
        for separator in _SEPARATORS:
            if separator not in text:
                continue
            pairs, rest = _pairs_of(text.split(separator))
            if len(pairs) > len(best):
                best = pairs
                before = rest
        for pattern in (_EQUALS, _COLONS):
            matches = list(pattern.finditer(text))
            if len(matches) > len(best):
                best = {match["key"]: match["value"] for match in matches}
                before = text[: matches[0].start()]
        if len(best) < 2:
            return None
        return self._record(line, dict(best), before)

    def _loose(self, line: Line, text: str) -> Iterator[Record]:
        """Take a line with one pair into the block of its neighbours; an announced step ends the block."""
        bare = _BOX.sub("|", text)
        pair = _single_pair(bare)
        if pair is None:
            step = self._step_before(text)
            if step is not None and step != self._step:
                yield from self._close_block()
                self._step = step
            return
        key, value = pair
        if key.lower() in _OWN_STEPS:
            yield from self._close_block()
            self._step = int(float(value)) if value.isdigit() else self._step
            return
        if self._block is not None and key in self._block.values:
            yield from self._close_block()
        if self._block is None:
            self._block = Record(line.number, {}, self._step)
        self._block.values[key] = value

    def _close_block(self) -> Iterator[Record]:
        block = self._block
        self._block = None
        if block is not None and (has_metric(block.values) or not settings(block.values)):
            yield from self._accepted(block)
        elif block is not None:
            self._rows.config = block.values | self._rows.config

    # Tables

    def _starts_table(self, text: str) -> bool:
        cells = _cells_of(text)
        known = [cell for cell in cells if is_known(cell)]
        if len(cells) < _HEADING_CELLS or not known or any(map(_is_number, cells)):
            return False
        self._columns = cells
        return True

    def _row_of_table(self, line: Line, text: str) -> Record | None:
        if not self._columns or _FRAME.fullmatch(text):
            return None
        cells = _cells_of(text)
        numbers = sum(map(_is_number, cells))
        if len(cells) != len(self._columns) or 2 * numbers < len(cells):
            self._columns = []
            return None
        values = {name: cell for name, cell in zip(self._columns, cells, strict=True) if cell}
        return Record(line.number, values, _own_step(values, self._step), dict(self._bars))


def _cleaned(text: str) -> str:
    """Return a line without colours, and without the worker that Ray says has printed it."""
    return _OF_A_WORKER.sub("", plain(text))


def with_steps(records: Iterator[Record], rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield rows with a step: what a record says, what the bar counts that fits best, or its number."""
    first = list(islice(records, _DECIDED))
    stepless = [record for record in first if record.step is None]
    bar = _counting_bar(stepless)
    rows.is_numbered = bool(first) and len(stepless) == len(first) and not bar
    number = -1
    any_numbered = False
    names_so_far: set[str] = set()
    for record in chain(first, records):
        step = record.step if record.step is not None else record.bars.get(bar)
        if step is None:
            names = {name for name in record.values if place(name) is not None} or set(record.values)
            if number < 0 or names & names_so_far:
                number += 1
                names_so_far = set()
                if not any_numbered:
                    rows.notes.append("records without a step are numbered in their order")
                any_numbered = True
            names_so_far |= names
            step = number
        else:
            number = step
            names_so_far = set()
        rows.position = record.line
        values = {name: value for name, value in record.values.items() if name not in STEP}
        yield values | {"step": step}


def _counting_bar(records: list[Record]) -> str:
    """Return the progress bar whose counter grows from record to record; empty where none does."""
    counts: Counter[str] = Counter()
    last: dict[str, int] = {}
    for record in records:
        for title, done in record.bars.items():
            counts[title] += done > last.get(title, -1)
            last[title] = done
    title, grown = max(counts.items(), key=lambda item: item[1], default=("", 0))
    return title if 5 * grown >= 4 * len(records) else ""


def _pairs_of(parts: list[str]) -> tuple[dict[str, str], str]:
    """Return the pairs among the parts of a line, and the text before the first of them."""
    pairs: dict[str, str] = {}
    before: list[str] = []
    for part in parts:
        match = _PAIR.fullmatch(part.strip().lstrip("•*[( "))
        if match is not None and len(match["key"]) < 100:
            pairs[match["key"].strip()] = match["value"] + ("%" if part.rstrip().endswith("%") else "")
        elif not pairs:
            before.append(part)
    if before or not pairs:
        return pairs, " ".join(before)
    key = next(iter(pairs))
    return pairs, f"{key} {pairs[key]}" if _own_step(pairs, None) is None else ""


def _single_pair(text: str) -> tuple[str, str] | None:
    """Return the pair of a line that holds nothing else, `• Loss: 0.1` or `| loss | 0.1 |`."""
    bare = _BULLET.sub("", text, count=1)
    cells = [cell.strip() for cell in text.strip().strip("|").split("|")]
    if len(cells) == 2 and cells[0] and _is_number(cells[1]):
        return cells[0], cells[1]
    match = _PAIR.fullmatch(bare.strip()) if ":" in bare or "=" in bare else None
    if match is None or len(match["key"]) > 60:
        return None
    return match["key"].strip(), match["value"]


def _cells_of(text: str) -> list[str]:
    """Return the cells of a row of a table, parted by bars, tabs or wide gaps."""
    bare = _BOX.sub("|", text).strip()
    if "|" in bare:
        return [cell.strip() for cell in bare.strip("|").split("|")]
    if "\t" in text:
        return [cell.strip() for cell in text.strip("\n").split("\t")]
    return re.split(r"\s{2,}", bare)


def _is_number(text: str) -> bool:
    return re.fullmatch(_NUMBER + "%?", text.strip()) is not None


def _own_step(values: Mapping[str, Any], before: int | None) -> int | None:
    """Return the step that a record names itself, else the one that stood before it."""
    for name, value in values.items():
        if is_step(name) or name.lower() in _OWN_STEPS:
            try:
                return int(float(str(value).split("/")[0].replace(",", "")))
            except (ValueError, OverflowError):
                continue
    return before
