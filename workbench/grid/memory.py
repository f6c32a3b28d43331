"""How much memory a process and everything that it started hold."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

_FAMILY_SECONDS = 1.0


class Footprint:
    """Resident memory of a process tree in bytes, now and at its highest; 0 once it is gone."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._family: list[psutil.Process] = []
        self._listed = 0.0
        with suppress(psutil.Error):
            self._family = [psutil.Process(pid)]

    def measure(self) -> int:
        """What is resident now; a page that two processes share counts twice."""
        self._list()
        total = 0
        for process in self._family:
            with suppress(psutil.Error):
                total += process.memory_info().rss
        self.peak = max(self.peak, total)
        return total

    def _list(self) -> None:
        # Listing the descendants walks every process of the machine, reading what one of them holds does not.
        if self._family and time.monotonic() - self._listed >= _FAMILY_SECONDS:
            self._listed = time.monotonic()
            with suppress(psutil.Error):
                self._family[1:] = self._family[0].children(recursive=True)
