"""The sync behind the app: what trainers write enters the database while screens ask for it."""

import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

from sorl.spec import InputError
from sorl.store.connect import Busy
from sorl.store.segments import run_folders
from sorl.store.sync import sync

_LOCK = 1.0  # seconds to wait for the write lock
_PERIOD = 0.5  # least seconds between two looks at the run folders
# Seconds after which it syncs though no folder has changed: a trainer that died or a deleted file moves none.
_UNPROMPTED = 10.0
_PAUSES = 20  # and at least this many times as long as the last sync took


class BackgroundSync:
    """Syncs a runs folder while screens ask for it, in a thread: when a segment has come, and
    now and then.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.notes: list[str] = []  # what a person should know of the last sync, in sentences
        self.syncing = False  # the files of the database may change at every moment
        self._lock = Lock()
        self._thread: Thread | None = None
        self._next = 0.0  # when the next look may begin
        self._unprompted = 0.0
        self._seen: frozenset[tuple[str, int]] | None = None

    def look(self, wait: float = 0.0) -> None:
        """Ask for a look at the run folders and wait at most `wait` seconds until it is done."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._work, name="sorl sync", daemon=True)
                self._thread.start()
            thread = self._thread
        thread.join(wait)

    def look_ahead(self, wait: float) -> None:
        """Look before any screen asks, which then has no pause to sit out."""
        self.look(wait)
        self._next = 0.0

    def _work(self) -> None:
        time.sleep(max(0.0, self._next - time.monotonic()))
        began = time.monotonic()
        seen = self._folders()
        if seen != self._seen or began >= self._unprompted:
            self.syncing = True
            try:
                report = sync(self.runs, seconds=_LOCK)
            except Busy as busy:
                self.notes = [f"not up to date: {busy}"]
            except (InputError, OSError) as error:
                self.notes = [str(error)]
            else:
                took = time.monotonic() - began
                self._seen = seen
                self._unprompted = began + took + max(_UNPROMPTED, _PAUSES * took)
                aside = f"{len(report.corrupt)} unreadable segments set aside: `sorl doctor` lists them"
                self.notes = ([aside] if report.corrupt else []) + report.skipped
            finally:
                self.syncing = False
        # At most a third of the time, which a large folder takes.
        self._next = began + max(_PERIOD, 3 * (time.monotonic() - began))

    def _folders(self) -> frozenset[tuple[str, int]]:
        # That segments are renamed into, each with the time of its last change.
        runs = list(run_folders(self.runs))
        found = []
        for parent in {*runs, *(run.parent for run in runs)}:
            found.append((str(parent), 0))
            with suppress(FileNotFoundError, NotADirectoryError):  # nothing written yet, or just deleted
                found += [(entry.path, entry.stat().st_mtime_ns) for entry in os.scandir(parent / "segments")]
        return frozenset(found)
