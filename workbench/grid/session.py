"""One call of a grid: the queue, the processes, what is done when one of them ends badly."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from workbench.grid import events, rows
from workbench.grid import folder as run_folder
from workbench.grid.cell import Cell
from workbench.grid.child import Sight
from workbench.grid.ending import HELD, Ending, cause, ending, hang, one_line, over_memory
from workbench.grid.executor import Executor, Process
from workbench.grid.log import last_line, last_step, where
from workbench.grid.pulse import Pulse
from workbench.grid.signals import Signals
from workbench.grid.warm import WarmStarts, made, warm_key
from workbench.grid.watch import Result, Watch

POLL_SECONDS = 0.1
SYNC_SECONDS = 2.0
HELD_SECONDS = 1.0  # between two looks at a cell that another process trains
DUMP_SECONDS = 1.0  # for a hanging process to write down where it stands
DEATH_SECONDS = 30.0  # for a killed process to go: one that waits for a dead disk never does


@dataclass(frozen=True)
class Limits:
    """When a cell is given up."""

    retries: int = 1  # attempts after the first, in one call
    hang_seconds: float | None = None  # silence that is a hang; None = by the cell's own pace, 0 = never
    memory: int | None = None  # bytes that the processes of a cell may hold; None = whatever there is


@dataclass
class _Doom:
    """A process that the grid has decided to kill, and why."""

    ending: Ending | None  # None for a hang, until its stack is written down
    silence: float
    kill_at: float
    killed: bool = False


@dataclass
class _Running:
    cell: Cell
    folder: Path
    child: Process
    claim: IO[str]
    tries: int  # in this call
    since: float
    logged: int  # bytes of the log before it
    pulse: Pulse
    step: int
    doom: _Doom | None = None


class Session:
    """Runs cells until each is done with, or the user has had enough."""

    def __init__(
        self,
        runs: Path,
        watch: Watch,
        workers: int,
        executor: Executor,
        trainer: Sequence[str],
        warmstart: Sequence[str],
        signals: Signals,
        limits: Limits,
        sync: Callable[[], object] | None,
    ) -> None:
        self._runs, self._watch, self._workers, self._trainer = runs, watch, workers, trainer
        self._executor, self._signals, self._limits, self._sync = executor, signals, limits, sync
        self._cache = runs / ".cache"
        self._warm = WarmStarts(self._cache, executor, warmstart, limits.retries)
        self._keys: dict[str, str] = {}
        self._queue: deque[Cell] = deque()
        self._running: list[_Running] = []
        self._held: dict[str, float] = {}  # run -> when to look again whether another process still trains it
        self._done: dict[str, Result] = {}
        self._began = rows.now()
        self._next_sync = 0.0
        self._told = 0  # signals that were handed on

    def run(self, todo: Sequence[Cell]) -> dict[str, Result]:
        """Run `todo`; how each of them stands at the end, by run id."""
        self._queue.extend(todo)
        self._keys = {cell.run_id: warm_key(cell.settings) for cell in todo}
        try:
            while self._running or self._warm or (self._queue and not self._signals.count):
                if self._signals.count > 2:
                    break
                if not self._signals.count:
                    self._start()
                self._collect()
                self._hand_on()
                self._watch.tick()
                self._sync_sometimes()
                time.sleep(POLL_SECONDS)
        finally:
            self._warm.stop()
            for running in self._running:
                running.child.kill()
        for cell in [*self._queue, *(running.cell for running in self._running)]:
            self._leave(cell)
        return self._done

    def _leave(self, cell: Cell) -> None:
        folder = run_folder.folder_of(self._runs, cell)
        status = run_folder.status_of(rows.last_row(folder), alive=run_folder.held(folder))
        reason = "not started: the grid was stopped"
        if cell.run_id in self._held and run_folder.held(folder, "claim"):
            status, reason = "elsewhere", "another process trains it"
        self._done[cell.run_id] = Result(cell, status, folder, reason)

    # -- starting -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Fill the free workers with the first cells of the queue that can go."""
        waiting: list[Cell] = []
        while self._queue and len(self._running) + len(self._warm) < self._workers:
            cell = self._queue.popleft()
            key = self._keys[cell.run_id]
            if self._held.get(cell.run_id, 0.0) > time.monotonic():
                waiting.append(cell)
            elif key in self._warm.failed:
                self._fail(cell, f"warm start failed: {self._warm.failed[key]}")
            elif not self._warm.ready(key):
                waiting.append(cell)
                config = run_folder.folder_of(self._runs, cell) / "config.toml"
                if self._warm.make(key, config, cell.settings.threads) and not made(self._cache, key):
                    steps = cell.settings.warmstart.steps
                    self._watch.note(f"warm start: {steps} steps of imitation, shared and kept")
            elif not self._take(cell):
                waiting.append(cell)
        self._queue.extendleft(reversed(waiting))

    def _take(self, cell: Cell) -> bool:
        """Start the cell, or see what another process has made of it; False while another one has it."""
        folder = run_folder.folder_of(self._runs, cell)
        claim = run_folder.claim(folder)
        if claim is None:
            if cell.run_id not in self._held:
                self._watch.note(f"waiting: {cell.arm} seed {cell.seed} is trained by another process")
            self._held[cell.run_id] = time.monotonic() + HELD_SECONDS
            return False
        row = rows.last_row(folder)
        if row is not None and self._settled(row):
            claim.close()
            result = Result(cell, row["status"], folder, one_line(row.get("reason") or ""), cause(row), skipped=True)
            self._done[cell.run_id] = result
            self._watch.ended(result)
            return True
        self._launch(cell, folder, claim, row or {}, tries=1)
        return True

    def _settled(self, row: Mapping[str, Any]) -> bool:
        """Whether another process brought the cell to an end that is not to be tried again here."""
        if row["status"] == "failed":
            return bool(row.get("ended_at") and row["ended_at"] >= self._began)
        return bool(row["status"] == "finished")

    def _launch(
        self, cell: Cell, folder: Path, claim: IO[str], row: Mapping[str, Any], tries: int, why: str = ""
    ) -> None:
        saved = run_folder.checkpoint(folder)
        begun = saved is not None or row.get("started_at") is not None
        attempt = run_folder.next_attempt(folder, begun)
        log = folder / "console.log"
        if row.get("status") == "running":
            message = "the process died without a word, and so did the grid that watched it"
            events.write(folder, cell.run_id, "killed", last_step(log), message)
        if attempt > 1:
            start = "from nothing" if saved is None else f"from the checkpoint after {saved} steps"
            message = f"attempt {attempt} goes on {start}" + (f"; before it: {why}" if why else "")
            events.write(folder, cell.run_id, "retried" if why else "resumed", saved or 0, message, float(attempt))
        self._row(cell, folder, status="queued", attempt=attempt, reason=None, ended_at=None)
        logged = log.stat().st_size if log.exists() else 0
        command = (*self._trainer, str(folder), "--cache", str(self._cache))
        try:
            child = self._executor.start(command, log, cell.settings.threads, (claim.fileno(),))
        except OSError as error:
            claim.close()
            self._fail(cell, f"could not be started: {error}")
            return
        now = time.monotonic()
        pulse = Pulse(folder / "heartbeat", now, self._limits.hang_seconds)
        self._running.append(_Running(cell, folder, child, claim, tries, now, logged, pulse, saved or 0))
        self._watch.started(cell, attempt > 1)

    # -- following ----------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        self._warm.collect(self._watch.note)
        for running in list(self._running):
            sight = running.child.look()  # first: what is read after it is everything that was written
            now = time.monotonic()
            for row in running.child.rows():
                running.step = int(row["step"])
                running.pulse.step(now)
                self._watch.stepped(running.cell, row)
            if sight.code is None and not sight.lost and not self._judge(running, sight, now):
                continue
            self._running.remove(running)
            self._end(running, sight)

    def _judge(self, running: _Running, sight: Sight, now: float) -> bool:
        """Kill a process that hangs or holds too much; True when it is to be counted as gone."""
        doom = running.doom
        if doom is None:
            silence = running.pulse.silence(now)
            if self._limits.memory is not None and sight.rss > self._limits.memory:
                running.doom = _Doom(over_memory(sight, self._limits.memory), silence, now)
            elif silence > running.pulse.limit:
                running.child.ask_where()
                running.doom = _Doom(None, silence, now + DUMP_SECONDS)
        elif not doom.killed and now >= doom.kill_at:
            running.child.kill()
            doom.killed = True
            if doom.ending is None:
                stood = where(running.folder / "console.log", running.logged)
                doom.ending = hang(doom.silence, running.step, stood)
        return doom is not None and now > doom.kill_at + DEATH_SECONDS

    def _end(self, running: _Running, sight: Sight) -> None:
        cell, folder = running.cell, running.folder
        row = rows.last_row(folder) or {}
        if sight.code == HELD and running.doom is None:  # its trainer of before lives on, out of our claim's reach
            running.claim.close()
            self._held[cell.run_id] = time.monotonic() + HELD_SECONDS
            self._queue.appendleft(cell)
            return
        end = self._ending(running, sight, row)
        if end.kind:
            events.write(folder, cell.run_id, end.kind, running.step, end.reason)
        if end.status == "failed" and end.again and running.tries <= self._limits.retries and not self._signals.count:
            self._watch.note(
                f"retry {running.tries} of {self._limits.retries}: {cell.arm} seed {cell.seed}: {end.reason}"
            )
            self._launch(cell, folder, running.claim, {**row, "status": "failed"}, running.tries + 1, end.reason)
            return
        reason = end.reason if end.kind else row.get("reason") or ""
        said = (row.get("status"), row.get("reason") or "", row.get("ended_at") is not None)
        if said != (end.status, reason, True):
            self._row(cell, folder, status=end.status, reason=reason or None, ended_at=rows.now())
        running.claim.close()
        bad = cause({**row, "status": end.status, "reason": reason})
        seconds = time.monotonic() - running.since
        self._done[cell.run_id] = Result(cell, end.status, folder, reason, bad, seconds=seconds)
        self._watch.ended(self._done[cell.run_id])

    def _ending(self, running: _Running, sight: Sight, row: Mapping[str, Any]) -> Ending:
        if running.doom is not None and running.doom.ending is not None:
            return running.doom.ending
        status = row.get("status")
        if status == "finished":  # whatever killed it after that came too late
            return Ending("finished")
        if self._signals.count and status not in ("failed", "interrupted"):
            again = "killed by a second Ctrl-C" if self._signals.count > 1 else "stopped before its first step"
            return Ending("interrupted", "interrupted", again)
        said = row.get("reason") if status in ("failed", "interrupted") else None
        return ending(sight, said or last_line(running.folder / "console.log", running.logged))

    def _fail(self, cell: Cell, reason: str) -> None:
        folder = run_folder.folder_of(self._runs, cell)
        line = one_line(reason)
        self._row(cell, folder, status="failed", reason=line, ended_at=rows.now())
        events.write(folder, cell.run_id, "failed", run_folder.checkpoint(folder) or 0, line)
        self._done[cell.run_id] = Result(cell, "failed", folder, line, "failed")
        self._watch.ended(self._done[cell.run_id])

    def _row(self, cell: Cell, folder: Path, **changes: Any) -> None:
        config = {"config": cell.settings.model_dump_json()}
        rows.change(folder, {**run_folder.identity(cell), **config}, **changes)

    def _hand_on(self) -> None:
        if self._signals.count == self._told:
            return
        self._told = self._signals.count
        self._warm.stop()
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
