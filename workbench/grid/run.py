"""Run the cells of a grid, one process each; the same call resumes where the last one stopped.

A thread for each cell that trains at a time takes a cell from the queue, starts its process and follows it to its end;
the main thread shows what the others report, syncs the index and receives Ctrl-C.
"""

from __future__ import annotations

import itertools
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from workbench.grid import folder as run_folder
from workbench.grid import history, process
from workbench.grid.cell import Cell, of_generation
from workbench.grid.config import Grid
from workbench.grid.folder import Follower, last_line, one_line, where
from workbench.spec import InputError
from workbench.spec.outcomes import cause
from workbench.store.text import tail

POLL_SECONDS = 0.1
SYNC_SECONDS = 2.0
HELD_SECONDS = 0.5  # between two looks at a cell that another process trains
FINISHED, WRONG_INPUT, INTERRUPTED, HELD = 0, 2, 3, 4  # exit codes of a trainer; any other is a failure
_STARVED = re.compile(
    r"MemoryError|OutOfMemoryError|out of memory|DefaultCPUAllocator|bad_alloc|cannot allocate memory"
    r"|unable to allocate|malloc of size \d+ failed",
    re.IGNORECASE,
)
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d")  # how faulthandler begins its dump


@dataclass(frozen=True)
class Limits:
    """When the grid gives a cell up."""

    retries: int = 1  # attempts after the first, in one call
    hang_seconds: float = 600.0  # without a sign of life, from the first one on; 0 = never
    memory: int | None = None  # bytes that the processes of a cell may hold; None = no limit


@dataclass(frozen=True)
class Result:
    """The state of a cell at the end of a call.

    `status` is a status of table `run`, or `elsewhere` when another process trains the cell.
    """

    cell: Cell
    status: str
    folder: Path
    reason: str = ""
    cause: str = ""  # of a bad end: diverged, hang, out of memory, killed or failed
    skipped: bool = False  # finished before this call, or by another process
    seconds: float = 0.0


class Watch:
    """Receives what happens in a grid, in the main thread; this one shows nothing."""

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        """Receive the cells that will run and those that were finished before."""

    def started(self, cell: Cell, resumed: bool) -> None:
        """Receive the start of a process."""

    def stepped(self, cell: Cell, row: dict[str, Any]) -> None:
        """Receive a progress line."""

    def ended(self, result: Result) -> None:
        """Receive the end of a cell."""

    def note(self, text: str) -> None:
        """Receive a sentence for the user."""

    def tick(self) -> None:
        """Redraw if it is time; called ten times a second."""

    def close(self) -> None:
        """Clean up: nothing follows."""


def workers_for(cells: Sequence[Cell], asked: int | None = None, slots: int | None = None) -> int:
    """Cells that train at a time: `asked`, else as many as have a core (of `slots`) for each of their threads.

    Never more than there are cells.
    """
    threads = max((cell.settings.threads for cell in cells), default=1)
    return max(1, min(len(cells), asked or (slots or process.cores()) // threads))


def run(
    grid: Grid,
    runs: Path,
    watch: Watch,
    *,
    workers: int | None = None,
    executor: process.Executor | None = None,
    limits: Limits | None = None,
    fresh: bool = False,
    sync: Callable[[], object] | None = None,
) -> list[Result]:
    """Run every unfinished cell; return the state of each cell, in the grid's order.

    A failing cell stops no other; a cell that another process trains is waited for. After one SIGINT or SIGTERM the
    trainers write checkpoints and stop, after a second one they are killed. With `fresh` every cell starts from nothing
    in a new folder. Raises InputError for `fresh` while a cell is being trained, and if the runs folder cannot be made.
    """
    runs = runs.resolve()  # trainers may have another working directory
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot make the runs folder '{runs}': {why}; name another with --runs") from None
    grid = history.fresh(grid, runs) if fresh else history.newest(grid, runs)
    run_folder.write_experiment(runs, grid.experiment, grid.question, grid.toml)
    edited = history.edits(runs, [cell for cell in grid.cells if not run_folder.folder_of(runs, cell).exists()])
    done: dict[str, Result] = {}
    todo: list[Cell] = []
    for cell in grid.cells:
        folder = run_folder.prepare(runs, cell)
        row = run_folder.last_row(folder)
        if row is not None and row["status"] == "finished":
            done[cell.run_id] = _skipped(cell, folder, row)
            continue
        todo.append(cell)
        if row is None:
            _write_row(cell, folder, status="queued")
    executor = executor or process.Local()
    count = workers_for(todo, workers, executor.slots)
    watch.begin(todo, list(done.values()), count)
    for line in edited:
        watch.note(f"{line}: new cells; the earlier runs stay")
    for steps in _missing_warm_starts(todo, runs):
        watch.note(f"warm start: {steps} steps of imitation, shared by the cells and kept")
    with Signals() as signals:
        try:
            done |= _Session(runs, watch, executor, signals, limits or Limits()).run(todo, count, sync)
        finally:
            watch.close()
    return [done[cell.run_id] for cell in grid.cells]


def _skipped(cell: Cell, folder: Path, row: dict[str, Any]) -> Result:
    return Result(cell, row["status"], folder, one_line(row.get("reason") or ""), cause(row), skipped=True)


def _write_row(cell: Cell, folder: Path, **changes: Any) -> None:
    names = {**run_folder.identity(cell), "config": cell.settings.model_dump_json()}
    run_folder.change(folder, names, **changes)


def _missing_warm_starts(cells: Sequence[Cell], runs: Path) -> list[int]:
    """Steps of each warm start that the first cell to need it will make."""
    from workbench.learn.warmstart import made

    needed = {cell.settings.warmstart.steps for cell in cells if not made(cell.settings, runs / ".cache")}
    return sorted(needed)


def run_rounds(
    load: Callable[[], Grid],
    runs: Path,
    watch: Callable[[], Watch],
    begin: Callable[[Grid], None] = lambda grid: None,
    **options: Any,
) -> tuple[Grid, list[Result]]:
    """Run the cells of `load()`, load again, and so on until it asks for nothing new; return the last grid and results.

    The cells of a search depend on the outcomes of earlier ones, which `load` looks up. `begin` receives each grid
    before its new cells run; `options` are those of `run`. A round with an unfinished cell is the last.
    """
    done: dict[str, Result] = {}
    while True:
        grid = load()
        new = [cell for cell in grid.cells if of_generation(cell, 1).run_id not in done]
        if new:
            begin(grid)
            for result in run(replace(grid, cells=tuple(new)), runs, watch(), **options):
                done[of_generation(result.cell, 1).run_id] = result
        finished = all(result.status == "finished" for result in done.values())
        if not new or not finished or (grid.region is None and not grid.waiting):
            return grid, list(done.values())


class Signals:
    """Counts SIGINT, SIGTERM and SIGHUP inside a `with` block; restores the handlers afterwards."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Signals:
        self._before = {n: signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@dataclass(frozen=True)
class Ending:
    """How a process ended: the status of its row, the kind of its event (empty for a good end), the reason."""

    status: str
    kind: str = ""
    reason: str = ""
    again: bool = False  # another attempt may succeed


def ending(code: int, said: str) -> Ending:
    """Return the ending of a process with this exit code; `said` is the reason that it gave, or its last words."""
    words = one_line(said)
    if code == FINISHED:
        return Ending("finished")
    if code == INTERRUPTED:
        return Ending("interrupted", "interrupted", words)
    if code == WRONG_INPUT:
        return Ending("failed", "failed", words.removeprefix("sorl: ") or "its settings were refused")
    if words.startswith("hang:"):
        return Ending("failed", "hang", words, again=True)
    if code == -signal.SIGKILL:
        return Ending("failed", "killed", "killed by SIGKILL, often because memory ran out", again=True)
    if _STARVED.search(words):
        reason = words if words.startswith("out of memory") else f"out of memory: {words}"
        return Ending("failed", "out_of_memory", reason, again=True)
    if code < 0:
        name = signal.Signals(-code).name
        return Ending("failed", "killed", f"killed by {name}" + (f": {words}" if words else ""), again=True)
    kind = "killed" if words.startswith("lost") else "failed"
    return Ending("failed", kind, words or f"exit code {code}, nothing in console.log", again=True)


class _Session:
    """One call: the queue of cells, and the threads that train them."""

    def __init__(self, runs: Path, watch: Watch, executor: process.Executor, signals: Signals, limits: Limits) -> None:
        self._runs, self._watch, self._executor, self._signals, self._limits = runs, watch, executor, signals, limits
        self._queue: deque[Cell] = deque()
        self._reports: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._held: set[str] = set()  # cells that another process was seen to train
        self._running: set[str] = set()
        self._done: dict[str, Result] = {}
        self._began = run_folder.now()

    def run(self, todo: Sequence[Cell], workers: int, sync: Callable[[], object] | None) -> dict[str, Result]:
        """Run `todo` to its end, or until Ctrl-C; return the state of each of them by run id."""
        self._queue.extend(todo)
        next_sync, stopping = 0.0, False
        with ThreadPoolExecutor(workers) as pool:
            threads = [pool.submit(self._work) for _ in range(workers)]
            try:
                while not all(thread.done() for thread in threads):
                    self._report(POLL_SECONDS)
                    self._watch.tick()
                    if self._signals.count and not stopping:
                        stopping = True
                        if self._running:
                            told = f"stopping: {len(self._running)} runs write a checkpoint; Ctrl-C again kills them"
                            self._watch.note(told)
                    if sync is not None and time.monotonic() >= next_sync:
                        began = time.monotonic()
                        sync()
                        # At most a tenth of the time goes into the index: the cores are the trainers'.
                        next_sync = time.monotonic() + max(SYNC_SECONDS, 10 * (time.monotonic() - began))
            except BaseException:
                self._signals.count = 2
                raise
        self._report(0.0)
        for thread in threads:
            thread.result()
        for cell in self._queue:
            self._done[cell.run_id] = self._not_started(cell)
        return self._done

    def _report(self, seconds: float) -> None:
        """Pass on what the threads reported, waiting so long for the first report."""
        with suppress(Empty):
            self._reports.get(timeout=seconds or None, block=bool(seconds))()
            while True:
                self._reports.get_nowait()()

    def _say(self, report: Callable[..., None], *values: Any) -> None:
        self._reports.put(lambda: report(*values))

    def _not_started(self, cell: Cell) -> Result:
        folder = run_folder.folder_of(self._runs, cell)
        if cell.run_id in self._held and (run_folder.held(folder, "claim") or run_folder.held(folder)):
            return Result(cell, "elsewhere", folder, "another process trains it")
        status = run_folder.status_of(run_folder.last_row(folder), alive=run_folder.held(folder))
        return Result(cell, status, folder, "not started: the grid was stopped")

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Train cells of the queue, one after the other, until it is empty."""
        try:
            while not self._signals.count:
                try:
                    cell = self._queue.popleft()
                except IndexError:
                    return
                folder = run_folder.folder_of(self._runs, cell)
                claim = run_folder.claim(folder)
                if claim is None:
                    self._wait_for(cell)
                    continue
                with claim:
                    self._take(cell, folder)
        except BaseException:
            self._signals.count = 2  # stops the other threads; the main thread raises this exception
            raise

    def _wait_for(self, cell: Cell) -> None:
        if cell.run_id not in self._held:
            self._held.add(cell.run_id)
            self._say(self._watch.note, f"waiting: {cell.arm} seed {cell.seed} is trained by another process")
        self._queue.append(cell)
        time.sleep(HELD_SECONDS)

    def _take(self, cell: Cell, folder: Path) -> None:
        """Train the cell, unless another process has brought it to its end meanwhile."""
        row = run_folder.last_row(folder) or {}
        ended = row.get("ended_at")
        failed_since = row.get("status") == "failed" and ended is not None and ended >= self._began
        if row.get("status") == "finished" or failed_since:
            result = _skipped(cell, folder, row)
        else:
            began = time.monotonic()
            self._running.add(cell.run_id)
            try:
                end = self._train(cell, folder)
            finally:
                self._running.discard(cell.run_id)
            if end is None:
                self._wait_for(cell)
                return
            result = self._settle(cell, folder, end, time.monotonic() - began)
        self._done[cell.run_id] = result
        self._say(self._watch.ended, result)

    def _train(self, cell: Cell, folder: Path) -> Ending | None:
        """Try the cell until it ends well or has used up its retries; None when a trainer of another grid holds it."""
        why = ""
        for tries in itertools.count(1):
            end = self._attempt(cell, folder, why)
            if end is None:
                return None
            if end.kind:
                log = folder / "console.log"
                step = run_folder.last_step(log) or run_folder.checkpoint(folder) or 0
                run_folder.write_event(folder, end.kind, step, end.reason)
            if not end.again or tries > self._limits.retries or self._signals.count:
                break
            told = f"retry {tries} of {self._limits.retries}: {cell.arm} seed {cell.seed}: {end.reason}"
            self._say(self._watch.note, told)
            why = end.reason
        return end

    def _attempt(self, cell: Cell, folder: Path, why: str) -> Ending | None:
        """Start a process and follow it to its end; `why` is the reason of the attempt before it in this call."""
        row = run_folder.last_row(folder) or {}
        log, saved = folder / "console.log", run_folder.checkpoint(folder)
        if row.get("status") == "running" and not why:
            message = "the trainer died without a message, and so did its grid"
            run_folder.write_event(folder, "killed", run_folder.last_step(log), message)
        attempt = run_folder.next_attempt(folder, saved is not None or row.get("started_at") is not None)
        if attempt > 1:
            start = "from nothing" if saved is None else f"from the checkpoint after {saved} steps"
            message = f"attempt {attempt} starts {start}" + (f"; before it: {why}" if why else "")
            run_folder.write_event(folder, "retried" if why else "resumed", saved or 0, message, float(attempt))
        _write_row(cell, folder, status="queued", attempt=attempt, reason=None, ended_at=None)
        limits, threads = self._limits, cell.settings.threads
        job = process.Job(folder, self._runs / ".cache", threads, limits.hang_seconds, limits.memory, process.TRAINER)
        follower = Follower(log)
        try:
            trainer = self._executor.start(job)
        except OSError as error:
            return Ending("failed", "failed", one_line(f"could not be started: {error}"))
        self._say(self._watch.started, cell, attempt > 1)
        code = self._follow(cell, trainer, follower)
        return None if code == HELD else self._ending(folder, code, follower)

    def _follow(self, cell: Cell, trainer: process.Process, follower: Follower) -> int:
        """Report the progress of a process until it has ended, and hand Ctrl-C on to it; return the exit code."""
        handed_on = 0
        while True:
            code = trainer.poll()  # before the rows: what is read after the end is all that was written
            for row in follower.rows():
                self._say(self._watch.stepped, cell, row)
            if code is not None:
                return code
            if self._signals.count > handed_on:
                handed_on = self._signals.count
                (trainer.interrupt if handed_on == 1 else trainer.kill)()
            time.sleep(POLL_SECONDS)

    def _ending(self, folder: Path, code: int, follower: Follower) -> Ending:
        row = run_folder.last_row(folder) or {}
        if row.get("status") == "finished":  # a signal that killed it afterwards came too late
            return Ending("finished")
        said = row.get("reason") if row.get("status") in ("failed", "interrupted") else None
        if self._signals.count and said is None:
            how = "killed by a second Ctrl-C" if self._signals.count > 1 else "stopped before its first step"
            return Ending("interrupted", "interrupted", how)
        if row.get("status") == "interrupted":
            return Ending("interrupted", "interrupted", one_line(said or ""))
        lines = tail(follower.log, follower.began)
        if any(_TIMEOUT.match(line) for line in lines):
            place = where(follower.log, follower.began)
            step = run_folder.last_step(follower.log) or 0
            said = f"hang: no sign of life for {self._limits.hang_seconds:g} s in step {step}"
            said += f", in {place}" if place else ""
        return ending(code, said or last_line(follower.log, follower.began))

    def _settle(self, cell: Cell, folder: Path, end: Ending, seconds: float) -> Result:
        """Write the end of a cell into its row, unless the trainer has done so."""
        row = run_folder.last_row(folder) or {}
        reason = end.reason if end.kind else one_line(row.get("reason") or "")
        if (row.get("status"), row.get("reason") or "") != (end.status, reason) or row.get("ended_at") is None:
            _write_row(cell, folder, status=end.status, reason=reason or None, ended_at=run_folder.now())
        bad = cause({**row, "status": end.status, "reason": reason})
        return Result(cell, end.status, folder, reason, bad, seconds=seconds)
