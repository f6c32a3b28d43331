"""Run the cells of a grid, one process each; the same call goes on where the last one stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Protocol

from workbench.grid import folder as run_folder
from workbench.grid.cell import Cell
from workbench.grid.executor import Executor, Local, Process
from workbench.grid.file import Grid
from workbench.spec import RunSettings

FINISHED, INTERRUPTED = 0, 3  # exit codes of a trainer; everything else is a failure
POLL_SECONDS = 0.1
SYNC_SECONDS = 2.0


@dataclass(frozen=True)
class Commands:
    """How the processes are started; tests put a scripted trainer here."""

    trainer: tuple[str, ...] = (sys.executable, "-m", "workbench.learn")  # + RUN_FOLDER --cache CACHE
    warmstart: tuple[str, ...] = (sys.executable, "-m", "workbench.learn.warmstart")  # + CONFIG_TOML CACHE


@dataclass(frozen=True)
class Result:
    """How a cell stands when the grid is done with it.

    `status` is a status of table `run`, or `elsewhere` when another process trains the cell.
    """

    cell: Cell
    status: str
    folder: Path
    reason: str = ""
    skipped: bool = False  # it was finished before this call
    seconds: float = 0.0


class Watch(Protocol):
    """Whoever is told what happens: the live display, plain lines, or a test."""

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        """The cells that will run and those that were finished before."""
        ...

    def started(self, cell: Cell, resumed: bool) -> None:
        """A process was started."""
        ...

    def stepped(self, cell: Cell, row: dict[str, Any]) -> None:
        """A progress line came."""
        ...

    def ended(self, result: Result) -> None:
        """A cell is done with, one way or another."""
        ...

    def note(self, text: str) -> None:
        """Something worth a sentence."""
        ...

    def tick(self) -> None:
        """Called ten times a second: redraw if it is time."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


def workers_for(cells: int, asked: int | None, slots: int | None = None) -> int:
    """Processes at a time: what was asked, else one a core (of `slots`); never more than there are cells."""
    return max(1, min(cells, asked or slots or len(os.sched_getaffinity(0))))


def run(
    grid: Grid,
    runs: Path,
    watch: Watch,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    commands: Commands | None = None,
    sync: Callable[[], object] | None = None,
) -> list[Result]:
    """Run every cell that is not finished; returns how each cell stands, in the grid's order.

    A failing cell stops nobody. SIGINT or SIGTERM once: children checkpoint and stop; twice: they are killed.
    """
    # The trainers' files are wanted by absolute path: they may be started anywhere.
    runs = runs.resolve()
    run_folder.write_experiment(runs, grid.experiment, grid.question, grid.toml)
    done: dict[str, Result] = {}
    todo: list[Cell] = []
    for cell in grid.cells:
        folder = run_folder.prepare(runs, cell)
        row = run_folder.last_row(folder)
        if row is not None and row["status"] == "finished":
            done[cell.run_id] = Result(cell, "finished", folder, row.get("reason") or "", skipped=True)
            continue
        todo.append(cell)
        if row is None:
            run_folder.write_row(folder, cell, status="queued")
    executor = executor or Local()
    count = workers_for(len(todo), workers, executor.slots)
    watch.begin(todo, list(done.values()), count)
    with _Signals() as signals:
        try:
            session = _Session(runs, watch, count, executor, commands or Commands(), signals, sync)
            done |= session.run(todo)
        finally:
            watch.close()
    return [done[cell.run_id] for cell in grid.cells]


class _Signals:
    """Counts SIGINT, SIGTERM and SIGHUP while the grid runs and restores the handlers after."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> _Signals:
        self._before = {n: signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@dataclass
class _Running:
    cell: Cell
    folder: Path
    child: Process
    claim: IO[str]
    since: float


@dataclass
class _Warming:
    child: Process
    log: Path


class _Session:
    """One call of `run`: the queue, the children, the warm starts they wait for."""

    def __init__(
        self,
        runs: Path,
        watch: Watch,
        workers: int,
        executor: Executor,
        commands: Commands,
        signals: _Signals,
        sync: Callable[[], object] | None,
    ) -> None:
        self._runs, self._watch, self._workers, self._commands, self._signals = runs, watch, workers, commands, signals
        self._executor, self._sync = executor, sync
        self._next_sync = 0.0
        self._cache = runs / ".cache"
        self._queue: deque[Cell] = deque()
        self._running: list[_Running] = []
        self._warming: dict[str, _Warming] = {}
        self._warm: dict[str, str] = {}  # warm start -> "" when it is made, else why it could not be
        self._done: dict[str, Result] = {}
        self._told = 0  # signals that were handed on

    def run(self, todo: Sequence[Cell]) -> dict[str, Result]:
        self._queue.extend(todo)
        try:
            while self._running or self._warming or (self._queue and not self._signals.count):
                if not self._signals.count and not self._start():
                    break
                self._collect()
                self._hand_on()
                self._watch.tick()
                self._sync_sometimes()
                time.sleep(POLL_SECONDS)
        finally:
            for child in (*(r.child for r in self._running), *(w.child for w in self._warming.values())):
                child.kill()
        for cell in self._queue:
            folder = run_folder.folder_of(self._runs, cell)
            if cell.run_id not in self._done:
                status = run_folder.status_of(run_folder.last_row(folder), alive=False)
                self._done[cell.run_id] = Result(cell, status, folder, "not started: the grid was stopped")
        return self._done

    # -- starting -----------------------------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Fill the free workers; False when nothing runs and all that is left is held by other processes."""
        waiting: list[Cell] = []
        while self._queue and len(self._running) + len(self._warming) < self._workers:
            cell = self._queue.popleft()
            key = warm_key(cell.settings)
            if key and key not in self._warm:
                waiting.append(cell)
                if key not in self._warming:
                    self._warm_up(key, cell)
            elif key and self._warm[key]:
                self._fail(cell, f"warm start failed: {self._warm[key]}")
            elif not self._launch(cell):
                waiting.append(cell)
        self._queue.extendleft(reversed(waiting))
        held = [c for c in waiting if c.run_id in self._done]
        if self._queue and not self._running and not self._warming and len(held) == len(self._queue):
            for cell in self._queue:
                self._watch.ended(self._done[cell.run_id])
            self._queue.clear()
            return False
        return True

    def _launch(self, cell: Cell) -> bool:
        folder = run_folder.folder_of(self._runs, cell)
        claim = run_folder.claim(folder)
        if claim is None:
            self._done[cell.run_id] = Result(cell, "elsewhere", folder, "another process trains it")
            return False
        self._done.pop(cell.run_id, None)
        row = run_folder.last_row(folder)
        if row is not None and row["status"] == "finished":  # the process that held it brought it to its end
            claim.close()
            self._done[cell.run_id] = Result(cell, "finished", folder, row.get("reason") or "", skipped=True)
            self._watch.ended(self._done[cell.run_id])
            return True
        resumed = bool(row and row.get("steps")) or any((folder / "checkpoints").glob("[0-9]*"))
        run_folder.write_row(folder, cell, status="queued", reason=None, ended_at=None)
        command = (*self._commands.trainer, str(folder), "--cache", str(self._cache))
        child = self._executor.start(command, folder / "console.log", cell.settings.threads, (claim.fileno(),))
        self._running.append(_Running(cell, folder, child, claim, time.monotonic()))
        self._watch.started(cell, resumed)
        return True

    def _warm_up(self, key: str, cell: Cell) -> None:
        folder = run_folder.folder_of(self._runs, cell)
        log = self._cache / f"warmstart-{key}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = (*self._commands.warmstart, str(folder / "config.toml"), str(self._cache))
        self._warming[key] = _Warming(self._executor.start(command, log, cell.settings.threads, ()), log)
        if not made(self._cache, key):
            self._watch.note(f"warm start: {cell.settings.warmstart.steps} steps of imitation, shared and kept")

    # -- following ----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        for key, warming in list(self._warming.items()):
            if (code := warming.child.poll()) is not None:
                del self._warming[key]
                if not self._signals.count:
                    self._warm[key] = "" if code == 0 else run_folder.last_line(warming.log) or f"exit code {code}"
        for running in list(self._running):
            code = running.child.poll()  # asked first: what is read after it is everything that was written
            for row in running.child.rows():
                self._watch.stepped(running.cell, row)
            if code is not None:
                self._running.remove(running)
                self._end(running, code)

    def _end(self, running: _Running, code: int) -> None:
        cell, folder = running.cell, running.folder
        row = run_folder.last_row(folder) or {}
        status = {FINISHED: "finished", INTERRUPTED: "interrupted"}.get(code, "failed")
        if status == "failed" and self._signals.count:
            status = "interrupted"
        if row.get("status") == status:
            reason = row.get("reason") or ""
        else:
            reason = self._why(code, folder) if status != "finished" else ""
            run_folder.write_row(folder, cell, status=status, reason=reason or None, ended_at=run_folder.now())
        running.claim.close()
        result = Result(cell, status, folder, reason, seconds=time.monotonic() - running.since)
        self._done[cell.run_id] = result
        self._watch.ended(result)

    def _why(self, code: int, folder: Path) -> str:
        if self._signals.count > 1:
            return "killed by a second Ctrl-C"
        if self._signals.count:
            return "stopped before its first step"
        if code < 0:
            name = signal.Signals(-code).name
            return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        return run_folder.last_line(folder / "console.log") or f"exit code {code}, nothing in console.log"

    def _fail(self, cell: Cell, reason: str) -> None:
        folder = run_folder.folder_of(self._runs, cell)
        run_folder.write_row(folder, cell, status="failed", reason=reason, ended_at=run_folder.now())
        self._done[cell.run_id] = Result(cell, "failed", folder, reason)
        self._watch.ended(self._done[cell.run_id])

    def _hand_on(self) -> None:
        if self._signals.count == self._told:
            return
        self._told = self._signals.count
        for warming in self._warming.values():
            warming.child.kill()  # it keeps nothing half-made, so there is nothing to wait for
        if self._told == 1:
            if self._running:
                self._watch.note(f"stopping: {len(self._running)} runs write a checkpoint; Ctrl-C again kills them")
            for running in self._running:
                running.child.interrupt()
        else:
            for running in self._running:
                running.child.kill()

    def _sync_sometimes(self) -> None:
        if self._sync is None or time.monotonic() < self._next_sync:
            return
        began = time.monotonic()
        self._sync()
        now = time.monotonic()
        # The index must not take the trainers' cores: at most a tenth of the time is spent on it.
        self._next_sync = now + max(SYNC_SECONDS, 10 * (now - began))


def warm_key(settings: RunSettings) -> str:
    """Which warm start a cell needs; empty for a policy that is loaded from a folder."""
    from workbench.learn.warmstart import key

    return "" if settings.policy.path is not None else key(settings)


def made(cache: Path, key: str) -> bool:
    """True when this warm start was made before."""
    return (cache / "warmstart" / key / "model.safetensors").is_file()
