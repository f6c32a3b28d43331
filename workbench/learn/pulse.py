"""A run's signs of life: what the trainer is doing, in the file `heartbeat` of its folder."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sorl.spec.heartbeat import Doing

if TYPE_CHECKING:
    from torch import nn

_EVERY_SECONDS = 1.0  # between two writes within a part


class _Counted(NamedTuple):
    """How far a part is."""

    done: int | None = None
    of: int | None = None
    detail: str = ""


class Pulse:
    """Writes what a trainer is doing into `file`; without one it writes nothing.

    The file's time is the sign of life that the guard of hangs reads. The guard's clock starts when that time
    first changes. Until `begin` the time therefore stays as it was: a download, large weights and a warm
    start may take as long as they take.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._unfinished = "" if file is None else str(file.with_name(f".{file.name}"))
        self._now = Doing("starting", since=time.time())
        self._counted = _Counted()
        self._due = 0.0  # when the next write within a part is due
        self._first = True  # whether nothing was counted in this part yet
        self._time_before: int | None = 0  # of the file, in ns; None from `begin` on
        if file is not None and file.exists():
            self._time_before = file.stat().st_mtime_ns

    def begin(self) -> None:
        """From here on silence counts as a hang."""
        self._time_before = None

    def step(self, step: int | None, steps: int | None = None) -> None:
        """Say which step the parts that follow belong to: `step` were done before it. None: to no step."""
        self._now = replace(self._now, step=step, steps=steps)

    def part(self, doing: str, of: int | None = None, unit: str = "") -> None:
        """Begin a part of the work: `of` units of it are to do. Written at once."""
        self._now = Doing(doing, self._now.step, self._now.steps, of=of, unit=unit, since=time.time())
        self._counted = _Counted(0 if of is not None else None, of)
        self._first = True
        self._write()

    def count(self, done: int, of: int | None = None, detail: str = "") -> None:
        """Say how far the part is. Written the first time, then at most once a second."""
        # A rollout calls this for every token: nothing is built that is not written.
        self._counted = _Counted(done, self._now.of if of is None else of, detail)
        if self._first:
            self._first = False
            self._write()
        else:
            self.beat()

    def detail(self, detail: str) -> None:
        """Say more about the unit that is counted now."""
        self._counted = self._counted._replace(detail=detail)
        self.beat()

    def beat(self) -> None:
        """Give a sign of life, at most once a second."""
        if time.monotonic() >= self._due:
            self._write()

    def _write(self) -> None:
        self._due = time.monotonic() + _EVERY_SECONDS
        if self._file is None:
            return
        now = replace(self._now, **self._counted._asdict())
        try:
            # not by `pathlib`: a small policy begins fifty parts a second
            with open(self._unfinished, "w") as file:
                file.write(now.as_json() + "\n")
            if self._time_before is not None:
                os.utime(self._unfinished, ns=(self._time_before, self._time_before))
            os.replace(self._unfinished, self._file)
        except OSError:  # a full disk, which the recorder reports: the life of the process is what counts
            if self._time_before is None:
                with suppress(OSError):
                    self._file.touch()


def beat_at_passes(pulse: Pulse, network: nn.Module) -> None:
    """Have every pass through `network` beat: a sampled token, a part of an update."""

    # A plain function, and no method: copies of the network share the pulse.
    def beat(*_: object) -> None:
        pulse.beat()

    # `packed` calls no other part
    entrance: nn.Module = getattr(network, "get_input_embeddings", lambda: network)()
    entrance.register_forward_pre_hook(beat)
