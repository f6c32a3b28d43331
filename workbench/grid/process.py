"""Where cells are trained: in forked processes of this machine, or in the workers of a Ray cluster."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import psutil

import workbench
from workbench.spec import InputError, nearest

EXECUTORS = ("local", "ray")
TRAINER = "workbench.learn.__main__:main"  # module:function(arguments) -> exit code; tests put a scripted one here
PRELOAD = (  # imported once, by the process from which trainers are forked; every fork imports the command's module
    "workbench.cli.main", "workbench.grid.process", "workbench.learn.__main__", "workbench.learn.loop",
    "workbench.learn.warmstart", "workbench.learn.run", "workbench.record.recorder", "pandas",
)  # fmt: skip
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")
_GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_LOOK_SECONDS = 0.5
_STARTING = threading.Lock()  # multiprocessing looks at every child when one starts, and two looks at one child clash


@dataclass(frozen=True)
class Job:
    """One training process: the run folder, the shared cache, and when the process ends itself."""

    folder: Path
    cache: Path
    threads: int
    hang_seconds: float = 0.0  # without a sign of life; 0 = never
    memory: int | None = None  # bytes that the process and its children may hold
    trainer: str = TRAINER


class Process(Protocol):
    """A started trainer. No call blocks."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        ...

    def interrupt(self) -> None:
        """Ask it to write a checkpoint and stop."""
        ...

    def kill(self) -> None:
        """Stop it at once."""
        ...


class Executor(Protocol):
    """Starts trainers; `slots` is the number of cores for them."""

    slots: int

    def start(self, job: Job) -> Process:
        """Start the trainer of a job; OSError if it cannot be started."""
        ...


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may use: its affinity, within the whole cores of a container's CPU quota; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    allowed = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no cgroup, another system, or the word "max"
        limit, period = quota.read_text().split()
        allowed = min(allowed, int(limit) // int(period))
    return max(1, allowed)


def executor_of(name: str) -> Executor:
    """Return the executor of option --executor; InputError if it does not exist or is not installed."""
    if name not in EXECUTORS:
        raise InputError(f"--executor '{name}' is unknown{nearest(name, EXECUTORS)}; allowed: {', '.join(EXECUTORS)}")
    return Local() if name == "local" else Ray()


# ---------------------------------------------------------------------------------------------------------------------
# Inside the process


def train(job: Job) -> int:
    """Run the trainer in this process, its output appended to console.log; return its exit code."""
    sys.stdout.flush()
    log = os.open(job.folder / "console.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # threads, and workers of Ray, block SIGINT
    module, function = job.trainer.split(":")
    main = getattr(import_module(module), function)
    threading.Thread(target=_guard, args=(job,), daemon=True).start()
    try:
        return int(main([str(job.folder), "--cache", str(job.cache)]))
    finally:
        faulthandler.cancel_dump_traceback_later()


def _guard(job: Job) -> None:
    """End this process when it holds too much memory or gives no sign of life.

    The sign of life is file `heartbeat`, which the training loop touches; the first one starts the clock, so loading
    and the warm start are not timed. A timer of faulthandler fires even if a library hangs with the interpreter's lock.
    """
    me, heartbeat = psutil.Process(), job.folder / "heartbeat"
    last = _stamp(heartbeat)
    while True:
        time.sleep(_LOOK_SECONDS)
        if job.hang_seconds and (stamp := _stamp(heartbeat)) != last:
            last = stamp
            faulthandler.dump_traceback_later(job.hang_seconds, exit=True, file=2)
        if job.memory is not None and (size := _resident(me)) > job.memory:
            limit = f"the limit of {gib(job.memory)} a cell (--memory)"
            os.write(2, f"out of memory: {gib(size)}, over {limit}\n".encode())
            for child in me.children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()
            os._exit(1)


def _stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _resident(process: psutil.Process) -> int:
    """Bytes that a process and its descendants hold; a page that two of them share counts twice."""
    total = 0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            total += member.memory_info().rss
    return total


def gib(size: int) -> str:
    """Bytes as GiB with three digits."""
    return f"{size / 2**30:.3g} GiB"


# ---------------------------------------------------------------------------------------------------------------------
# This machine


class Local:
    """One process a cell on this machine.

    On Linux without a GPU the trainers are forked from a process that has imported torch and transformers, which saves
    each of them five seconds of a core. Elsewhere each one imports them: a fork of a process that has asked for GPUs
    does not see them, and on macOS a fork of a process that has loaded Apple's frameworks crashes.
    """

    def __init__(self) -> None:
        self.slots = cores()
        forks = sys.platform == "linux" and not any(device.exists() for device in _GPUS)
        self._context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            self._context.set_forkserver_preload(list(PRELOAD))

    def start(self, job: Job) -> Process:
        """Start the trainer in a session of its own, so that Ctrl-C reaches the grid alone."""
        (job.folder / "console.log").touch()  # a log that cannot be written is an OSError here
        process = self._context.Process(target=_alone, args=(job,))
        with _STARTING, _environment(job.threads):
            process.start()
        return _LocalProcess(process)


def _alone(job: Job) -> None:
    os.setsid()
    sys.exit(train(job))


class _LocalProcess:
    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self._process, self._pid = process, process.pid

    def poll(self) -> int | None:
        with _STARTING:
            code = self._process.exitcode
        if code is not None:
            self._signal(os.killpg, signal.SIGKILL)  # what it started and left behind
        return code

    def interrupt(self) -> None:
        # Before it leads its session it may ignore SIGINT, as the fork server does; it has nothing to save yet.
        with suppress(ProcessLookupError):
            begun = os.getsid(self._pid) == self._pid
            self._signal(os.kill, signal.SIGINT if begun else signal.SIGKILL)

    def kill(self) -> None:
        self._signal(os.kill, signal.SIGKILL)  # by its own id as well: it may not lead its session yet
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Any, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            send(self._pid, number)


def python_path() -> str:
    """PYTHONPATH with the folder that `workbench` is imported from, for processes that start elsewhere."""
    root = str(Path(workbench.__file__).parents[1])
    return os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Set the variables that libraries read when they are imported, for the process that is started meanwhile."""
    before = dict(os.environ)
    fixed = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": python_path()}
    os.environ.update({**dict.fromkeys(_THREADS, str(threads)), **fixed})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# ---------------------------------------------------------------------------------------------------------------------
# Ray


class Ray:
    """One task a cell on a Ray cluster; every node sees the runs folder under the same path."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry unless the user asks for it
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise InputError("--executor ray needs Ray: run `pip install 'sorl[ray]'`") from None
        if not ray.is_initialized():  # the cluster of RAY_ADDRESS, else one on this machine
            variables = {"env_vars": {"PYTHONPATH": python_path()}}
            ray.init(log_to_driver=False, logging_level="ERROR", runtime_env=variables)
        self._ray = ray
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, job: Job) -> Process:
        """Start the trainer on a node with enough free cores; Ray retries nothing, the grid does."""
        task = self._ray.remote(num_cpus=job.threads, max_retries=0, max_calls=1)(train)
        return _RayProcess(self._ray, task.remote(job), job.folder / "console.log")


class _RayProcess:
    def __init__(self, ray: Any, task: Any, log: Path) -> None:
        self._ray, self._task, self._log = ray, task, log

    def poll(self) -> int | None:
        if not self._ray.wait([self._task], timeout=0)[0]:
            return None
        try:
            return int(self._ray.get(self._task))
        except self._ray.exceptions.TaskCancelledError:
            return -signal.SIGINT
        except self._ray.exceptions.RayError as error:
            with self._log.open("a") as log:
                print(f"lost with its Ray worker: {str(error).splitlines()[0]}", file=log)
            return 1

    def interrupt(self) -> None:
        self._ray.cancel(self._task, force=False)

    def kill(self) -> None:
        self._ray.cancel(self._task, force=True)
