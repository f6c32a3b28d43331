"""`sorl import SOURCE`: the log of another trainer becomes a run, for the app, SQL, compare, diagnose and
report.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from typer import Argument, Context, Option

from sorl.cli.tables import echo, note, note_refused, print_table
from sorl.grid.cell import expand
from sorl.grid.folder import write
from sorl.spec import InputError
from sorl.spec.files import MIB, from_json, lock_file, read_text
from sorl.spec.names import FolderName
from sorl.store.segments import now

if TYPE_CHECKING:
    from sorl.importing.logs import Imported, Source

_WHAT = (
    "A log, or a folder with logs: JSON lines, CSV, Parquet, trainer_state.json, TensorBoard, W&B, SwanLab,"
    " trackio, MLflow, Aim, or verl's console."
)
RECORD = "imports.json"  # of an experiment's folder: what was imported, and what it looked like then
_SLICE = 100_000  # steps of a segment
# seconds between two looks; times of what a look takes
_PAUSE = 1.0
_SHARE = 5.0


def import_(
    ctx: Context,
    source: Path = Argument(..., metavar="SOURCE", help=_WHAT),
    name: str = Option("imported", metavar="NAME", help="The experiment that the runs are filed under."),
    follow: bool = Option(False, "--follow", help="Keep reading while the trainer writes, until Ctrl-C."),
) -> None:
    """Turn the log of another trainer into a run: the app, SQL, compare, diagnose and report
    then work on it.
    """
    importer = Importer(source, ctx.obj / FolderName(name, "--name"), live=follow)
    importer.look(say=True)
    if follow:
        note(f"following {source}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):
            while True:
                began = time.monotonic()
                with suppress(InputError, OSError):  # a file that is just being replaced
                    importer.look(say=False)
                time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - began)))
        importer.end()


class Importer:
    """The runs of a source, and what of each is on the disk; while `live`, its last step waits for the next
    one.
    """

    def __init__(self, source: Path, experiment: Path, *, live: bool = False) -> None:
        self.source = source
        self.experiment = experiment
        self._live = live
        # by run_id: the run and its last step on the disk
        self._written: dict[str, tuple[Imported, int]] = {}
        self._locks: dict[str, IO[str]] = {}

    def look(self, *, say: bool) -> None:
        """Import what is new or has changed. Raises InputError where no source can be read."""
        from rich.console import Console
        from rich.progress import track

        from sorl.importing.logs import sources

        refused = list[str]()
        found = sources(self.source, refused)
        record = dict[str, Any]()
        with suppress(OSError, ValueError, TypeError):
            record |= from_json(read_text(self.experiment / RECORD, 64 * MIB))
        marks = {one: one.fingerprint() for one in found}
        fresh = []
        for one in found:
            entry: Any = record.get(str(one.path.resolve()))
            known = isinstance(entry, dict) and entry.get("fingerprint") == marks[one] and entry.get("runs")
            if not known or not all(
                (self.experiment / str(run) / "segments").is_dir() for run in entry["runs"]
            ):
                fresh.append(one)
        written = 0
        quiet = not say or len(fresh) == 1 or not sys.stderr.isatty()
        for one in track(fresh, "importing", console=Console(stderr=True), disable=quiet, transient=True):
            runs: list[str] = []
            try:
                for run in one.runs(refused):
                    runs.append(run_id := _id_of(one, run, runs))
                    self._write(run_id, run)
                    if say and len(found) == 1:
                        report(run_id, run, one)
            except InputError as error:
                if len(found) == 1:
                    raise
                refused.append(str(error))
            if runs:
                record[str(one.path.resolve())] = {"fingerprint": marks[one], "runs": runs}
            written += len(runs)
        if written:
            write(self.experiment / RECORD, json.dumps(record, indent=1))
        if say:
            note_refused(refused)
        if fresh and not written and len(fresh) == len(found):
            raise InputError(f"'{self.source}' holds no log that can be read")
        if say:
            same = len(found) - len(fresh)
            kept = f"; {same} source{'s' * (same != 1)} unchanged since the last import" if same else ""
            echo(f"{written} run{'s' * (written != 1)} imported as experiment {self.experiment.name}{kept}")

    def end(self) -> None:
        """Write what has come since the last look, and the last step of the followed runs."""
        self._live = False
        with suppress(InputError, OSError):
            self.look(say=False)
        for run_id, (run, _) in [*self._written.items()]:
            self._write(run_id, run)
        for lock in self._locks.values():
            lock.close()

    def _write(self, run_id: str, run: Imported) -> None:
        """Bring the run's folder up to the run: steps are appended where it has only grown."""
        from sorl.diagnostics.rules import Event
        from sorl.importing.logs import events
        from sorl.recording.segments import append

        folder = self.experiment / run_id
        folder.mkdir(parents=True, exist_ok=True)
        if self._live and run_id not in self._locks:  # as its trainer would: as long the store says `running`
            if (lock := lock_file(folder / "lock")) is None:
                raise InputError(f"another process follows '{run_id}'")
            self._locks[run_id] = lock
        before, until = self._written.get(run_id, (run, -1))
        last = int(run.steps[-1]) - self._live
        grown = until >= 0 and (folder / "segments").is_dir() and _grew(before, run, until)
        home, since = (folder, until) if grown else (folder / ".importing", -1)
        self._written[run_id] = (run, -1)  # what Ctrl-C cuts off here is written again, all of it, at the end
        shutil.rmtree(folder / ".importing", ignore_errors=True)
        for table, columns in run.tables.items():
            first, end = (int(columns["step"].searchsorted(step, "right")) for step in (since, last))
            for at in range(first, end, _SLICE):
                part = {name: values[at : min(at + _SLICE, end)] for name, values in columns.items()}
                own = {name: part.pop(name) for name in run.kept if table == "step"}
                append(home, run_id, table, part, own)
        verdict, found = events(run)
        if found := [event for event in found if since < event.step <= last]:
            columns = {field.name: [getattr(event, field.name) for event in found] for field in fields(Event)}
            append(home, run_id, "event", columns)
        append(home, run_id, "run", self._row(run, verdict))
        if not grown:  # the new folder takes the place of the old; the store looks past names with a dot
            old = folder / ".replaced"
            shutil.rmtree(old, ignore_errors=True)
            if (folder / "segments").exists():
                (folder / "segments").rename(old)
            (home / "segments").rename(folder / "segments")
            shutil.rmtree(old, ignore_errors=True)
            home.rmdir()
        self._written[run_id] = (run, last)

    def _row(self, run: Imported, verdict: dict[str, Any]) -> dict[str, Any]:
        """Return the row of table `run`; runs whose names differ by a seed alone are replicates."""
        seeded = re.fullmatch(r"(.+?)[-_.](?:s|seed)[-_=]?(\d{1,9})", run.name)
        seed = run.settings.get("seed", int(seeded[2]) if seeded else 0)
        if self._live and verdict["outcome"] not in ("collapsed", "diverged"):
            verdict = verdict | {"outcome": None}  # as of a run in training
        return verdict | {
            "experiment": self.experiment.name,
            "algorithm": "unknown",
            "arm": seeded[1] if seeded else run.name,
            "seed": seed if type(seed) is int and 0 <= seed < 2**63 else 0,  # a configuration may say `yes`
            "config": json.dumps(expand(run.settings, "the settings")),
            "reading": run.reading.to_json(),
            "status": "running" if self._live else run.status,
            "steps": int(run.steps[-1]) + 1,
            "started_at": None,
            "ended_at": None if self._live else now(),
        }


def _id_of(source: Source, run: Imported, others: list[str]) -> str:
    """Return the id of a run: the same whenever its source is read, and none of the `others` of
    the source.
    """
    key = f"{source.path.resolve()}\0{run.name}"
    plain = re.sub(r"[^0-9A-Za-z._-]+", "-", run.name).strip("-.")[:60] or "run"
    digests = (sha256(f"{key}\0{n}".encode(errors="replace")).hexdigest()[:6] for n in range(len(others) + 1))
    return next(free for digest in digests if (free := f"{plain}-{digest}") not in others)


def report(run_id: str, run: Imported, source: Source) -> None:
    """Print what was read as what, what was kept under its own name, what was left out, and the settings."""
    echo(f"{run_id}: {len(run.steps):,} steps of {source.format.name}, '{source.path}'\n")
    print_table(["read as", "metric"], [[place, metric] for place, metric in sorted(run.read.items())])
    settings = [f"{key} = {value}" for key, value in run.settings.items()] or ["none found"]
    said = {
        "kept as columns of table step": list(run.kept),
        "left out, as there are too many": run.left,
        "settings": settings,
    }
    echo()
    for what, words in said.items():
        if words:
            more = f" and {len(words) - 12} more" if len(words) > 12 else ""
            echo(f"{what}: {', '.join(words[:12])}{more}")
    for line in run.reading.warnings:
        echo(f"warning: {line}")
    for line in run.reading.notes:
        echo(f"note: {line}")
    echo()


def _grew(before: Imported, run: Imported, until: int) -> bool:
    """Return whether the steps up to `until` are as they were."""
    for table, columns in run.tables.items():
        old = before.tables.get(table, {})
        if not old.keys() <= columns.keys():
            return False
        for name, values in columns.items():
            own = values[columns["step"] <= until]
            past = old[name][old["step"] <= until] if name in old else np.ma.masked_all(len(own))
            same_nulls = np.array_equal(np.ma.getmaskarray(past), np.ma.getmaskarray(own))
            if not same_nulls or not np.array_equal(
                np.ma.filled(past, 0), np.ma.filled(own, 0), equal_nan=True
            ):
                return False
    return True
