"""Trainers that are forked from one process which has done their imports, so that a grid waits for torch only once.

Importing torch and transformers takes five seconds of a core. Every trainer of a grid therefore also runs the code that
lay there when the grid began, whatever is edited meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from workbench.grid.child import Child, environment

TRAINER = (sys.executable, "-m", "workbench.learn")
_GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_IMPORTED = (
    "workbench.learn.loop", "workbench.learn.warmstart", "workbench.learn.heartbeat", "workbench.learn.run",
    "workbench.record.recorder", "pandas",
)  # fmt: skip


def can_fork(command: Sequence[str]) -> bool:
    """Whether the command is one that need not be started from nothing: our trainer, where a fork is safe.

    It is not on macOS, where a process that has loaded Apple's frameworks must exec, nor beside a GPU, where an import
    that only asks for the devices would leave every fork without them.
    """
    ours = tuple(command[: len(TRAINER)]) == TRAINER
    return ours and sys.platform == "linux" and not any(device.exists() for device in _GPUS)


class ForkedChild(Child):
    """A trainer that was forked; in everything else a Child."""

    def _begin(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int]) -> Any:
        context = get_context("forkserver")
        context.set_forkserver_preload(list(_IMPORTED))
        before = dict(os.environ)
        os.environ.update(environment(threads))  # the libraries read their thread counts when they are imported
        try:
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(before)
        log.touch()  # so that a log which cannot be written is an OSError here, as from a command
        held = [_Held(number) for number in keep]
        process = context.Process(target=_live, args=(list(command[len(TRAINER) :]), str(log.absolute()), held))
        process.start()
        return _Handle(process)

    def kill(self) -> None:
        """Stop the process and everything it started; it may still be there when this returns."""
        super().kill()
        if self._reap() is None:  # the fork may not lead its own session yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)


class _Held:
    """A descriptor that stays open in the fork, where it is a number; the forking process keeps none.

    It is sent along with the request. Sent ahead, it would stay open here until the fork has asked for it, and a fork
    that is killed before would leave the run claimed by the grid itself.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._number),)


def _received(sent: Any) -> int:
    return int(sent.detach())


class _Handle:
    """What Child asks of a process, of one whose parent is the forking process."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self._process, self.pid = process, process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self) -> int | None:
        self._process.join()
        return self.poll()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def _live(arguments: list[str], log: str, held: list[int]) -> None:
    """In the fork, which keeps the descriptors `held`: its own session, its output in the log, the trainer's main."""
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from workbench.learn.__main__ import main

    sys.exit(main(arguments))
