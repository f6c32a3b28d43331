"""One process of a grid: started with its own log, read line by line while it lives, asked or made to stop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import workbench

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """The child's environment: `threads` threads, unbuffered output, this checkout importable from any folder."""
    root = str(Path(workbench.__file__).parents[1])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
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


class Child:
    """A process whose output goes to a log file that the grid follows.

    A file, not a pipe: a trainer whose grid was killed goes on to its end instead of dying on its next line. It leads
    its own session, so that Ctrl-C reaches the grid alone and the grid decides what a child is told.
    """

    def __init__(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int] = ()) -> None:
        self._follower = Follower(log)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment(threads),
                start_new_session=True, pass_fds=keep,
            )  # fmt: skip

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while the process lives."""
        return self._process.poll()

    def rows(self) -> Iterator[dict[str, Any]]:
        """The progress lines that appeared since the last call."""
        return self._follower.rows()

    def interrupt(self) -> None:
        """Ask the process to write a checkpoint and stop."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Stop the process and everything it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
