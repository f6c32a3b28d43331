"""Keeps the database up to date beside the app: in a thread of its own, so that no screen waits for a lock."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Condition, Thread

from workbench.spec import InputError
from workbench.store.connect import Busy
from workbench.store.segments import run_folders
from workbench.store.sync import sync

_LOCK = 1.0  # seconds to wait for the write lock
_PERIOD = 0.5  # least seconds between two looks at the run folders
_ANYWAY = 10.0  # seconds after which a sync looks for what moves no folder: a trainer that died, a deleted file
_PAUSES = 20  # and at least so many times as long as the last sync took


class Keeper:
    """Syncs a runs folder while screens ask for it: when a segment has come, and now and then; sleeps otherwise."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.notes: list[str] = []  # what a person should know of the last sync, in sentences
        self.syncing = False  # the files of the database may change at every moment
        self._changed = Condition()
        self._asked = 0
        self._done = 0
        self._seen: frozenset[tuple[str, int]] | None = None
        self._anyway = 0.0
        self._thread: Thread | None = None

    def look(self, wait: float = 0.0) -> None:
        """Ask for a look at the run folders and wait at most `wait` seconds until it is done."""
        with self._changed:
            self._asked += 1
            ticket = self._asked
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._work, name="sorl sync", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= ticket, timeout=wait)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._done)
                ticket = self._asked
            began = time.monotonic()
            self._look()
            took = time.monotonic() - began
            with self._changed:
                self._done = ticket
                self._changed.notify_all()
            time.sleep(max(_PERIOD - took, 2 * took))  # a large folder takes at most a third of one core

    def _look(self) -> None:
        seen = self._folders()
        began = time.monotonic()
        if seen == self._seen and began < self._anyway:
            return
        self.syncing = True
        try:
            report = sync(self.runs, seconds=_LOCK)
        except Busy as busy:
            self.notes = [f"not up to date: {busy}"]
            return
        except (InputError, OSError) as error:
            self.notes = [str(error)]
            return
        finally:
            self.syncing = False
        ended = time.monotonic()
        self._seen, self._anyway = seen, ended + max(_ANYWAY, _PAUSES * (ended - began))
        aside = f"{len(report.corrupt)} unreadable segments set aside: `sorl doctor` lists them"
        self.notes = ([aside] if report.corrupt else []) + report.skipped

    def _folders(self) -> frozenset[tuple[str, int]]:
        """The folders that segments are renamed into, each with the time of its last change."""
        runs = list(run_folders(self.runs))
        parents = {folder.path for folder in runs} | {folder.path.parent for folder in runs}
        found = []
        for parent in parents:
            try:
                tables = [(entry.path, entry.stat().st_mtime_ns) for entry in os.scandir(parent / "segments")]
            except (FileNotFoundError, NotADirectoryError):  # a run that has written nothing yet, or was just deleted
                tables = []
            found += [(str(parent), 0), *tables]
        return frozenset(found)
