"""Opening the database: one writer or many readers, and the error while it is locked."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from sorl.spec import InputError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NAME = "sorl.duckdb"
# The same for every reader: connections of one process share one instance, and DuckDB refuses to share it
# between different settings. Files, the network, extensions and Python variables are out of reach, for good
# (locked).
HARDENED: dict[str, Any] = {
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "allow_persistent_secrets": False,
    "python_enable_replacements": False,
    # larger queries use the disk, not the trainers' memory
    "memory_limit": "1GiB",
    "max_temp_directory_size": "4GB",
    "lock_configuration": True,
}
# Two connections of one process share one database instance, so DuckDB's file lock does not keep them apart.
_WRITING = Lock()
_HOLDER = re.compile(r"lock is held in (?P<program>.+?) \(PID (?P<pid>\d+)\)")
# DuckDB's words for "open in this process with other settings", for "another thread is just opening or
# closing it", and for "held by another process".
_OURSELVES = ("with a different configuration", "Unique file handle conflict")
_BUSY = ("Could not set lock", "used by another process", *_OURSELVES)


_HEADERS = 3 * 4096  # bytes that DuckDB writes first
_MAKING_SECONDS = 3.0  # and the most that this takes on a loaded machine


class Busy(InputError):
    """Another program holds the database; nothing is lost, the same command works later."""


def database(runs: Path) -> Path:
    """Return the index database of a runs folder."""
    return runs / NAME


@contextmanager
def writer(runs: Path, seconds: float) -> Iterator[DuckDBPyConnection]:
    """Open the one read-write connection within `seconds`; raises Busy, and InputError for an
    unusable file.
    """
    deadline = time.monotonic() + seconds
    if not _WRITING.acquire(timeout=max(seconds, 0)):
        raise _busy(database(runs), _OURSELVES[0])
    try:
        with _opened(runs, deadline, read_only=False) as connection:
            yield connection
    finally:
        _WRITING.release()


def reader(runs: Path, seconds: float) -> AbstractContextManager[DuckDBPyConnection]:
    """Open a hardened read-only connection; waits and raises as `writer` does."""
    return _opened(runs, time.monotonic() + seconds, read_only=True, config=HARDENED)


@contextmanager
def _opened(runs: Path, deadline: float, **options: Any) -> Iterator[DuckDBPyConnection]:
    import duckdb

    path = database(runs)
    pause = 0.005
    made_by = time.monotonic() + _MAKING_SECONDS
    if path.exists() and not path.is_file():
        raise unusable(runs, "it is not a regular file")  # opening a pipe would block for ever
    while True:
        try:
            connection = duckdb.connect(str(path), **options)
            break
        except duckdb.Error as error:
            if _is_being_made(path, str(error)) and time.monotonic() < made_by:
                time.sleep(0.02)
                continue
            if not any(words in str(error) for words in _BUSY):
                raise unusable(runs, error) from None
            if time.monotonic() >= deadline:
                raise _busy(path, str(error)) from None
        # Doubling with jitter: processes that met once do not meet again in step.
        time.sleep(min(pause * random.uniform(0.5, 1.5), max(0.0, deadline - time.monotonic())))
        pause = min(pause * 2, 0.25)
    try:
        yield connection
    except duckdb.Error as error:
        raise unusable(runs, error) from None
    finally:
        connection.close()


def _is_being_made(path: Path, error: str) -> bool:
    """Whether another process may just be making the file: it is there before its first bytes are."""
    if "not a valid DuckDB database file" not in error:
        return False
    try:
        state = path.stat()
    except FileNotFoundError:
        return True
    # It may have become whole between the error and this look.
    return state.st_size < _HEADERS or time.time() - state.st_mtime < _MAKING_SECONDS


def _busy(path: Path, error: str) -> Busy:
    who = "another process"
    if any(words in error for words in _OURSELVES):
        who = "another thread of this process"
    way_out = "close it"
    if holder := _HOLDER.search(error):
        who = f"PID {holder['pid']} ({Path(holder['program']).name})"
        way_out = f"close it (`kill {holder['pid']}` ends it)"
    return Busy(
        f"database '{path}' is held open by {who}: {way_out}, or wait and try again; your runs are not"
        " affected"
    )


class Full(InputError):
    """The disk of the database is full; nothing is lost, the same command works once there is room."""


def unusable(runs: Path, why: Exception | str) -> InputError:
    """Return the error for a file that is damaged, that another program made, or whose disk is full."""
    if "No space left on device" in str(why):
        room = "no space is left on its disk; make room and run the same command again"
        return Full(f"database '{database(runs)}' cannot be written: {room}; your runs are not affected")
    said = f"cannot open database '{database(runs)}': {str(why).strip().splitlines()[0]}"
    rebuild = f"run `sorl sync` to rebuild it from the run folders (if '{runs}' can be written)"
    return InputError(f"{said}; it is only an index: delete it and {rebuild}")
