"""The folder of a run: its configuration and identity, its locks, the rows that the grid writes, and its
history.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from sorl.grid.cell import Cell, expand, flatten
from sorl.grid.fork import next_start, rolled_back
from sorl.spec import COLLAPSED, COSMETIC, UNDECIDED, table
from sorl.spec.baselines import COPY, LARGEST, baseline_file
from sorl.spec.files import MIB, from_json, from_toml, lock_file, lock_holder, naming, read_text
from sorl.spec.names import FolderName, folder_to_write, refuse_outside, refuse_twins
from sorl.spec.rollback import Rollback
from sorl.store.segments import held, now

ARROW = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
}
_PREFIX = "queue-"  # of the grid's segments; the trainer's are 000000.parquet, 000001.parquet, ...


def folder_of(runs: Path, cell: Cell) -> Path:
    """`runs/<experiment>/<run_id>`."""
    return runs / cell.experiment / cell.run_id


def refuse_unsafe(runs: Path, experiment: FolderName, cells: Sequence[Cell]) -> None:
    """Raise InputError if a folder of these cells is a link out of `runs`, or another name of one there."""
    home = folder_to_write(runs, experiment)
    refuse_twins(home, [cell.run_id for cell in cells])
    for cell in cells:
        refuse_outside(runs, folder_of(runs, cell))


def refuse_missing_baselines(runs: Path, cells: Sequence[Cell]) -> None:
    """Raise InputError for a baseline that these cells name and that is not saved or is damaged."""
    names = {cell.settings.record.baseline for cell in cells} - {None}
    if not names:
        return
    from sorl.collapse.band import read_bands  # its arrays take a second to load

    for name in sorted(map(str, names)):
        read_bands(baseline_file(runs, name), name)


def prepare(runs: Path, cell: Cell) -> Path:
    """Make the folder of a cell, with its resolved `config.toml` and its names in `run.json`.

    The baseline that it names is copied: one that is saved again does not change how this run is judged.
    """
    folder = folder_of(runs, cell)
    folder.mkdir(parents=True, exist_ok=True)
    settings = expand(_flat(cell.settings.model_dump(mode="json")), "the settings")
    write(folder / "config.toml", tomli_w.dumps(settings))
    _write_identity(folder, identity(cell))
    baseline = cell.settings.record.baseline
    if baseline is not None and not (folder / COPY).exists():
        write(folder / COPY, read_text(baseline_file(runs, baseline), LARGEST))
    return folder


def identity(cell: Cell) -> dict[str, Any]:
    """Return the names under which a run's rows are filed; the trainer cannot know them from the settings."""
    names = ("run_id", "experiment", "algorithm", "arm", "seed", "config_hash", "generation")
    return {name: getattr(cell, name) for name in names}


def read_identity(folder: Path) -> dict[str, Any]:
    """Return the run's `run.json`; empty if it is missing or unreadable, and then the grid
    writes it again.
    """
    with suppress(OSError, ValueError):
        names = from_json(read_text(folder / "run.json", MIB))
        return names if isinstance(names, dict) else {}
    return {}


def next_attempt(folder: Path, begun: bool) -> int:
    """Count one more attempt in `run.json` and return its number, from 1; only while holding the claim."""
    attempt = 1 + int(read_identity(folder).get("attempt") or begun)
    _write_identity(folder, {"attempt": attempt})
    return attempt


def write_experiment(runs: Path, experiment: FolderName, question: str, toml: str) -> None:
    """Keep the grid file with its runs, and append its row of table `experiment` if the file changed."""
    file = runs / experiment / "experiment.toml"
    if not _holds(file, toml):
        append(
            runs / experiment, "experiment", {"experiment": experiment, "question": question, "toml": toml}
        )
        write(file, toml)


def checkpoint(folder: Path) -> int | None:
    """Steps done at the newest complete checkpoint; None without one."""
    files = (folder / "checkpoints").glob("[0-9]*/progress.json")
    return max((int(f.parent.name) for f in files if f.parent.name.isdigit()), default=None)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key; what is switched off is written as "none", as TOML has no null."""
    return {key: "none" if value is None else value for key, value in flatten(settings).items()}


def _write_identity(folder: Path, changes: Mapping[str, Any]) -> None:
    write(
        folder / "run.json",
        json.dumps({**read_identity(folder), **changes}, indent=1, ensure_ascii=False) + "\n",
    )


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text


def write(path: Path, text: str) -> None:
    """Replace the text of a file at once; one that holds it stays as it is."""
    if not _holds(path, text):
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        with naming(path):
            unfinished.write_text(text, encoding="utf-8")
            unfinished.rename(path)


def claim(folder: Path) -> IO[str] | None:
    """Lock the cell for this grid until the handle is closed; None if another grid has it or a trainer still
    runs.
    """
    handle = lock_file(folder / "claim")
    if handle is not None and held(folder):
        handle.close()
        return None
    return handle


def holder(folder: Path) -> str:
    """Return which process trains a cell and how to end it, to be added to a sentence; "" if not known."""
    names = ("lock", "claim")  # of the trainer, and of the grid that watches it
    pid = next(filter(None, (lock_holder(folder / name) for name in names if held(folder, name))), None)
    if pid is None:
        return ""
    status = ""
    with suppress(psutil.Error):
        status = psutil.Process(pid).status()
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return f", PID {pid}, which is stopped: `kill -CONT {pid}` continues it, `kill -KILL {pid}` ends it"
    return f", PID {pid}; `kill {pid}` ends it"


# The kinds of event that the grid writes: severity and meaning.
KINDS = {
    "resumed": ("info", "the same command continued the run; the value is the number of the new attempt"),
    "retried": ("warning", "an attempt failed and the next one began at once; the value is its number"),
    "interrupted": ("info", "Ctrl-C or SIGTERM; the run wrote a checkpoint if it had begun"),
    "hang": ("critical", "no sign of life for `--hang-seconds`, so the trainer was killed"),
    "out_of_memory": ("critical", "an allocator failed, or the cell went over the limit of `--memory`"),
    "killed": ("critical", "a signal ended the trainer, or its Ray worker died"),
    "failed": ("critical", "an exception ended the trainer; the traceback is in console.log"),
}


def write_event(folder: Path, kind: str, step: int | None, message: str, value: float | None = None) -> None:
    """Append an event of one of KINDS to the run in `folder`; KeyError for another kind."""
    row = {"run_id": folder.name, "step": step, "kind": kind, "severity": KINDS[kind][0], "diagnostic": ""}
    append(folder, "event", {**row, "value": value, "message": message})


def append(folder: Path, name: str, row: Mapping[str, Any]) -> None:
    """Write one row of table `name` as a segment of its own under `folder`; missing columns are NULL."""
    schema = pa.schema([(column.name, ARROW[column.type]) for column in table(name).columns])
    segments = folder / "segments" / name
    segments.mkdir(parents=True, exist_ok=True)
    number = 1 + max(
        (int(f.stem.removeprefix(_PREFIX)) for f in segments.glob(f"{_PREFIX}*.parquet")), default=-1
    )
    target = segments / f"{_PREFIX}{number:06d}.parquet"
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    with naming(target):
        pq.write_table(pa.Table.from_pylist([{"written_at": now(), **row}], schema=schema), unfinished)
        unfinished.rename(target)


def last_row(folder: Path) -> dict[str, Any] | None:
    """Return the row of table `run` with the latest `written_at`; None for a run that was never queued."""
    rows = list(chain.from_iterable(part.to_pylist() for part in read_segments(folder, "run")))
    return max(rows, key=lambda row: row.get("written_at") or datetime.min, default=None)


def change(folder: Path, identity: Mapping[str, Any], **changes: Any) -> None:
    """Append a row to table `run`: the last one with `identity` and `changes`; other columns are NULL."""
    append(folder, "run", {**(last_row(folder) or {}), **identity, "written_at": now(), **changes})


def read_segments(folder: Path, name: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """The readable segments of a table, in order; the store sets torn ones aside, and what is no file is
    skipped.
    """
    for file in sorted((folder / "segments" / name).glob("[!.]*.parquet")):
        if file.is_file():
            with suppress(pa.ArrowException, OSError, KeyError):
                yield pq.read_table(file, columns=columns)


def status_of(row: Mapping[str, Any] | None, alive: bool) -> str:
    """Return the status to show: that of the last row, but a run whose trainer is dead is not running."""
    status = str((row or {}).get("status") or "queued")
    return "interrupted" if status == "running" and not alive else status


def newest_start(cell: Cell, runs: Path) -> Cell:
    """Return the newest start of a cell in `runs`.

    A folder without a configuration is no start yet: its grid was killed while it made it.
    """
    first = cell.first
    generations = [1]
    for folder in (runs / cell.experiment).glob(f"{first.run_id}-g*"):
        number = folder.name.removeprefix(f"{first.run_id}-g")
        if number.isdecimal() and (folder / "config.toml").is_file():
            generations.append(int(number))
    newest = replace(first, generation=max(generations))
    if newest.settings.guard is None:
        return newest
    folder = folder_of(runs, newest)
    started = rolled_back(newest, folder)
    rollback = Rollback.read(folder)
    if rollback is None or (last_row(folder) or {}).get("status") != "finished":
        return started
    return next_start(started, rollback)


@dataclass(frozen=True)
class Past:
    """A finished run."""

    folder: Path
    outcome: str  # empty if it is too short for the collapse rule
    seconds: float  # of training

    @property
    def collapsed(self) -> bool | None:
        """Whether it collapsed or was falling at its end: a search continues below it. None if that is not
        known.
        """
        return self.outcome in (*COLLAPSED, *UNDECIDED) if self.outcome else None


class History:
    """The finished runs of a folder, each read once; with `since`, only those that ended later."""

    def __init__(self, runs: Path, since: datetime | None = None) -> None:
        self._runs = runs
        self._since = since or datetime.min
        self._past: dict[str, Past] = {}

    def past(self, cell: Cell) -> Past | None:
        """Return how the newest start of the cell ended; None if it is not finished."""
        name = cell.first.run_id
        if name not in self._past:
            folder = folder_of(self._runs, newest_start(cell, self._runs))
            row = last_row(folder) or {}
            if row.get("status") != "finished" or (row.get("ended_at") or datetime.min) < self._since:
                return None
            self._past[name] = Past(folder, row.get("outcome") or "", float(row.get("seconds") or 0.0))
        return self._past[name]

    def elsewhere(self, experiment: FolderName, arm: str, seed: int) -> Path | None:
        """Return the folder of the newest finished run of an arm of another experiment; None without one."""
        finished = []
        for folder in (self._runs / experiment).glob("*/"):
            names = read_identity(folder)
            row = (last_row(folder) or {}) if (names.get("arm"), names.get("seed")) == (arm, seed) else {}
            if row.get("status") == "finished":
                finished.append((str(row.get("started_at") or ""), folder))
        return max(finished)[1] if finished else None


def mean_factor(folder: Path) -> float | None:
    """Mean of `stabiliser_factor` over the updates of a run; None where none was recorded."""
    values: list[float] = []
    for rows in read_segments(folder, "minibatch", ["stabiliser_factor"]):
        with suppress(ValueError, KeyError):  # text in the column, or no such column
            values += [float(value) for value in rows["stabiliser_factor"].to_pylist() if value is not None]
    return sum(values) / len(values) if values else None


def edits(runs: Path, cells: Sequence[Cell]) -> list[str]:
    """Return a line for every edit that makes `cells` new: what changed since the last run of the same arm
    and seed.
    """
    changed: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))  # what -> arm -> seeds
    for cell in cells:
        same_arm_and_seed = f"{cell.first.run_id.rpartition('-')[0]}-[0-9a-f]*/config.toml"
        earlier = sorted(
            (runs / cell.experiment).glob(same_arm_and_seed), key=lambda file: file.stat().st_mtime
        )
        with suppress(OSError, ValueError):  # unreadable settings: nothing to compare with
            was = _flat(from_toml(read_text(earlier[-1], MIB))) if earlier else {}
            now = _flat(cell.settings.model_dump(mode="json"))
            keys = [key for key in dict.fromkeys([*now, *was]) if was and was.get(key) != now.get(key)]
            keys = [key for key in keys if key not in COSMETIC]
            if what := "; ".join(
                f"{key} = {was.get(key, 'nothing')}, now {now.get(key, 'nothing')}" for key in keys
            ):
                changed[what][cell.arm].append(str(cell.seed))
    named = []
    for arms in changed.values():
        each = (f"{arm} seeds {', '.join(seeds)}" for arm, seeds in arms.items())
        named.append("; ".join(each))
    return [f"{names} ran before with {what}" for names, what in zip(named, changed, strict=True)]
