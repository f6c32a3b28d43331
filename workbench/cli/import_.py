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
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

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
    from collections.abc import Sequence

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
        # by run_id: the run and its last step on the disk
        self._written: dict[str, tuple[Imported, int]] = {}
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
        from rich.console import Console
        from rich.progress import track

        from sorl.diagnosis.standing import counted
        from sorl.importing.logs import sources
        from sorl.importing.mapping import NameMap

        refused = list[str]()
        found = sources(self.source, refused, self._mapping or NameMap())
        record = record_of(self.experiment)
        marks = {one: one.fingerprint() for one in found}
        fresh = [one for one in found if not self._is_unchanged(record.get(_key_of(one)), marks[one])]
        quiet = not say or len(fresh) == 1 or not sys.stderr.isatty()
        written = 0
        for one in track(fresh, "importing", console=Console(stderr=True), disable=quiet, transient=True):
            try:
                runs = self._import(one, refused, say=say and len(found) == 1)
            except InputError as error:
                if len(found) == 1:
                    raise
                refused.append(str(error))
                continue
            record[_key_of(one)] = {"fingerprint": marks[one], "runs": runs}
            written += len(runs)
        if written:
            write(self.experiment / RECORD, json.dumps(record, indent=1))
        if say:
            note_refused(refused)
        if fresh and not written and len(fresh) == len(found):
            raise InputError(f"'{self.source}' holds no log that can be read")
        if say:
            same = len(found) - len(fresh)
            unchanged = f"; {counted(same, 'source')} unchanged since the last import" if same else ""
            echo(f"{counted(written, 'run')} imported as experiment {self.experiment.name}{unchanged}")

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
        for run_id, (run, _) in [*self._written.items()]:
            self._write(run_id, run)
            for sentence in (*run.reading.warnings, *run.reading.notes):
                note(f"{run_id}: {sentence}")
        if not self._written:
            note("nothing was imported")
        for lock in self._locks.values():
            lock.close()

    def _write(self, run_id: str, run: Imported) -> None:
        """Bring the run's folder up to the run: steps are appended where it has only grown."""
        from sorl.collapse.events import Event
        from sorl.importing.logs import events
        from sorl.recording.segments import append

        folder = self.experiment / run_id
        folder.mkdir(parents=True, exist_ok=True)
        if self._live and run_id not in self._locks:  # as its trainer would: as long the store says `running`
            if (lock := lock_file(folder / "lock")) is None:
                raise InputError(f"another process follows '{run_id}'")
            self._locks[run_id] = lock
        before, until = self._written.get(run_id, (run, -1))
        if int(before.steps[0]) < int(run.steps[0]):  # the log was rotated: its first part is elsewhere
            run = run.behind(before)
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
        verdict, found = events(run, self._band_rules)
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
            own = values[columns["step"] <= until]
            past = old[name][old["step"] <= until] if name in old else np.ma.masked_all(len(own))
            same_nulls = np.array_equal(np.ma.getmaskarray(past), np.ma.getmaskarray(own))
            if not same_nulls or not np.array_equal(
                np.ma.filled(past, 0), np.ma.filled(own, 0), equal_nan=True
            ):
                return False
    return True
