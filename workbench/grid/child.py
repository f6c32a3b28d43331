"""One process of a grid: started with its own log, looked at while it lives, asked or made to stop."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import workbench
from workbench.grid.machine import oom_kills
from workbench.grid.memory import Footprint

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")


def root() -> str:
    """The folder that `workbench` is imported from."""
    return str(Path(workbench.__file__).parents[1])


def peak_of(usage: resource.struct_rusage) -> int:
    """The most bytes that were resident at once, of the largest process that `usage` is about."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def environment(threads: int) -> dict[str, str]:
    """The child's environment: `threads` threads, unbuffered output, this checkout importable from any folder."""
    path = os.pathsep.join(p for p in (root(), os.environ.get("PYTHONPATH", "")) if p)
    fixed = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
    return {**os.environ, **dict.fromkeys(_THREADS, str(threads)), **fixed}


class Follower:
    """Reads the progress lines that are appended to a log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = log.stat().st_size if log.exists() else 0

    def rows(self) -> Iterator[dict[str, Any]]:
        """The progress lines that appeared since the last call; half a line waits for its end."""
        if not self._log.exists():
            return
        with self._log.open("rb") as handle:
            handle.seek(self._offset)
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                with contextlib.suppress(ValueError):
                    row = json.loads(line)
                    if "step" in row:
                        yield row


@dataclass(frozen=True)
class Sight:
    """What one look at a process shows."""

    code: int | None = None  # exit code, negative for a signal; None while it lives
    rss: int = 0  # bytes that it and its descendants hold
    peak: int = 0  # the most that any look has seen
    starved: bool = False  # the kernel killed something for want of memory since it was started
    lost: str = ""  # why nothing can be known of it any more, although it may still live


class Child:
    """A process whose output goes to a log file that the grid follows.

    A file, not a pipe: a trainer whose grid was killed goes on to its end instead of dying on its next line. It leads
    its own session, so that Ctrl-C reaches the grid alone and the grid decides what a child is told.
    """

    def __init__(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int] = ()) -> None:
        self._follower = Follower(log)
        self._killed_before = oom_kills()
        # A child inherits the mask of the thread that starts it, and workers of Ray are born deaf to SIGINT.
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        try:
            self._process = self._begin(command, log, threads, keep)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self._footprint = Footprint(self._process.pid)
        self._own_peak = peak_of(resource.getrusage(resource.RUSAGE_SELF))

    def _begin(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int]) -> Any:
        """Start the process: what is returned has `pid`, `returncode`, `poll`, `wait` and `send_signal`."""
        with log.open("ab") as out:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment(threads),
                start_new_session=True, pass_fds=keep,
            )  # fmt: skip

    def look(self) -> Sight:
        """How the process stands."""
        code = self._reap()
        rss = self._footprint.measure() if code is None else 0
        killed = oom_kills() if code is not None and code < 0 else None
        starved = killed is not None and self._killed_before is not None and killed > self._killed_before
        return Sight(code, rss, self._footprint.peak, starved)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The progress lines that appeared since the last call."""
        return self._follower.rows()

    def interrupt(self) -> None:
        """Ask the process to write a checkpoint and stop."""
        self._send(signal.SIGINT)

    def ask_where(self) -> None:
        """Have the process write the stacks of its threads into its log; one that cannot is ended by the question."""
        self._send(signal.SIGUSR1)

    def kill(self) -> None:
        """Stop the process and everything it started; it may still be there when this returns."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._reap() is None:
            self._process.send_signal(number)

    def _reap(self) -> int | None:
        """The exit code; with it comes the peak that no look saw, of a process that grew between two of them."""
        if self._process.returncode is None:
            try:
                pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has asked
                return self._process.poll()
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                # Until its first line a child counts with the memory of the process that started it.
                if peak_of(usage) > self._own_peak:
                    self._footprint.peak = max(self._footprint.peak, peak_of(usage))
        return self._process.returncode
