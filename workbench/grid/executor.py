"""Where the processes of a grid run: on this machine, or as actors of a Ray cluster with shared storage."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from workbench.grid.child import Child, Follower, Sight, root
from workbench.grid.forked import ForkedChild, can_fork
from workbench.grid.machine import cores
from workbench.spec import InputError, nearest

EXECUTORS = ("local", "ray")
_ANSWER_SECONDS = 2.0


class Process(Protocol):
    """A started process as the grid sees it, wherever it runs. No call waits for it."""

    def look(self) -> Sight:
        """How it stands."""
        ...

    def rows(self) -> Iterator[dict[str, Any]]:
        """Progress lines since the last call."""
        ...

    def interrupt(self) -> None:
        """Ask it to checkpoint and stop."""
        ...

    def ask_where(self) -> None:
        """Have it write into its log where it stands."""
        ...

    def kill(self) -> None:
        """Stop it at once."""
        ...


class Executor(Protocol):
    """Starts processes; `slots` is how many cores there are for them."""

    slots: int

    def start(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int]) -> Process:
        """Start `command` with its output appended to `log`; OSError when it cannot be started."""
        ...


class Local:
    """One process a cell on this machine."""

    def __init__(self) -> None:
        self.slots = cores()

    def start(self, command: Sequence[str], log: Path, threads: int, keep: Sequence[int]) -> Process:
        """Start `command`; the file descriptors in `keep` stay open in it."""
        start = ForkedChild if can_fork(command) else Child
        return start(command, log, threads, keep)


class Ray:
    """One actor a cell on a Ray cluster; the run folders lie on storage that every node sees under the same path."""

    def __init__(self) -> None:
        # Ray reports usage to its makers unless told not to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise InputError("--executor ray needs Ray: type `pip install 'sorl[ray]'`") from None
        if not ray.is_initialized():
            # The cluster of RAY_ADDRESS, else one on this machine.
            path = os.pathsep.join(p for p in (root(), os.environ.get("PYTHONPATH", "")) if p)
            ray.init(log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": {"PYTHONPATH": path}})
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
        self._asked: Any = host.look.remote()
        self._seen = Sight()

    def look(self) -> Sight:
        ready, _ = self._ray.wait([self._asked], timeout=0)
        if not ready or self._seen.code is not None or self._seen.lost:
            return self._seen
        try:
            self._seen = self._ray.get(self._asked)
        except self._ray.exceptions.RayError as error:
            self._seen = Sight(peak=self._seen.peak, lost=f"with its Ray worker: {str(error).splitlines()[0]}")
            return self._seen
        if self._seen.code is None:
            self._asked = self._host.look.remote()
        else:
            self._ray.kill(self._host)
        return self._seen

    def rows(self) -> Iterator[dict[str, Any]]:
        return self._follower.rows()

    def interrupt(self) -> None:
        self._tell(self._host.interrupt)

    def ask_where(self) -> None:
        self._tell(self._host.ask_where)

    def kill(self) -> None:
        self._tell(self._host.kill)

    def _tell(self, method: Any) -> None:
        done, _ = self._ray.wait([method.remote()], timeout=_ANSWER_SECONDS)
        if not done:  # it waits for a node, or for one that is gone: nothing would ever hear the message
            self._ray.kill(self._host)


def executor_of(name: str) -> Executor:
    """The executor of option --executor; InputError for one that does not exist or is not installed."""
    if name not in EXECUTORS:
        raise InputError(f"--executor '{name}' is unknown{nearest(name, EXECUTORS)}; allowed: {', '.join(EXECUTORS)}")
    return Local() if name == "local" else Ray()
