"""`sorl import SOURCE`: the log or token dump of another trainer becomes a run, for the app, SQL, compare,
diagnose and report.
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
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typer import Argument, Context, Option

from sorl.cli.shared import MAP, STANDARD_INPUT
from sorl.cli.tables import echo, note, note_refused, print_table
from sorl.grid.cell import expand
from sorl.grid.folder import write
from sorl.importing import standard_input
from sorl.importing.filing import DEFAULT, RECORD, record_of
from sorl.importing.standard_input import spooled
from sorl.spec import InputError
from sorl.spec.files import lock_file
from sorl.spec.names import FolderName, folder_to_write
from sorl.store.segments import now

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sorl.collapse.events import Rule
    from sorl.importing.dumps.rows import Dump
    from sorl.importing.logs import Imported, Source
    from sorl.importing.mapping import NameMap

_WHAT = (
    "A log, a folder with logs, or - for standard input: JSON lines, CSV, Parquet, trainer_state.json,"
    " TensorBoard, W&B, SwanLab, trackio, MLflow, Aim, or verl's console."
)
_SLICE = 100_000  # steps of a segment
# seconds between two looks; times of what a look takes
_PAUSE = 1.0
_SHARE = 5.0


def import_(
    ctx: Context,
    source: Path = Argument(..., metavar="SOURCE", help=_WHAT),
    name: str = Option(DEFAULT, metavar="NAME", help="The experiment that the runs are filed under."),
    follow: bool = Option(False, "--follow", help="Keep reading while the trainer writes, until Ctrl-C."),
    tokenizer: Path | None = Option(
        None, "--tokenizer", metavar="FOLDER", help="With tokenizer.json: the texts of a dump's tokens."
    ),
    name_map: list[str] | None = MAP,
    baseline: str | None = Option(
        None, "--baseline", metavar="NAME", help="A saved baseline: say where a run leaves its bands."
    ),
) -> None:
    """Turn the log or the token dump of another trainer into a run: the app, SQL, compare, diagnose and
    report then work on it.
    """
    from sorl.importing.mapping import NameMap

    experiment = FolderName(name, "--name")
    folder = folder_to_write(ctx.obj, experiment)
    mapping = NameMap.of(name_map)
    bands = _band_rules(ctx.obj, baseline)
    if str(source) == STANDARD_INPUT:
        if follow:
            raise InputError("--follow reads a file again and again, and standard input is read once")
        with spooled() as pasted:
            Importer(pasted, folder, mapping=mapping, band_rules=bands).look(say=True)
        return
    if dumps := _dumps_in(source):
        if baseline is not None:
            raise InputError("--baseline judges logs; a token dump is compared by `sorl diff BASELINE RUN`")
        _import_dumps(dumps, folder, tokenizer, is_live=follow)
        return
    if tokenizer is not None:
        raise InputError(f"'{source}' holds no token dump, so --tokenizer has nothing to decode")
    importer = Importer(source, folder, live=follow, mapping=mapping, band_rules=bands)
    if not follow:
        importer.look(say=True)
        return
    note(f"following {source}; Ctrl-C ends it")
    with suppress(KeyboardInterrupt):
        importer.follow()
    importer.end()


def _band_rules(runs: Path, name: str | None) -> list[Rule]:
    """Return the rules of a saved baseline. Raises InputError for one that is not there, or damaged."""
    if name is None:
        return []
    from sorl.collapse.band import band_rules, read_bands
    from sorl.spec.baselines import baseline_file

    return list(band_rules(read_bands(baseline_file(runs, name), name), name))


def _dumps_in(source: Path) -> list[Dump]:
    """The token dumps in a folder."""
    if not source.is_dir():
        return []
    from sorl.importing.dumps.find import dumps_in

    return dumps_in(source)


def _import_dumps(dumps: list[Dump], experiment: Path, tokenizer: Path | None, *, is_live: bool) -> None:
    """Import token dumps, and follow them if asked to."""
    from sorl.cli.import_dumps import DumpImporter

    importer = DumpImporter(dumps, experiment, tokenizer)
    try:
        if is_live:
            note(f"following {', '.join(str(dump.folder) for dump in dumps)}; Ctrl-C ends it")
            importer.follow()
        importer.look()
    except InputError:
        importer.close()  # what was read until then stays
        raise
    if empty := importer.close():
        first = empty[0]
        raise InputError(
            f"'{first.folder}' holds no step of {first.trainer} ({first.format}) that can be read"
        )


class _OnDisk(NamedTuple):
    """A run as it was written, and the last of its steps that lies on the disk; -1: none."""

    run: Imported
    last_step: int


class _Steps(NamedTuple):
    """The steps after one, up to and with the last."""

    after: int
    last: int


class Importer:
    """The runs of a source, and what of each is on the disk; while `live`, its last step waits for the next
    one.
    """

    def __init__(
        self,
        source: Path,
        experiment: Path,
        *,
        live: bool = False,
        mapping: NameMap | None = None,
        band_rules: Sequence[Rule] = (),
    ) -> None:
        self.source = source
        self._band_rules = band_rules
        self._mapping = mapping
        self.experiment = experiment
        self._live = live
        self._written: dict[str, _OnDisk] = {}  # by run_id
        self._locks: dict[str, IO[str]] = {}

    def follow(self) -> None:
        """Look again and again, and report the first run; what cannot be read yet is waited for."""
        waits_for = ""
        while True:
            began = time.monotonic()
            try:
                self.look(say=not self._written)
                waits_for = ""
            except (InputError, OSError) as error:  # not there yet, empty, or just being replaced
                if str(error) != waits_for:
                    waits_for = str(error)
                    note(f"waiting: {waits_for}")
            time.sleep(max(_PAUSE, _SHARE * (time.monotonic() - began)))

    def look(self, *, say: bool) -> None:
        """Import what is new or has changed. Raises InputError where no source can be read."""
        from sorl.importing.logs import sources
        from sorl.importing.mapping import NameMap

        refused = list[str]()
        logs = sources(self.source, refused, self._mapping or NameMap())
        record = record_of(self.experiment)
        fingerprints = {log: log.fingerprint() for log in logs}
        changed = [log for log in logs if not self._is_unchanged(record.get(_key_of(log)), fingerprints[log])]
        is_only_log = len(logs) == 1
        count = 0
        for log in _with_progress_bar(changed, is_shown=say):
            try:
                run_ids = self._import(log, refused, say=say and is_only_log)
            except InputError as error:
                if is_only_log:
                    raise
                refused.append(str(error))
                continue
            record[_key_of(log)] = {"fingerprint": fingerprints[log], "runs": run_ids}
            count += len(run_ids)
        if count:
            write(self.experiment / RECORD, json.dumps(record, indent=1))
        if say:
            note_refused(refused)
        if changed and not count and len(changed) == len(logs):
            raise InputError(f"'{self.source}' holds no log that can be read")
        if say:
            self._show_counts(count, len(logs) - len(changed))

    def _show_counts(self, imported_runs: int, unchanged_sources: int) -> None:
        from sorl.diagnosis.standing import counted

        unchanged = ""
        if unchanged_sources:
            unchanged = f"; {counted(unchanged_sources, 'source')} unchanged since the last import"
        echo(f"{counted(imported_runs, 'run')} imported as experiment {self.experiment.name}{unchanged}")

    def _is_unchanged(self, entry: Any, mark: str) -> bool:
        if not isinstance(entry, dict) or entry.get("fingerprint") != mark or not entry.get("runs"):
            return False
        return all((self.experiment / str(run) / "segments").is_dir() for run in entry["runs"])

    def _import(self, source: Source, refused: list[str], *, say: bool) -> list[str]:
        """Write the runs of a source, and return their ids."""
        runs: list[str] = []
        for run in source.runs(refused):
            run_id = _id_of(source, run, self.experiment.name, runs)
            runs.append(run_id)
            self._write(run_id, run)
            if say:
                report(run_id, run, source)
        return runs

    def end(self) -> None:
        """Write what has come since the last look, and the last step of the followed runs; say what was left
        out.
        """
        self._live = False
        with suppress(InputError, OSError):
            self.look(say=False)
        for run_id, on_disk in [*self._written.items()]:
            self._write(run_id, on_disk.run)
            for sentence in (*on_disk.run.reading.warnings, *on_disk.run.reading.notes):
                note(f"{run_id}: {sentence}")
        if not self._written:
            note("nothing was imported")
        for lock in self._locks.values():
            lock.close()

    def _write(self, run_id: str, run: Imported) -> None:
        """Bring the run's folder up to the run: steps are appended where it has only grown."""
        folder = self.experiment / run_id
        folder.mkdir(parents=True, exist_ok=True)
        if self._live:
            self._lock(run_id, folder)
        before = self._written.get(run_id, _OnDisk(run, -1))
        if int(before.run.steps[0]) < int(run.steps[0]):  # the log was rotated: its first part is elsewhere
            run = run.behind(before.run)
        last_step = int(run.steps[-1]) - self._live
        is_on_disk = before.last_step >= 0 and (folder / "segments").is_dir()
        # what Ctrl-C cuts off here is written again, all of it, at the end
        self._written[run_id] = _OnDisk(run, -1)
        new_folder = folder / ".importing"
        shutil.rmtree(new_folder, ignore_errors=True)
        if is_on_disk and _grew(before.run, run, before.last_step):
            self._append(folder, run_id, run, _Steps(before.last_step, last_step))
        else:
            self._append(new_folder, run_id, run, _Steps(-1, last_step))
            _put_in_place(new_folder, folder)
        self._written[run_id] = _OnDisk(run, last_step)

    def _lock(self, run_id: str, folder: Path) -> None:
        """Hold the lock of a run's folder as its trainer would: as long the store says `running`."""
        if run_id in self._locks:
            return
        lock = lock_file(folder / "lock")
        if lock is None:
            raise InputError(f"another process follows '{run_id}'")
        self._locks[run_id] = lock

    def _append(self, folder: Path, run_id: str, run: Imported, steps: _Steps) -> None:
        """Append these steps of a run, their events, and its row to the segments in a folder."""
        from sorl.collapse.events import Event
        from sorl.importing.logs import events
        from sorl.recording.segments import append

        for table in run.tables:
            _append_rows(folder, run_id, run, table, steps)
        verdict, all_events = events(run, self._band_rules)
        new_events = [event for event in all_events if steps.after < event.step <= steps.last]
        if new_events:
            names = [field.name for field in fields(Event)]
            columns = {name: list(map(attrgetter(name), new_events)) for name in names}
            append(folder, run_id, "event", columns)
        append(folder, run_id, "run", self._row(run, verdict))

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


def _append_rows(folder: Path, run_id: str, run: Imported, table: str, steps: _Steps) -> None:
    """Append the rows of these steps to a table, in slices."""
    from sorl.recording.segments import append

    columns = run.tables[table]
    first = int(columns["step"].searchsorted(steps.after, "right"))
    end = int(columns["step"].searchsorted(steps.last, "right"))
    own_names = run.kept if table == "step" else {}
    for start in range(first, end, _SLICE):
        rows = slice(start, min(start + _SLICE, end))
        ours = {name: values[rows] for name, values in columns.items() if name not in own_names}
        theirs = {name: columns[name][rows] for name in own_names}
        append(folder, run_id, table, ours, theirs)


def _put_in_place(new_folder: Path, folder: Path) -> None:
    """Have new segments take the place of the old ones; the store looks past names with a dot."""
    segments = folder / "segments"
    replaced = folder / ".replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if segments.exists():
        segments.rename(replaced)
    (new_folder / "segments").rename(segments)
    shutil.rmtree(replaced, ignore_errors=True)
    new_folder.rmdir()


def _with_progress_bar(logs: list[Source], *, is_shown: bool) -> Iterable[Source]:
    """Yield the logs, with a bar on a terminal where there are several."""
    from rich.console import Console
    from rich.progress import track

    is_quiet = not is_shown or len(logs) == 1 or not sys.stderr.isatty()
    return track(logs, "importing", console=Console(stderr=True), disable=is_quiet, transient=True)


def _key_of(source: Source) -> str:
    """Return the source as the record of an experiment names it; standard input by its content."""
    if source.path.name == standard_input.NAME:
        return f"{standard_input.NAME} {source.path.parent.name}"
    return str(source.path.resolve())


def _id_of(source: Source, run: Imported, experiment: str, others: list[str]) -> str:
    """Return the id of a run: the same whenever its source is read, another in another experiment, and none
    of the `others` of the source.
    """
    key = f"{_key_of(source)}\0{run.name}"
    if experiment != DEFAULT:
        key += f"\0{experiment}"
    plain = re.sub(r"[^0-9A-Za-z._-]+", "-", run.name).strip("-.")[:60] or "run"
    for number in range(len(others) + 1):
        digest = sha256(f"{key}\0{number}".encode(errors="replace")).hexdigest()[:6]
        run_id = f"{plain}-{digest}"
        if run_id not in others:
            return run_id
    raise AssertionError("of one id more than there are others one is free")


def report(run_id: str, run: Imported, source: Source) -> None:
    """Print what was read as what, what was kept under its own name, what was left out, and the settings."""
    is_pasted = source.path.name == standard_input.NAME
    origin = standard_input.NAME if is_pasted else f"'{source.path}'"
    echo(f"{run_id}: {len(run.steps):,} steps of {source.format.name}, {origin}\n")
    if run.read:
        print_table(["read as", "metric"], [[place, metric] for place, metric in sorted(run.read.items())])
    settings = [f"{key} = {value}" for key, value in run.settings.items()] or ["none found"]
    lists = {
        "kept as columns of table step": list(run.kept),
        "left out, as there are too many": run.left,
        "settings": settings,
    }
    echo()
    for title, words in lists.items():
        if words:
            more = f" and {len(words) - 12} more" if len(words) > 12 else ""
            echo(f"{title}: {', '.join(words[:12])}{more}")
    for line in run.reading.warnings:
        echo(f"warning: {line}")
    if run.reading.reward_metric and "step.success" not in run.read:
        used = f"the reward ({run.reading.reward_metric}) is used instead"
        echo(f"note: success: the log has none; {used}")
    for line in (*run.reading.notes, *run.reading.remarks.values()):
        echo(f"note: {line}")
    echo()


def _grew(before: Imported, run: Imported, until: int) -> bool:
    """Return whether the steps up to `until` are as they were."""
    for table, columns in run.tables.items():
        old = before.tables.get(table, {})
        if not old.keys() <= columns.keys():
            return False
        for name, values in columns.items():
            now = values[columns["step"] <= until]
            then = old[name][old["step"] <= until] if name in old else np.ma.masked_all(len(now))
            if not _are_equal(then, now):
                return False
    return True


def _are_equal(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two columns have the same values, NULLs and NaNs among them."""
    if not np.array_equal(np.ma.getmaskarray(left), np.ma.getmaskarray(right)):
        return False
    return np.array_equal(np.ma.filled(left, 0), np.ma.filled(right, 0), equal_nan=True)
