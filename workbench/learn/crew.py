"""Several processes that train one run: the leader drives, all of them compute a share of each pass over a batch.

Every process holds the networks and their optimizers. The leader's process is the run's own: it estimates advantages,
records and saves. The others wait for what it calls, take their share of it (rollouts, log-probs, values, gradients),
and make the same optimizer step as it does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from workbench.learn.policy import device_of
from workbench.spec import ComputeSettings, InputError

T = TypeVar("T")


class Crew:
    """One process alone, which shares with nobody."""

    size = 1

    def call(self, name: str, *arguments: Any) -> None:
        """Have every other process do what the leader does next: method `name` of its Helper with these arguments."""

    def share(self, parts: Sequence[T]) -> list[tuple[int, T]]:
        """The parts that this process computes, each with its place."""
        return list(enumerate(parts))

    def gather(self, own: list[tuple[int, T]]) -> list[T]:
        """What all processes made of their parts, in order, in every process."""
        return [value for _, value in sorted(own, key=lambda pair: pair[0])]

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over processes of each tensor, in every process."""
        return list(tensors)


class Team(Crew):
    """Processes that torch.distributed has brought together, by accelerate."""

    def __init__(self, compute: ComputeSettings) -> None:
        from accelerate import PartialState

        # A helper waits for as long as the leader evaluates or records; whether the others live is seen by `_watch`.
        self._state = PartialState(cpu=device_of(compute).type == "cpu", timeout=timedelta(days=1))
        self.size, self.rank = int(self._state.num_processes), int(self._state.process_index)

    def call(self, name: str, *arguments: Any) -> None:
        """Have every other process do what the leader does next: method `name` of its Helper with these arguments."""
        if self.rank == 0:
            self._broadcast((name, arguments))

    def called(self) -> tuple[str, tuple[Any, ...]]:
        """In every process but the leader's: what it calls next. Waits for it."""
        found: tuple[str, tuple[Any, ...]] = self._broadcast(None)
        return found

    def _broadcast(self, message: Any) -> Any:
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([message])[0]

    def share(self, parts: Sequence[T]) -> list[tuple[int, T]]:
        """Every `size`-th part: neighbours are of like length where parts are sorted by it."""
        return list(enumerate(parts))[self.rank :: self.size]

    def gather(self, own: list[tuple[int, T]]) -> list[T]:
        """What all processes made of their parts, in order, in every process."""
        from accelerate.utils import gather_object

        return super().gather(gather_object(own))

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over processes of each tensor, in every process."""
        from accelerate.utils import reduce

        return [reduce(tensor, "sum") for tensor in tensors]

    def part(self) -> None:
        """Leave the other processes."""
        self._state.destroy_process_group()


def launched() -> bool:
    """Whether torchrun or `accelerate launch` started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def led(folder: Path, cache: Path, compute: ComputeSettings) -> Iterator[Crew]:
    """The crew of a run, in the leader's process: `compute.processes` on this machine, or those that were launched.

    Raises InputError where accelerate is not installed, or there are fewer GPUs than processes.
    """
    if compute.processes == 1 and not launched():
        yield Crew()
        return
    _require(compute)
    started = [] if launched() else _start(folder, cache, compute.processes)
    over = Event()
    Thread(target=_watch, args=(started, over), daemon=True).start()
    try:
        team = Team(compute)
        yield team
        if all(process.poll() is None for process in started):  # the rest of a broken crew would wait for ever
            team.call("leave")
            team.part()
            for process in started:
                process.wait()
    finally:
        over.set()
        for process in started:
            process.kill()


def _watch(started: Sequence[subprocess.Popen[bytes]], over: Event, grace: float = 30.0) -> None:
    """End this process when another has ended and nothing was heard of it for `grace` seconds: it may wait for ever."""
    while not over.wait(0.5):
        ended = [process for process in started if process.poll() is not None]
        if ended and not over.wait(grace):
            said = f"process {ended[0].pid} of this run ended with code {ended[0].returncode}; it says above why"
            print(f"sorl: {said}", file=sys.stderr, flush=True)
            os._exit(1)


def _require(compute: ComputeSettings) -> None:
    try:
        import accelerate  # noqa: F401
    except ImportError:
        raise InputError(
            "training one run in several processes needs accelerate: type `pip install 'sorl[accelerate]'`"
        ) from None
    if device_of(compute).type == "cuda" and not launched() and torch.cuda.device_count() < compute.processes:
        raise InputError(
            f"compute.processes = {compute.processes}, but torch sees {torch.cuda.device_count()} GPUs here; a process "
            'needs one of its own, or compute.device = "cpu"'
        )


def _start(folder: Path, cache: Path, processes: int) -> list[subprocess.Popen[bytes]]:
    """Start the others on this machine, and make this process the first of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    every = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    command = [sys.executable, "-m", "workbench.learn", str(folder), "--cache", str(cache)]
    ranks = [every | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    started = [subprocess.Popen(command, env=os.environ | one, stdout=subprocess.DEVNULL) for one in ranks[1:]]
    os.environ.update(ranks[0])
    return started
