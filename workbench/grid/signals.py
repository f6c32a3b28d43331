"""Ctrl-C while a grid runs: counted, not raised."""

from __future__ import annotations

import signal
from types import FrameType


class Signals:
    """Counts SIGINT, SIGTERM and SIGHUP inside a `with` block and restores the handlers after it."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Signals:
        self._before = {n: signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
