"""Where cells are trained, in forked processes of this machine or on a Ray cluster, and how their processes
ended.
"""

import ctypes
import faulthandler
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import psutil

from sorl.learn.run import FINISHED, INTERRUPTED, WRONG_INPUT
from sorl.spec import InputError
from sorl.spec.files import IMPORTED_FROM
from sorl.store.text import LOG_NAME, plain, tail

# module:function(arguments) -> exit code; tests put a scripted one here
TRAINER = "sorl.learn.__main__:main"
# imported once, by the process from which trainers are forked; every fork imports the command's module
PRELOAD = (
    "sorl.cli.main",
    "sorl.grid.process",
    "sorl.learn.__main__",
    "sorl.learn.loop",
    "sorl.learn.warmstart",
    "sorl.learn.run",
    "sorl.recording.recorder",
    "pandas",
)
_SERVER = "sorl.grid.forkserver"  # before the others
_PR_SET_PDEATHSIG = 1  # of prctl
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
_GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_LOOK_SECONDS = 0.5
_REASON = 400  # most characters of a reason: it is read in a table
_TOP_FRAME = re.compile(
    r'^(?:Current thread|Thread) 0x.*\n\s*File "([^"]*)", line (\d+) in (\S+)', re.MULTILINE
)
_STARVED = re.compile(
    r"MemoryError|OutOfMemoryError|out of memory|DefaultCPUAllocator|bad_alloc|cannot allocate memory"
    r"|unable to allocate|malloc of size \d+ failed",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Job:
    """One training process: the run folder, the shared cache, and when the process ends itself."""

    folder: Path
    cache: Path
    threads: int
    hang_seconds: float = 0.0  # without a sign of life; 0 = never
    memory: int | None = None  # bytes that the process and its children may hold
    trainer: str = TRAINER


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity, within the whole cores of a container's CPU quota; at
    least 1.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no cgroup, another system, or the word "max"
        limit, period = quota.read_text().split()
        allowed = min(allowed, int(limit) // int(period))
    return max(1, allowed)


def train(job: Job) -> int:
    """Run the trainer in this process, its output appended to console.log; return its exit code."""
    sys.stdout.flush()
    log = os.open(job.folder / LOG_NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # workers of Ray block SIGINT
    main = resolve_name(job.trainer)
    heartbeat = job.folder / "heartbeat"
    # not in the thread: it may be scheduled late
    before = heartbeat.stat().st_mtime_ns if heartbeat.exists() else 0
    threading.Thread(target=_guard, args=(job, heartbeat, before), daemon=True).start()
    try:
        return int(main([str(job.folder), "--cache", str(job.cache)]))
    finally:
        faulthandler.cancel_dump_traceback_later()


def _guard(job: Job, heartbeat: Path, last: int) -> None:
    """End this process when it holds too much memory or, after the loop's first touch of `heartbeat`, seems
    dead.
    """
    me = psutil.Process()
    grid = multiprocessing.parent_process()  # none in a worker of Ray
    while True:
        time.sleep(_LOOK_SECONDS)
        if grid is not None and not grid.is_alive():  # for systems without `tie_to_parent`
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if job.hang_seconds and heartbeat.exists():
            touched = heartbeat.stat().st_mtime_ns
            if touched != last:
                last = touched
                # fires even without the GIL
                faulthandler.dump_traceback_later(job.hang_seconds, exit=True, file=2)
        if job.memory is None:
            continue
        size = me.memory_info().rss
        children = me.children(recursive=True)
        for child in children:
            with suppress(psutil.Error):
                size += child.memory_info().rss
        if size > job.memory:
            held, limit = (f"{n / 2**30:.3g} GiB" for n in (size, job.memory))
            os.write(2, f"out of memory: {held}, over the limit of {limit} a cell (--memory)\n".encode())
            for child in children:
                with suppress(psutil.Error):
                    child.kill()
            os._exit(1)


class LocalProcess:
    """A trainer on this machine. No call blocks."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self._process = process
        self._pid = process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        code = self._process.exitcode
        if code is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)  # what it started and left behind
        return code

    def stopped(self) -> bool:
        """Whether somebody has stopped the process (SIGSTOP), so that nothing in it can run."""
        with suppress(psutil.Error):
            return psutil.Process(self._pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        return False

    def interrupt(self) -> None:
        """Ask it to write a checkpoint and stop; one that was stopped goes on to do so."""
        # Before it leads its session it may ignore SIGINT, as the fork server does; it has nothing to save
        # yet.
        with suppress(ProcessLookupError):
            begun = os.getsid(self._pid) == self._pid
            os.kill(self._pid, signal.SIGINT if begun else signal.SIGKILL)
            os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """Stop it and what it started at once."""
        for send in (os.kill, os.killpg):  # by its own id as well: it may not lead its session yet
            with suppress(ProcessLookupError, PermissionError):
                send(self._pid, signal.SIGKILL)


class Local:
    """One process a cell on this machine.

    On Linux without a GPU it is forked from one that has imported torch, which saves five seconds. A fork
    does not see GPUs that its parent asked for, and crashes on macOS.
    """

    def __init__(self) -> None:
        self.slots = cores()
        forks = sys.platform == "linux" and not any(device.exists() for device in _GPUS)
        self._context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            self._context.set_forkserver_preload([_SERVER, *PRELOAD])

    def start(self, job: Job) -> LocalProcess:
        """Start the trainer in a session of its own, so that Ctrl-C reaches the grid alone; OSError if that
        fails.
        """
        (job.folder / LOG_NAME).touch()  # a log that cannot be written is an OSError here
        process = self._context.Process(target=_alone, args=(job,))
        before = dict(os.environ)
        os.environ |= dict.fromkeys(_THREADS, str(job.threads))  # read by libraries when they are imported
        os.environ |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": _python_path()}
        # A thread of OpenMP that waits by spinning takes a core from the other processes: beside one busy
        # process, two threads then made 38 to 41 matrix products a second, and 49 to 56 where they slept.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            process.start()
        finally:
            os.environ.clear()
            os.environ |= before
        return LocalProcess(process)


def _alone(job: Job) -> None:
    for number in (signal.SIGHUP, signal.SIGTERM):  # which the fork server ignores
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    tie_to_parent()
    grid = multiprocessing.parent_process()
    if grid is not None and not grid.is_alive():  # it died just before
        sys.exit(f"the grid that started this process is gone (PID {grid.pid})")
    sys.exit(train(job))


def tie_to_parent() -> None:
    """Have the kernel kill this process, also a stopped one, when the thread that started it ends.

    A trainer that outlives its grid would hold the lock of its run against the next `sorl run`. On a system
    other than Linux the thread of `_guard` looks instead.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _python_path() -> str:
    """PYTHONPATH with the folder that `sorl` is imported from, for processes that start elsewhere."""
    return os.pathsep.join(filter(None, (str(IMPORTED_FROM), os.environ.get("PYTHONPATH"))))


class _RayProcess:
    def __init__(self, ray: Any, task: Any, log: Path) -> None:
        self._ray = ray
        self._task = task
        self._log = log

    def poll(self) -> int | None:
        if not self._ray.wait([self._task], timeout=0)[0]:
            return None
        try:
            return int(self._ray.get(self._task))
        except self._ray.exceptions.TaskCancelledError:
            return -signal.SIGINT
        except self._ray.exceptions.RayError as error:
            if not _STARVED.search(last_line(self._log)):  # a process that ended itself has said why
                with self._log.open("a") as log:
                    print(f"lost with its Ray worker: {str(error).splitlines()[0]}", file=log)
            return 1

    def stopped(self) -> bool:
        return False  # the process may be on another machine

    def interrupt(self) -> None:
        self._ray.cancel(self._task, force=False)

    def kill(self) -> None:
        self._ray.cancel(self._task, force=True)


class Ray:
    """One task a cell on a Ray cluster; every node sees the runs folder under the same path."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry unless the user asks for it
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise InputError("--executor ray needs Ray: run `pip install 'sorl[ray]'`") from None
        if not ray.is_initialized():  # the cluster of RAY_ADDRESS, else one on this machine
            variables = {"env_vars": {"PYTHONPATH": _python_path()}}
            ray.init(log_to_driver=False, logging_level="ERROR", runtime_env=variables)
        self._ray = ray
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, job: Job) -> _RayProcess:
        """Start the trainer on a node with enough free cores; Ray retries nothing, the grid does."""
        task = self._ray.remote(num_cpus=job.threads, max_retries=0, max_calls=1)(train)
        return _RayProcess(self._ray, task.remote(job), job.folder / LOG_NAME)


EXECUTORS: dict[str, type[Local] | type[Ray]] = {"local": Local, "ray": Ray}


def follow(log: Path, offset: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the progress lines after byte `offset`, then those since the last yield; an unfinished line
    waits.
    """
    while True:
        text = b""
        if log.exists():
            with log.open("rb") as handle:
                handle.seek(offset)
                text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        offset += len(whole)
        yield list(filter(None, map(_progress, whole.splitlines())))


def _progress(line: str | bytes) -> dict[str, Any] | None:
    """Return the row of a progress line; None for any other line."""
    if line[:7] in ('{"step"', b'{"step"'):
        with suppress(ValueError, TypeError):
            row = json.loads(line)
            return {**row, "step": int(row["step"])}
    return None


def last_line(log: Path, since: int = 0) -> str:
    """Return the last line of text that is neither progress nor a library's progress bar; empty if there is
    none.
    """
    lines = (line.strip() for line in reversed(tail(log, since)))
    return next(
        (line for line in lines if line and _progress(line) is None and not line.endswith("it/s]")), ""
    )


def last_step(log: Path) -> int | None:
    """Steps done at the last progress line; None before the first."""
    return next((row["step"] for row in map(_progress, reversed(tail(log))) if row is not None), None)


def where(log: Path, since: int = 0) -> str:
    """`recv (socket.py:706)`: where the main thread was in the last dump of the stacks; empty
    without a dump.
    """
    # the main thread is the oldest and therefore the last one
    frames = _TOP_FRAME.findall("\n".join(tail(log, since)))
    return f"{frames[-1][2]} ({Path(frames[-1][0]).name}:{frames[-1][1]})" if frames else ""


def one_line(text: str) -> str:
    """`text` in one line of at most 400 characters, without control characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= _REASON else f"{line[: _REASON - 4]} ..."


class Ending(NamedTuple):
    """How a process ended: the kind of its event (empty for a good end), the reason, whether to try again."""

    kind: str = ""
    reason: str = ""
    again: bool = False

    @property
    def status(self) -> str:
        """The status of its row in table `run`."""
        return {"": "finished", "interrupted": "interrupted"}.get(self.kind, "failed")


def ending(code: int, reason: str) -> Ending:
    """Return the ending of a process with this exit code; `reason` is what it gave as one, or its last
    words.
    """
    words = one_line(reason)
    killed = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
    if code == FINISHED:
        return Ending()
    if code == INTERRUPTED:
        return Ending("interrupted", words)
    if code == WRONG_INPUT:
        return Ending("failed", words.removeprefix("sorl: ") or "its settings were refused")
    if words.startswith("hang:"):
        return Ending("hang", words, again=True)
    if code == -signal.SIGKILL:
        return Ending("killed", f"{killed}, often because memory ran out", again=True)
    if _STARVED.search(words):
        return Ending("out_of_memory", f"out of memory: {words.removeprefix('out of memory: ')}", again=True)
    if killed:
        return Ending("killed", f"{killed}: {words}" if words else killed, again=True)
    kind = "killed" if words.startswith("lost") else "failed"
    return Ending(kind, words or f"exit code {code}, nothing in console.log", again=True)
