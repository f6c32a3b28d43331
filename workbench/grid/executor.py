"""Where the processes of a grid run: on this machine, or as actors of a Ray cluster with shared storage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from workbench.grid.child import Child, Follower
from workbench.spec import InputError, nearest

EXECUTORS = ("local", "ray")


class Process(Protocol):
    """A started process as the grid sees it, wherever it runs."""

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it lives."""
        ...

    def rows(self) -> Iterator[dict[str, Any]]:
        """Progress lines since the last call."""
        ...

    def interrupt(self) -> None:
        """Ask it to checkpoint and stop."""
        ...

    def kill(self) -> None:
        """Stop it at once."""
        ...


class Executor(Protocol):
    """Starts processes; `slots` is how many run side by side unless the user says otherwise."""

    slots: int

    def start(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int]) -> Process:
        """Start `command` with its output appended to `log`."""
        ...


class Local:
    """One process a cell on this machine, one cell a core."""

    def __init__(self) -> None:
        self.slots = len(os.sched_getaffinity(0))

    def start(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int]) -> Process:
        """Start `command`; the file descriptors in `keep` stay open in it."""
        return Child(command, log, threads, keep)


class Ray:
    """One actor a cell on a Ray cluster; the run folders lie on storage that every node sees under the same path."""

    def __init__(self) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise InputError("--executor ray needs Ray: type `pip install 'sorl[ray]'`") from None
        if not ray.is_initialized():
            ray.init(log_to_driver=False)  # the cluster of RAY_ADDRESS, else one on this machine
        self._ray = ray
        self.slots = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int]) -> Process:
        """Start `command` on whichever node has `threads` free cores; descriptors do not travel between machines."""
        host = self._ray.remote(num_cpus=threads, max_restarts=0, max_concurrency=1)(Child)
        return _RayProcess(self._ray, host.remote(list(command), log, threads), log)


class _RayProcess:
    """Asks the actor and never waits for it: an actor that found no node yet simply has not ended."""

    def __init__(self, ray: Any, host: Any, log: Path) -> None:
        self._ray, self._host = ray, host
        self._follower = Follower(log)
        self._asked: Any = host.poll.remote()

    def poll(self) -> int | None:
        ready, _ = self._ray.wait([self._asked], timeout=0)
        if not ready:
            return None
        try:
            code: int | None = self._ray.get(self._asked)
        except self._ray.exceptions.RayError:  # the node or its actor is gone, and the process with it
            return 1
        if code is None:
            self._asked = self._host.poll.remote()
        else:
            self._ray.kill(self._host)
        return code

    def rows(self) -> Iterator[dict[str, Any]]:
        return self._follower.rows()

    def interrupt(self) -> None:
        self._host.interrupt.remote()

    def kill(self) -> None:
        try:
            self._ray.get(self._host.kill.remote(), timeout=10)
        except self._ray.exceptions.RayError:
            self._ray.kill(self._host)


def executor_of(name: str) -> Executor:
    """The executor of option --executor; InputError for one that does not exist or is not installed."""
    if name not in EXECUTORS:
        raise InputError(f"--executor '{name}' is unknown{nearest(name, EXECUTORS)}; allowed: {', '.join(EXECUTORS)}")
    return Local() if name == "local" else Ray()
