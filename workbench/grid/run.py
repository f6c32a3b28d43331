"""Run the cells of a grid, one process each; the same call resumes where the last one stopped.

A pool of processes: a cell is claimed by a file lock, starts from its newest checkpoint, is followed to its
end, and is tried once more if it failed. One loop starts, polls, shows and syncs; nothing in it waits for a
process.
"""

import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from sorl.grid import folder as run_folder
from sorl.grid import process
from sorl.grid.cell import Cell, workers_for
from sorl.grid.config import Grid
from sorl.grid.fork import next_start
from sorl.grid.process import Ending, Job, ending, follow, last_line, last_step, one_line, where
from sorl.grid.progress import Display
from sorl.grid.result import Limits, Result
from sorl.learn.run import HELD
from sorl.spec import InputError
from sorl.spec.rollback import Rollback
from sorl.spec.vocabulary import cause
from sorl.store.segments import held, now
from sorl.store.text import LOG_NAME, tail

POLL_SECONDS = 0.1
SYNC_SECONDS = 2.0
HELD_SECONDS = 0.5  # between two looks at a cell that another process trains
GRACE_SECONDS = 2.0  # beyond --hang-seconds, in which a trainer that can do so says where it hangs and ends
_TIMEOUT = re.compile(r"^Timeout \(\d+:\d\d:\d\d")  # how faulthandler begins its dump


def run(
    grid: Grid,
    runs: Path,
    watch: Display,
    *,
    workers: int | None = None,
    executor: process.Local | process.Ray | None = None,
    limits: Limits = Limits(),
    fresh: bool = False,
    sync: Callable[[], object] | None = None,
) -> list[Result]:
    """Run every unfinished cell; return the state of each cell, in the grid's order.

    A failing cell stops no other; a cell that another process trains is waited for. One SIGINT or SIGTERM
    lets the trainers write checkpoints and stop, a second one kills them. With `fresh` every cell starts from
    nothing in a new folder. Raises InputError for `fresh` while a cell is being trained, and if the runs
    folder cannot be made.
    """
    runs = runs.resolve()  # trainers may have another working directory
    _make_folder(runs)
    grid = _new_starts(grid, runs) if fresh else grid.newest(runs)
    run_folder.refuse_unsafe(runs, grid.experiment, grid.cells)
    run_folder.refuse_missing_baselines(runs, grid.cells)
    run_folder.write_experiment(runs, grid.experiment, grid.question, grid.toml)
    edited = run_folder.edits(
        runs, [cell for cell in grid.cells if not run_folder.folder_of(runs, cell).exists()]
    )
    queue = _queue(grid, runs)
    executor = executor or process.Local()
    count = workers_for(queue.todo, workers, executor.slots)
    watch.begin(queue.todo, list(queue.done.values()), count)
    for line in edited:
        watch.note(f"{line}: new cells; the earlier runs stay")
    for steps in _warm_starts(queue.todo, runs):
        watch.note(f"warm start: {steps} steps of imitation, shared by the cells and kept")
    with _signals() as signals:
        try:
            results = queue.done | _Pool(runs, watch, executor, signals, limits, deque(queue.todo)).run(
                count, sync
            )
        finally:
            watch.close()
    return [results[cell.run_id] for cell in grid.cells]


class _Queue(NamedTuple):
    """The cells that were finished before, by run id, and those to be trained."""

    done: dict[str, Result]
    todo: list[Cell]


def _queue(grid: Grid, runs: Path) -> _Queue:
    """Make the folder of every cell, and queue those that are not finished."""
    queue = _Queue({}, [])
    for cell in grid.cells:
        folder, row = enqueue(runs, cell)
        if row is not None and row["status"] == "finished":
            queue.done[cell.run_id] = _skipped(cell, folder, row)
        else:
            queue.todo.append(cell)
    return queue


def _make_folder(runs: Path) -> None:
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot make the runs folder '{runs}': {why}; name another with --runs") from None


def _new_starts(grid: Grid, runs: Path) -> Grid:
    """The grid with every cell in a new folder."""
    newest = grid.newest(runs)
    pairs = zip(grid.cells, newest.cells, strict=True)
    return replace(newest, cells=tuple(_new_start(cell, latest, runs) for cell, latest in pairs))


def _warm_starts(cells: Sequence[Cell], runs: Path) -> list[int]:
    """The steps of each imitation that is still to be made, for these cells."""
    from sorl.learn.warmstart import is_cached

    waiting = {
        cell.settings.warmstart.steps for cell in cells if not is_cached(cell.settings, runs / ".cache")
    }
    return sorted(waiting)


def enqueue(runs: Path, cell: Cell) -> tuple[Path, dict[str, Any] | None]:
    """Make the folder of a cell and queue it; return the folder and the row that it had before."""
    folder = run_folder.prepare(runs, cell)
    row = run_folder.last_row(folder)
    if row is None:
        _write_row(cell, folder, status="queued")
    return folder, row


def run_rounds(
    load: Callable[[], Grid], runs: Path, display: Callable[[], Display], **options: Any
) -> tuple[Grid, list[Result]]:
    """Run the cells of `load()`, load again, and so on until it asks for nothing new; return the last grid
    and results.

    The cells of a search depend on the outcomes of earlier ones. `options` are those of `run`. A round with
    an unfinished cell is the last.
    """
    done: dict[str, Result] = {}
    while True:
        grid = load()
        new = tuple(cell for cell in grid.cells if cell.first.run_id not in done)
        if new:
            watch = display()
            if grid.region is not None:
                watch.note(str(grid.region))
            done |= {r.cell.first.run_id: r for r in run(replace(grid, cells=new), runs, watch, **options)}
        finished = all(result.status == "finished" for result in done.values())
        if not new or not finished or (grid.region is None and not grid.waiting):
            return grid, list(done.values())


def _new_start(cell: Cell, newest: Cell, runs: Path) -> Cell:
    """Return the start of a cell from nothing that comes after its newest one."""
    folder = run_folder.folder_of(runs, newest)
    if held(folder) or held(folder, "claim"):
        raise InputError(
            f"--fresh cannot start over what another process trains: {newest.run_id}; stop it first"
        )
    begun = run_folder.status_of(run_folder.last_row(folder), alive=False) != "queued"
    return replace(cell, generation=newest.generation + begun)


def _skipped(cell: Cell, folder: Path, row: dict[str, Any]) -> Result:
    return Result(cell, row["status"], folder, one_line(row.get("reason") or ""), cause(row), skipped=True)


def _write_row(cell: Cell, folder: Path, **changes: Any) -> None:
    names = {**run_folder.identity(cell), "config": cell.settings.model_dump_json()}
    run_folder.change(folder, names, **changes)


def _beat(folder: Path) -> int:
    """When the trainer last gave a sign of life, in nanoseconds as its file system counts; 0 if never."""
    with suppress(OSError):
        return (folder / "heartbeat").stat().st_mtime_ns
    return 0


@contextmanager
def _signals() -> Iterator[list[int]]:
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number)) for number in numbers
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(eq=False)
class _Training:
    """A cell in training: its claim, and the process of its present attempt."""

    cell: Cell
    folder: Path
    claim: IO[str]
    began: float = field(default_factory=time.monotonic)
    tries: int = 1
    signals: int = 0  # handed on to the trainer
    trainer: Any = None  # a LocalProcess or RayProcess
    since: int = 0  # size of the log when the attempt began
    rows: Any = None  # its progress, from `follow`
    beat: int = 0  # when `heartbeat` was last touched, as its file says; 0 = never
    begun: bool = False  # whether this attempt has touched it
    alive: float = 0.0  # when the grid last saw a sign of life
    hung: str = ""  # why it was killed from here


@dataclass
class _Pool:
    """One call: the cells that wait, those in training, and those that have ended."""

    runs: Path
    watch: Display
    executor: process.Local | process.Ray
    signals: list[int]
    limits: Limits
    queue: deque[Cell]
    training: list[_Training] = field(default_factory=list)
    done: dict[str, Result] = field(default_factory=dict)
    # start after a rollback -> the start that the grid asked for
    asked_as: dict[str, str] = field(default_factory=dict)
    # when to look again at a cell that another process trains
    look: dict[str, float] = field(default_factory=dict)
    began: Any = field(default_factory=now)

    def run(self, workers: int, sync: Callable[[], object] | None) -> dict[str, Result]:
        """Run the queue to its end, or until Ctrl-C; return the state of each cell by run id."""
        next_sync = 0.0
        stopping = False
        try:
            while self.training or (self.queue and not self.signals):
                self.watch.tick()
                for training in list(self.training):
                    self._follow(training)
                if not self.signals:
                    self._fill(workers)
                elif self.training and not stopping:
                    stopping = True
                    self.watch.note(
                        f"stopping: {len(self.training)} runs write a checkpoint; Ctrl-C again kills them"
                    )
                if sync is not None and time.monotonic() >= next_sync:
                    began = time.monotonic()
                    sync()
                    # At most a tenth of the time goes into the index: the cores are the trainers'.
                    next_sync = time.monotonic() + max(SYNC_SECONDS, 10 * (time.monotonic() - began))
                time.sleep(POLL_SECONDS)
        finally:  # none is left but after an error
            for training in self.training:
                while training.trainer is not None and training.trainer.poll() is None:
                    training.trainer.kill()
                    time.sleep(POLL_SECONDS)
                training.claim.close()
        for cell in self.queue:
            folder = run_folder.folder_of(self.runs, cell)
            trained = held(folder)
            status = "elsewhere"
            reason = "another process trains it"
            if cell.run_id not in self.look or not (trained or held(folder, "claim")):
                status = run_folder.status_of(run_folder.last_row(folder), alive=trained)
                reason = "not started: the grid was stopped"
            self.done[cell.run_id] = Result(cell, status, folder, reason)
        return self.done

    def _fill(self, workers: int) -> None:
        """Start cells of the queue while there is room, except those that another process trains or has
        ended.
        """
        for _ in range(len(self.queue)):
            if len(self.training) >= workers or self.signals:
                return
            cell = self.queue.popleft()
            if time.monotonic() < self.look.get(cell.run_id, 0.0):
                self.queue.append(cell)
                continue
            folder = run_folder.folder_of(self.runs, cell)
            claim = run_folder.claim(folder)
            if claim is None:
                self._wait_for(cell)
                continue
            row = run_folder.last_row(folder) or {}
            ended = row.get("ended_at")
            if row.get("status") == "finished" or (
                row.get("status") == "failed" and ended and ended >= self.began
            ):
                claim.close()
                self._end(_skipped(cell, folder, row))
            else:
                self.training.append(_Training(cell, folder, claim))
                self._start(self.training[-1])

    def _roll_back(self, cell: Cell, folder: Path) -> bool:
        """Put the next start of a cell first in the queue if its guard rolled it back; whether it did."""
        rollback = Rollback.read(folder)
        if rollback is None:
            return False
        again = next_start(cell, rollback)
        enqueue(self.runs, again)
        self.watch.replaced(cell, again, rollback.words)
        self.asked_as[again.run_id] = self.asked_as.get(cell.run_id, cell.run_id)
        self.queue.appendleft(again)
        return True

    def _wait_for(self, cell: Cell) -> None:
        if cell.run_id not in self.look:
            folder = run_folder.folder_of(self.runs, cell)
            who = run_folder.holder(folder)
            self.watch.note(f"waiting: {cell.arm} seed {cell.seed} is trained by another process{who}")
        self.look[cell.run_id] = time.monotonic() + HELD_SECONDS
        self.queue.append(cell)

    def _end(self, result: Result) -> None:
        run_id = result.cell.run_id
        self.done[self.asked_as.get(run_id, run_id)] = result
        self.watch.ended(result)

    def _start(self, training: _Training, why: str = "") -> None:
        """Start a process from the newest checkpoint; `why` is the reason of the attempt before it in this
        call.
        """
        cell = training.cell
        folder = training.folder
        log = training.folder / LOG_NAME
        row = run_folder.last_row(folder) or {}
        saved = run_folder.checkpoint(folder)
        if row.get("status") == "running" and not why:
            message = "the trainer died without a message, and so did its grid"
            run_folder.write_event(folder, "killed", last_step(log), message)
        attempt = run_folder.next_attempt(folder, saved is not None or row.get("started_at") is not None)
        if attempt > 1:
            start = "from nothing" if saved is None else f"from the checkpoint after {saved} steps"
            message = f"attempt {attempt} starts {start}" + (f"; before it: {why}" if why else "")
            run_folder.write_event(
                folder, "retried" if why else "resumed", saved or 0, message, float(attempt)
            )
        _write_row(cell, folder, status="queued", attempt=attempt, reason=None, ended_at=None)
        hang = self.limits.hang_seconds
        memory = self.limits.memory
        job = Job(folder, self.runs / ".cache", cell.settings.threads, hang, memory, process.TRAINER)
        training.since = log.stat().st_size if log.exists() else 0
        training.rows = follow(log, training.since)
        training.beat = _beat(folder)
        training.begun = False
        training.alive = time.monotonic()
        training.hung = ""
        self.watch.started(cell, attempt > 1, folder)
        try:
            with self.watch.kept_ticking():  # the first process waits until the libraries are loaded
                training.trainer = self.executor.start(job)
        except OSError as error:
            self._ended(training, Ending("failed", one_line(f"could not be started: {error}")))

    def _follow(self, training: _Training) -> None:
        code = training.trainer.poll()  # before the rows: what is read after the end is all that was written
        for row in next(training.rows):
            self.watch.stepped(training.cell, row)
        if code is None:
            self._end_hanging(training)
            if len(self.signals) > training.signals:
                training.signals = len(self.signals)
                (training.trainer.interrupt if training.signals == 1 else training.trainer.kill)()
        elif code == HELD:
            self.training.remove(training)
            training.claim.close()
            self._wait_for(training.cell)
        else:
            self._ended(training, self._ending(training, code))

    def _end_hanging(self, training: _Training) -> None:
        """Kill a trainer that should have ended itself by now: nothing in a stopped process can."""
        now = time.monotonic()
        beat = _beat(training.folder)
        begun = training.begun or beat != training.beat
        # Before the first sign of life it may take its time, unless it stands still.
        if beat != training.beat or (not begun and not training.trainer.stopped()):
            training.alive = now
        training.beat = beat
        training.begun = begun
        limit = self.limits.hang_seconds
        if not limit or training.hung or now - training.alive <= limit:
            return
        stopped = training.trainer.stopped()
        if stopped or now - training.alive > limit + GRACE_SECONDS:
            training.hung = "stopped from outside (SIGSTOP)" if stopped else "unable to end itself"
            training.trainer.kill()

    def _ending(self, training: _Training, code: int) -> Ending:
        row = run_folder.last_row(training.folder) or {}
        log = training.folder / LOG_NAME
        since = training.since
        status = row.get("status")
        reason = row.get("reason")
        if status in ("finished", "interrupted"):  # a signal that killed it afterwards came too late
            return Ending() if status == "finished" else Ending("interrupted", one_line(reason or ""))
        reason = reason if status == "failed" else None
        if self.signals and reason is None:
            alone = f"killed: it was {training.hung}" if training.hung else "stopped before its first step"
            how = "killed by a second Ctrl-C" if len(self.signals) > 1 else alone
            return Ending("interrupted", how)
        if training.hung or any(_TIMEOUT.match(line) for line in tail(log, since)):
            place = where(log, since)
            reason = f"hang: no sign of life for {self.limits.hang_seconds:g} s in step {last_step(log) or 0}"
            reason += f", in {place}" if place else ""
            reason += f", {training.hung}" if training.hung else ""
        return ending(code, reason or last_line(log, since))

    def _ended(self, training: _Training, end: Ending) -> None:
        """Write the end of an attempt and try again, or write the end of the cell unless the trainer has done
        so.
        """
        cell = training.cell
        folder = training.folder
        if end.kind:
            step = last_step(folder / LOG_NAME) or run_folder.checkpoint(folder) or 0
            run_folder.write_event(folder, end.kind, step, end.reason)
        if end.again and training.tries <= self.limits.retries and not self.signals:
            retry = f"retry {training.tries} of {self.limits.retries}"
            self.watch.note(f"{retry}: {cell.arm} seed {cell.seed}: {end.reason}")
            training.tries += 1
            self._start(training, end.reason)
            return
        row = run_folder.last_row(folder) or {}
        reason = end.reason if end.kind else one_line(row.get("reason") or "")
        if (row.get("status"), row.get("reason") or "") != (end.status, reason) or row.get(
            "ended_at"
        ) is None:
            _write_row(cell, folder, status=end.status, reason=reason or None, ended_at=now())
        self.training.remove(training)
        training.claim.close()
        if end.status == "finished" and self._roll_back(cell, folder):
            return
        bad = cause({**row, "status": end.status, "reason": reason})
        self._end(Result(cell, end.status, folder, reason, bad, seconds=time.monotonic() - training.began))
