"""The segment files in the run folders, and which runs are alive."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from sorl.spec import TABLES, InputError
from sorl.spec.files import open_file
from sorl.spec.heartbeat import read_heartbeat
from sorl.spec.names import RESERVED, FolderName, refuse_outside
from sorl.store.text import plain

CORRUPT = ".corrupt"  # a segment that is set aside keeps its name, with this behind it
_TABLES = frozenset(table.name for table in TABLES) - {"segment"}
_EPOCH = datetime(1970, 1, 1)


class SegmentKey(NamedTuple):
    """Identity of a segment in table `segment`."""

    run_id: str
    table: str
    file: str


@dataclass(frozen=True)
class Segment:
    """One segment file: whose rows of which table, and what tells it from a rewritten file of
    the same name.
    """

    run_id: str  # empty for a segment of the experiment
    experiment: str
    table: str
    file: str  # relative to the run's folder; of an experiment, to the runs folder
    path: Path
    bytes: int
    mtime: int  # nanoseconds
    aside: bool = False  # it was found corrupt and renamed
    rows: int = 0

    @property
    def key(self) -> SegmentKey:
        """Identity of the segment in table `segment`."""
        return SegmentKey(self.run_id, self.table, self.file)

    @property
    def at(self) -> datetime:
        """Time of the file's last change, UTC without a zone: a rebuilt database has equal rows."""
        return _EPOCH + timedelta(microseconds=self.mtime // 1000)

    def set_aside(self) -> "Segment":
        """Rename the file so that nothing reads it again; it stays where it is in a folder that cannot be
        written, or that a link puts outside the runs folder.
        """
        runs = self.path.parents[4 if self.run_id else 3]
        try:
            refuse_outside(runs, self.path)
            return replace(
                self, path=self.path.rename(self.path.with_name(self.path.name + CORRUPT)), aside=True
            )
        except (OSError, InputError):
            return self


def folder_of(runs: Path, experiment: str, run_id: str) -> Path | None:
    """Return the folder of a run; None where there is none. No name, path or link leads out of `runs`."""
    try:
        folder = (runs / FolderName(experiment, "experiment") / FolderName(run_id, "run")).resolve()
    except (InputError, RuntimeError):  # no name, or a link to itself
        return None
    return folder if folder.is_dir() and folder.is_relative_to(runs.resolve()) else None


def run_folders(runs: Path) -> Iterator[Path]:
    """Yield every run folder, `runs/<experiment>/<run_id>`; names that begin with a dot are scratch space of
    others.
    """
    for experiment in _named(runs, []):
        yield from _named(experiment, [])


def segments(runs: Path, skipped: list[str]) -> Iterator[Segment]:
    """Yield every segment file of runs and experiments but unfinished ones; `skipped` names what cannot be
    read.
    """
    for experiment in _named(runs, skipped):
        for folder in (experiment, *_named(experiment, skipped)):
            run_id, prefix = ("", f"{experiment.name}/") if folder is experiment else (folder.name, "")
            for table in (table for table in _folders(folder / "segments", skipped) if table.name in _TABLES):
                for entry in _entries(table, skipped):
                    name = entry.name.removesuffix(CORRUPT)
                    if name.startswith(".") or not name.endswith(".parquet"):
                        continue
                    with _skipping(entry.path, skipped):
                        state = entry.stat()
                        if not entry.is_file():
                            raise OSError(errno.EINVAL, "it is no file")
                        file = f"{prefix}segments/{table.name}/{name}"
                        aside = name != entry.name
                        size = state.st_size
                        mtime = state.st_mtime_ns
                        yield Segment(
                            run_id, experiment.name, table.name, file, Path(entry.path), size, mtime, aside
                        )


def run_of_rows(file: Path) -> str:
    """Return the run that the first row of a segment belongs to; "?" where it does not say."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, pa.ArrowException, KeyError, IndexError):
        return str(next(pq.ParquetFile(file).iter_batches(1, columns=["run_id"]))["run_id"][0])
    return "?"


def held(folder: Path, name: str = "lock") -> bool:
    """Return True while a process holds the lock: `lock` is the trainer's, `claim` that of the grid that
    watches it.
    """
    try:
        with open_file(folder / name) as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nobody trained here, or the storage has no locks
        pass
    return False


def doing_of(runs: Path, experiment: str, run_id: str) -> str:
    """Return what the trainer of a run is doing, in words; empty unless it says so and runs here."""
    folder = folder_of(runs, experiment, run_id)
    if folder is None or not held(folder):
        return ""
    now = read_heartbeat(folder)
    return plain(now.words) if now is not None else ""


def now() -> datetime:
    """Return the present, UTC without a zone, as every timestamp of the store."""
    return datetime.now(UTC).replace(tzinfo=None)


def _named(parent: Path, skipped: list[str]) -> list[Path]:
    """Return the folders of experiments or runs in `parent`: those with a FolderName."""
    found = []
    for folder in _folders(parent, skipped):
        if folder.name in RESERVED:
            continue
        try:
            found.append(parent / FolderName(folder.name, f"left out, in '{parent}':"))
        except InputError as error:
            skipped.append(str(error))
    return found


def _folders(parent: Path, skipped: list[str]) -> list[Path]:
    found = []
    for entry in _entries(parent, skipped):
        with _skipping(entry.path, skipped):
            found += [Path(entry.path)] if not entry.name.startswith(".") and entry.is_dir() else []
    return sorted(found)


def _entries(folder: Path, skipped: list[str]) -> list[os.DirEntry[str]]:
    with _skipping(str(folder), skipped):
        return list(os.scandir(folder))
    return []


@contextmanager
def _skipping(path: str, skipped: list[str]) -> Iterator[None]:
    """Name what cannot be read and keep the rest readable; what is gone, or a link to nothing, is not even
    named.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        skipped.append(f"'{path}' left out: {(error.strerror or str(error)).lower()}")
