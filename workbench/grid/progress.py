"""What a grid shows while it runs, on stderr: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from workbench.grid.cell import Cell
from workbench.grid.watch import Result, Watch
from workbench.store.console import visible

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_POINTS = 24
_PLAIN_SECONDS = 10.0
_STYLE = {"finished": "green", "failed": "red", "interrupted": "yellow", "elsewhere": "cyan"}


def watch(console: Console | None = None) -> Watch:
    """The display for this terminal: live where one is attached, plain lines where output is piped or logged."""
    console = console or Console(file=cast(TextIO, _Unbroken(sys.stderr)))
    return _Terminal(console) if console.is_terminal else _Plain(console)


def sparkline(values: Sequence[float | None], points: int = _SPARK_POINTS) -> str:
    """The last `points` fractions as bars from 0 to 1; a value that was not measured is a gap.

    >>> sparkline([0.0, 0.5, None, 1.0])
    '▁▅ █'
    """
    bars = []
    for value in values[-points:]:
        if value is None or value != value:
            bars.append(" ")
        else:
            bars.append(_BARS[min(len(_BARS) - 1, max(0, int(value * len(_BARS))))])
    return "".join(bars)


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: `42 s`, `3 min 05 s`, `1 h 20 min`; `?` when unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Unbroken:
    """A stream that goes on after its terminal has gone: the cells still have checkpoints to write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass
class _Line:
    cell: Cell
    since: float
    first: int | None = None  # steps done when this session's first progress line came
    step: int = 0
    steps: int = 0
    row: dict[str, Any] = field(default_factory=dict)
    success: list[float | None] = field(default_factory=list)
    first_at: float = 0.0

    def take(self, row: dict[str, Any]) -> None:
        self.row, self.step = row, int(row["step"])
        self.steps = int(row.get("steps") or self.cell.settings.iterations)
        if self.first is None:
            self.first, self.first_at = self.step, time.monotonic()
        self.success.append(row.get("success"))

    @property
    def state(self) -> str:
        return f"step {self.step}/{self.steps}, success {_number(self.row.get('success'))}"

    @property
    def pace(self) -> float | None:
        """Seconds a step of this session; None until two steps were seen."""
        if self.first is None or self.step <= self.first:
            return None
        return (time.monotonic() - self.first_at) / (self.step - self.first)


class _Board:
    """Who runs, who is done, how long it will take: the state that both displays show."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lines: dict[str, _Line] = {}
        self.status: Counter[str] = Counter()
        self.total = 0
        self.left: dict[str, Cell] = {}
        self.workers = 1
        self.paces: dict[str, float] = {}  # seconds a step, by algorithm

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        self.total, self.workers = len(todo) + len(done), workers
        self.left = {cell.run_id: cell for cell in todo}
        self.status.update(result.status for result in done)

    def started(self, cell: Cell, resumed: bool) -> None:
        self.lines[cell.run_id] = _Line(cell, time.monotonic(), steps=cell.settings.iterations)

    def stepped(self, cell: Cell, row: dict[str, Any]) -> None:
        line = self.lines[cell.run_id]
        line.take(row)
        if line.pace is not None:
            self.paces[cell.algorithm] = line.pace

    def ended(self, result: Result) -> None:
        self.lines.pop(result.cell.run_id, None)
        self.left.pop(result.cell.run_id, None)
        self.status[result.status] += 1

    def note(self, text: str) -> None:
        self.console.print(_text(text))

    def tick(self) -> None: ...

    def close(self) -> None: ...

    def eta(self) -> float | None:
        """Seconds until the last cell ends, from the pace of each algorithm so far; None while nothing has a pace."""
        if not self.paces:
            return None
        mean = sum(self.paces.values()) / len(self.paces)
        seconds = 0.0
        for run_id, cell in self.left.items():
            step = self.lines[run_id].step if run_id in self.lines else 0
            seconds += self.paces.get(cell.algorithm, mean) * max(0, cell.settings.iterations - step)
        return seconds / max(1, min(self.workers, len(self.left)))

    def summary(self) -> str:
        """`5 of 18 cells done (1 failed), 2 running, 3 min 05 s left`."""
        over = sum(self.status.values())
        bad = ", ".join(f"{n} {status}" for status, n in self.status.items() if status != "finished")
        parts = [f"{over} of {self.total} cells done" + (f" ({bad})" if bad else "")]
        if self.lines:
            parts.append(f"{len(self.lines)} running")
        if self.left:
            parts.append(f"{duration(self.eta())} left")
        return ", ".join(parts)


class _Plain(_Board):
    """One line per start and end of a cell, and a summary every ten seconds."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._next = time.monotonic() + _PLAIN_SECONDS

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        super().begin(todo, done, workers)
        skipped = f", {len(done)} finished before" if done else ""
        self._say(f"{self.total} cells{skipped}; {len(todo)} to run, {workers} at a time")

    def started(self, cell: Cell, resumed: bool) -> None:
        super().started(cell, resumed)
        self._say(f"{'resume' if resumed else 'start'}  {cell.arm}  seed {cell.seed}  ({cell.run_id})")

    def ended(self, result: Result) -> None:
        line = self.lines.get(result.cell.run_id)
        super().ended(result)
        self._say(_end(result, line))

    def note(self, text: str) -> None:
        self._say(text)

    def tick(self) -> None:
        if self.lines and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_SECONDS
            running = "; ".join(f"{line.cell.arm} seed {line.cell.seed}: {line.state}" for line in self.lines.values())
            self._say(f"{self.summary()}; {running}")

    def _say(self, text: str) -> None:
        self.console.print(_text(text), soft_wrap=True)


class _Terminal(_Board):
    """A table with one line per running cell, redrawn in place; what has ended scrolls away above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._drawn = 0.0

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        super().begin(todo, done, workers)
        if done:
            self.note(f"{len(done)} of {self.total} cells were finished before")
        self._live.start()

    def ended(self, result: Result) -> None:
        line = self.lines.get(result.cell.run_id)
        super().ended(result)
        self.console.print(_text(_end(result, line), _STYLE.get(result.status, "")))

    def tick(self) -> None:
        if time.monotonic() - self._drawn > 0.25:
            self._drawn = time.monotonic()
            self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("arm", no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column("seed", justify="right")
        table.add_column("step", justify="right", no_wrap=True)
        table.add_column("success", no_wrap=True)
        for name in ("clipped", "grad norm", "left"):
            table.add_column(name, justify="right", no_wrap=True)
        for line in self.lines.values():
            pace = line.pace
            left = None if pace is None else pace * (line.steps - line.step)
            table.add_row(
                _text(line.cell.arm),  # a str would be read as markup
                str(line.cell.seed),
                f"{line.step}/{line.steps}",
                f"{_number(line.row.get('success'))} {sparkline(line.success)}",
                _number(line.row.get("clip_frac")),
                _number(line.row.get("grad_norm")),
                "starting" if not line.row else duration(left),
            )
        return Group(table, Text(self.summary(), style="bold"))


def _text(text: str, style: str = "") -> Text:
    """A line in which names are only text, whatever characters they have."""
    return Text(visible(text).replace("\n", "\\n"), style)


def _end(result: Result, line: _Line | None) -> str:
    cell = result.cell
    what = f"{result.status}  {cell.arm}  seed {cell.seed}"
    if line is not None and line.row:
        what += f"  {line.state}"
    if result.seconds:
        what += f", {duration(result.seconds)}"
    return f"{what}: {result.reason}" if result.reason else what


def _number(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"
