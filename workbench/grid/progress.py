"""The display of a running grid on stderr: a live table on a terminal, plain lines everywhere else."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from sorl.grid.cell import Cell, duration
from sorl.grid.result import Result
from sorl.spec.heartbeat import Doing, read_heartbeat
from sorl.store.text import visible

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_POINTS = 24
_PLAIN_SECONDS = 8.0  # a line at least every ten: a sync of the index may come between
_REDRAW_SECONDS = 0.25
_TICK_SECONDS = 0.1
_LOOK_SECONDS = 1.0  # between two looks at the heartbeats
_SLOW_SECONDS = 3.0  # after which it is said what a step is doing
_STYLE = {"finished": "green", "failed": "red", "interrupted": "yellow", "elsewhere": "cyan"}
_FIELDS = ("arm", "seed", "state", "spark", "detail")


def sparkline(values: Sequence[float | None], points: int = _SPARK_POINTS) -> str:
    """Return the last `points` fractions as bars from 0 to 1; a value that was not measured is a gap.

    >>> sparkline([0.0, 0.5, None, 1.0])
    '▁▅ █'
    """
    places = (None if v is None or v != v else min(7, max(0, int(8 * v))) for v in values[-points:])
    return "".join(" " if place is None else _BARS[place] for place in places)


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


@dataclass
class _Running:
    """A cell that runs: its line, and what its trainer said."""

    task: TaskID
    folder: Path
    before: Doing | None  # what an earlier attempt left in the heartbeat
    moved: float  # when it started, or ended its last step
    success: list[float | None] = field(default_factory=list)  # of each step
    detail: str = ""  # of the last step

    def doing(self) -> str:
        """Return what it does now, once that takes long; empty before."""
        seconds = time.monotonic() - self.moved
        if seconds < _SLOW_SECONDS:
            return ""
        now = read_heartbeat(self.folder)
        if now is not None and now != self.before:
            return visible(now.words)
        return "" if self.success else f"its process starts, for {seconds:.0f} s"


class Display:
    """The cells that run, a line each, and how far the grid is: live on a terminal, plain lines in a pipe or
    a log.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console = console or Console(file=cast(TextIO, _Unbroken(sys.stderr)))
        # Names are text: markup in them is not obeyed.
        columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in _FIELDS]
        self.progress = Progress(
            *columns,
            TimeRemainingColumn(compact=True),
            console=console,
            auto_refresh=False,
            speed_estimate_period=3600,
        )
        self.live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self.running: dict[str, _Running] = {}
        self.status: Counter[str] = Counter()
        self.left: dict[str, int] = {}  # steps of each cell that has not ended
        # cells of the grid, steps so far
        self.total = 0
        self.steps = 0
        self.began = 0.0  # of the first step: what comes before it is no pace
        self.drawn = 0.0 if console.is_terminal else time.monotonic()
        self.looked = 0.0  # when the heartbeats were read

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        """Receive the cells that will run and those that were finished before."""
        self.total = len(todo) + len(done)
        self.left = {cell.run_id: cell.settings.planned_iterations for cell in todo}
        self.status.update(result.status for result in done)
        if self.console.is_terminal:
            if done:
                self.note(f"{len(done)} of {self.total} cells are already finished")
            self.live.start()
        else:
            skipped = f", {len(done)} already finished" if done else ""
            self.note(f"{self.total} cells{skipped}; {len(todo)} to run, {workers} at a time")

    def started(self, cell: Cell, resumed: bool, folder: Path) -> None:
        """Receive the start of a process that trains in `folder`."""
        self._forget(cell)
        fields: dict[str, Any] = dict.fromkeys(_FIELDS, "")
        fields |= {"arm": visible(cell.arm), "seed": f"seed {cell.seed}", "state": "starting"}
        task = self.progress.add_task("", total=cell.settings.iterations, **fields)
        self.running[cell.run_id] = _Running(task, folder, read_heartbeat(folder), time.monotonic())
        if not self.console.is_terminal:
            self.note(f"{'resume' if resumed else 'start'}  {cell.arm}  seed {cell.seed}  ({cell.run_id})")

    def stepped(self, cell: Cell, row: dict[str, Any]) -> None:
        """Receive a progress line."""
        running = self.running[cell.run_id]
        success = running.success
        step = row["step"]
        success.append(row.get("success"))
        state = f"step {step}/{row.get('steps') or cell.settings.iterations}, success {_number(success[-1])}"
        running.detail = f"clipped {_number(row.get('clip_frac'))}  grad norm {_number(row.get('grad_norm'))}"
        running.moved = time.monotonic()
        fields: dict[str, Any] = {"state": state, "spark": sparkline(success), "detail": running.detail}
        self.progress.update(running.task, completed=step, **fields)
        self.steps += 1
        self.began = self.began or time.monotonic()
        self.left[cell.run_id] = max(0, cell.settings.planned_iterations - step)

    def ended(self, result: Result) -> None:
        """Receive the end of a cell."""
        cell = result.cell
        line = f"{result.status}  {cell.arm}  seed {cell.seed}"
        running = self.running.get(cell.run_id)
        line += f"  {self._fields(running)['state']}" if running and running.success else ""
        line += f", {duration(result.seconds)}" if result.seconds else ""
        self.status[result.status] += 1
        self.left.pop(cell.run_id, None)
        self._forget(cell)
        self.note(f"{line}: {result.reason}" if result.reason else line, _STYLE.get(result.status, ""))

    def replaced(self, cell: Cell, again: Cell, why: str) -> None:
        """Receive that a cell goes on in another start, from a checkpoint of before."""
        self._forget(cell)
        if cell.run_id in self.left:
            self.left[again.run_id] = self.left.pop(cell.run_id)
        self.note(f"rolled back  {cell.arm}  seed {cell.seed}: {why}")

    def note(self, text: str, style: str = "") -> None:
        """Print a sentence for the user."""
        self.console.print(Text(visible(text).replace("\n", "\\n"), style), soft_wrap=True)

    def tick(self) -> None:
        """Redraw if it is time; called ten times a second."""
        every = _REDRAW_SECONDS if self.console.is_terminal else _PLAIN_SECONDS
        if time.monotonic() - self.drawn <= every or not (self.console.is_terminal or self.left):
            return
        self.drawn = time.monotonic()
        if not self.console.is_terminal:
            lines = [self._line(running) for running in self.running.values()]
            self.note("; ".join([self.summary(), *(lines or ["another process trains what is left"])]))
            return
        if time.monotonic() - self.looked >= _LOOK_SECONDS:
            self.looked = time.monotonic()
            for running in self.running.values():
                self.progress.update(running.task, detail=running.doing() or running.detail)
        self.live.update(Group(self.progress, Text(self.summary(), style="bold")), refresh=True)

    @contextmanager
    def kept_ticking(self) -> Iterator[None]:
        """Tick in a thread while the caller is busy in this block, and reports nothing."""
        over = Event()

        def tick() -> None:
            while not over.wait(_TICK_SECONDS):
                self.tick()

        ticking = Thread(target=tick, daemon=True)
        ticking.start()
        try:
            yield
        finally:
            over.set()
            ticking.join()

    def close(self) -> None:
        """Clean up: nothing follows."""
        self.live.stop()

    def summary(self) -> str:
        """`5 of 18 cells done (1 failed), 2 running, 3 min 05 s left`, at the pace since the first step."""
        bad = ", ".join(f"{n} {status}" for status, n in self.status.items() if status != "finished")
        parts = [f"{self.status.total()} of {self.total} cells done" + (f" ({bad})" if bad else "")]
        parts += [f"{len(self.running)} running"] if self.running else []
        pace = (time.monotonic() - self.began) / (self.steps - 1) if self.steps > 1 else None
        left = None if pace is None else pace * sum(self.left.values())
        return ", ".join([*parts, *([f"{duration(left)} left"] if self.left else [])])

    def _line(self, running: _Running) -> str:
        """Return a running cell as plain text: what it does now, after its last step if there was one."""
        fields = self._fields(running)
        parts = [fields["state"] if running.success else "", running.doing()]
        return f"{fields['arm']} {fields['seed']}: {', '.join(filter(None, parts)) or fields['state']}"

    def _fields(self, running: _Running) -> dict[str, Any]:
        return next(task.fields for task in self.progress.tasks if task.id == running.task)

    def _forget(self, cell: Cell) -> None:
        running = self.running.pop(cell.run_id, None)
        if running is not None:
            self.progress.remove_task(running.task)


def _number(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"
