"""The display of a running grid on stderr: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from workbench.grid.cell import Cell
from workbench.grid.run import Result, Watch
from workbench.store.text import visible

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_POINTS = 24
_PLAIN_SECONDS, _REDRAW_SECONDS = 10.0, 0.25
_STYLE = {"finished": "green", "failed": "red", "interrupted": "yellow", "elsewhere": "cyan"}
_FIELDS = ("arm", "seed", "state", "spark", "detail")


def watch(console: Console | None = None) -> Watch:
    """Return the display for this terminal: live if there is one, plain lines if the output is piped or logged."""
    console = console or Console(file=cast(TextIO, _Unbroken(sys.stderr)))
    return _Terminal(console) if console.is_terminal else _Plain(console)


def sparkline(values: Sequence[float | None], points: int = _SPARK_POINTS) -> str:
    """Return the last `points` fractions as bars from 0 to 1; a value that was not measured is a gap.

    >>> sparkline([0.0, 0.5, None, 1.0])
    '▁▅ █'
    """
    last = len(_BARS) - 1
    return "".join(
        " " if value is None or value != value else _BARS[min(last, max(0, int(value * len(_BARS))))]
        for value in values[-points:]
    )


def duration(seconds: float | None) -> str:
    """Seconds in words: `42 s`, `3 min 05 s`, `1 h 20 min`; `?` if unknown."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Unbroken:
    """A stream that ignores a closed terminal: the cells still have checkpoints to write."""

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


class _Board(Watch):
    """The state that both displays show: cells that run, cells that are done, the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        # Names are text: markup in them is not obeyed.
        columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in _FIELDS]
        self.progress = Progress(
            *columns, TimeRemainingColumn(compact=True), console=console, auto_refresh=False, speed_estimate_period=3600
        )
        self.tasks: dict[str, Task] = {}
        self.success: dict[str, list[float | None]] = {}
        self.status: Counter[str] = Counter()
        self.total = 0
        self.left: dict[str, Cell] = {}
        self.workers = 1
        self.speeds: dict[str, float] = {}  # steps a second, by algorithm

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        self.total, self.workers = len(todo) + len(done), workers
        self.left = {cell.run_id: cell for cell in todo}
        self.status.update(result.status for result in done)

    def started(self, cell: Cell, resumed: bool) -> None:
        self._forget(cell)
        fields: dict[str, Any] = {
            "arm": visible(cell.arm),
            "seed": f"seed {cell.seed}",
            "state": "starting",
            "spark": "",
            "detail": "",
        }
        number = self.progress.add_task("", total=cell.settings.iterations, **fields)
        self.tasks[cell.run_id] = next(task for task in self.progress.tasks if task.id == number)
        self.success[cell.run_id] = []

    def stepped(self, cell: Cell, row: dict[str, Any]) -> None:
        task, success = self.tasks[cell.run_id], self.success[cell.run_id]
        success.append(row.get("success"))
        state = f"step {row['step']}/{row.get('steps') or cell.settings.iterations}, success {_number(success[-1])}"
        detail = f"clipped {_number(row.get('clip_frac'))}  grad norm {_number(row.get('grad_norm'))}"
        self.progress.update(task.id, completed=row["step"], state=state, spark=sparkline(success), detail=detail)
        if task.speed:
            self.speeds[cell.algorithm] = task.speed

    def ended(self, result: Result) -> None:
        self.status[result.status] += 1
        self.left.pop(result.cell.run_id, None)
        self._forget(result.cell)

    def note(self, text: str) -> None:
        self.say(text)

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(visible(text).replace("\n", "\\n"), style), soft_wrap=True)

    def _forget(self, cell: Cell) -> None:
        if task := self.tasks.pop(cell.run_id, None):
            self.progress.remove_task(task.id)

    def eta(self) -> float | None:
        """Seconds until the last cell ends, at the speed of each algorithm so far; None before two steps of one."""
        if not self.speeds:
            return None
        mean = len(self.speeds) / sum(1 / speed for speed in self.speeds.values())
        seconds = 0.0
        for run_id, cell in self.left.items():
            steps = cell.settings.iterations - (self.tasks[run_id].completed if run_id in self.tasks else 0)
            seconds += max(0, steps) / self.speeds.get(cell.algorithm, mean)
        return seconds / max(1, min(self.workers, len(self.left)))

    def summary(self) -> str:
        """`5 of 18 cells done (1 failed), 2 running, 3 min 05 s left`."""
        bad = ", ".join(f"{n} {status}" for status, n in self.status.items() if status != "finished")
        parts = [f"{self.status.total()} of {self.total} cells done" + (f" ({bad})" if bad else "")]
        parts += [f"{len(self.tasks)} running"] if self.tasks else []
        parts += [f"{duration(self.eta())} left"] if self.left else []
        return ", ".join(parts)

    def end_of(self, result: Result) -> str:
        """`failed  ppo  seed 0  step 3/80, success 0.600, 1 min 01 s: RuntimeError: ...`, before it is forgotten."""
        what = f"{result.status}  {result.cell.arm}  seed {result.cell.seed}"
        if (task := self.tasks.get(result.cell.run_id)) and task.fields["spark"]:
            what += f"  {task.fields['state']}"
        what += f", {duration(result.seconds)}" if result.seconds else ""
        return f"{what}: {result.reason}" if result.reason else what


class _Plain(_Board):
    """A line for each start and end of a cell, and a summary every ten seconds."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._next = time.monotonic() + _PLAIN_SECONDS

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        super().begin(todo, done, workers)
        skipped = f", {len(done)} already finished" if done else ""
        self.say(f"{self.total} cells{skipped}; {len(todo)} to run, {workers} at a time")

    def started(self, cell: Cell, resumed: bool) -> None:
        super().started(cell, resumed)
        self.say(f"{'resume' if resumed else 'start'}  {cell.arm}  seed {cell.seed}  ({cell.run_id})")

    def ended(self, result: Result) -> None:
        line = self.end_of(result)
        super().ended(result)
        self.say(line)

    def tick(self) -> None:
        if self.tasks and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_SECONDS
            cells = (task.fields for task in self.tasks.values())
            self.say(f"{self.summary()}; " + "; ".join(f"{f['arm']} {f['seed']}: {f['state']}" for f in cells))


class _Terminal(_Board):
    """A line for each running cell, redrawn in place; ended cells scroll away above."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._drawn = 0.0

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        super().begin(todo, done, workers)
        if done:
            self.note(f"{len(done)} of {self.total} cells are already finished")
        self._live.start()

    def ended(self, result: Result) -> None:
        line = self.end_of(result)
        super().ended(result)
        self.say(line, _STYLE.get(result.status, ""))

    def tick(self) -> None:
        if time.monotonic() - self._drawn > _REDRAW_SECONDS:
            self._drawn = time.monotonic()
            self._live.update(Group(self.progress, Text(self.summary(), style="bold")), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _number(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"
