"""When silence is a hang: measured against the cell's own pace."""

from __future__ import annotations

from pathlib import Path

# A cell gives a sign of life with every step, and inside a step with every pass through its network (the heartbeat).
STARTUP = 1800.0  # seconds to the first step, if nothing else is said: imports, a large model's weights, a cold disk
FLOOR = 300.0  # seconds that no cell is called hanging before: a save to slow storage gives no sign
TIMES = 50.0  # longest pause of this cell so far that a hang must exceed this many times


class Pulse:
    """The signs of life of one running cell; every time is in seconds of a clock that its caller reads."""

    def __init__(self, heartbeat: Path, now: float, limit: float | None = None) -> None:
        """`heartbeat` is the file that the cell touches; `limit` seconds of silence are a hang, 0 = never."""
        self._file, self._limit = heartbeat, limit
        self._touched = self._stamp()  # an earlier session's
        self._last = now
        self._stepped = False
        self._longest = 0.0

    def step(self, now: float) -> None:
        """A progress line came."""
        # The way to the first step is no pause of the loop: it would make the limit of a slow start the rule.
        self._sign(now, counts=self._stepped)
        self._stepped = True

    def silence(self, now: float) -> float:
        """Seconds since the last sign of life."""
        stamp = self._stamp()
        if stamp != self._touched:
            self._touched = stamp
            self._sign(now, counts=self._stepped)
        return now - self._last

    @property
    def limit(self) -> float:
        """Seconds of silence from which the cell counts as hanging.

        Without a limit of its own: max(300, 50 x the longest pause so far); before the first step never less than 1800.
        """
        if self._limit == 0:
            return float("inf")
        limit = max(FLOOR, TIMES * self._longest) if self._limit is None else self._limit
        return limit if self._stepped else max(STARTUP, limit)

    def _sign(self, now: float, counts: bool) -> None:
        if counts:
            self._longest = max(self._longest, now - self._last)
        self._last = now

    def _stamp(self) -> int:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0
