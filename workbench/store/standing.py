"""The database stays open for a moment after a question, until somebody wants to write."""

from __future__ import annotations

import atexit
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from workbench.store import connect

_LOOK = 0.02  # seconds between two looks at whether a writer waits, while the database is open

File = tuple[int, int, int] | None
_OPEN: weakref.WeakSet[Standing] = weakref.WeakSet()


class Standing:
    """One idle connection, whose DuckDB and its cache the questions of this process share.

    Starting DuckDB takes longer than most questions. The connection is closed `seconds` after the last question, within
    `_LOOK` of a writer's asking (connect.wanted), and as soon as the file in its place is another one. A writer that
    does not ask, which is any program but sorl, finds the database locked until then.
    """

    def __init__(self, runs: Path, seconds: float, config: dict[str, Any]) -> None:
        self.runs = runs
        self.seconds = seconds
        self.config = config
        self._lock = Lock()
        self._open: ExitStack | None = None
        self._file: File = None
        self._until = 0.0

    def look(self) -> File:
        """The file that is to be asked now; lets go of any other."""
        file = self._present()
        with self._lock:
            if file != self._file:
                self._close()
        return file

    def keep(self, file: File) -> None:
        """Hold the database that the caller has had open since `look` said `file`."""
        if self.seconds <= 0:
            return
        with self._lock:
            self._until = time.monotonic() + self.seconds
            if self._open is not None or connect.wanted(self.runs).exists() or self._present() != file:
                return
            held = ExitStack()
            try:
                held.enter_context(connect.reader(self.runs, 0.0, self.config))
            except connect.Busy:  # then the next question tries again
                return
            self._open, self._file = held, file
            _OPEN.add(self)
            Thread(target=self._watch, args=(held,), name="sorl standing", daemon=True).start()

    def let_go(self) -> None:
        """Close it now; the next question opens it again."""
        with self._lock:
            self._close()

    def _watch(self, held: ExitStack) -> None:
        wanted = connect.wanted(self.runs)
        while True:
            time.sleep(_LOOK)
            with self._lock:
                if self._open is not held:
                    return
                if wanted.exists() or time.monotonic() >= self._until or self._present() != self._file:
                    self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open, self._file = None, None

    def _present(self) -> File:
        """What tells one file from another in its place; no writer changes it while a reader has it open."""
        try:
            stat = connect.database(self.runs).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size


@atexit.register
def _let_go() -> None:
    """Before Python ends: DuckDB complains at length of what is open then."""
    for standing in list(_OPEN):
        standing.let_go()
