"""`sorl import FOLDER` of token dumps: each becomes a run with turns, tokens and stored batches."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sorl.cli.tables import echo, note
from sorl.spec import InputError
from sorl.spec.files import lock_file
from sorl.spec.names import FolderName, folder_to_write

if TYPE_CHECKING:
    from sorl.importing.dumps.record import Decode, DumpRecorder
    from sorl.importing.dumps.rows import Coverage, Dump

LOOK_SECONDS = 2.0  # between two looks at a folder that is followed
LOOK_SHARE = 60.0  # a look that takes a second is followed by a pause of a minute
SAY_SECONDS = 10.0  # between two lines on how far an import is


@dataclass
class OpenRun:
    """A dump that is being imported, and the run that it becomes."""

    dump: Dump
    run_id: str
    recorder: DumpRecorder
    lock: IO[str]
    steps: int = 0  # that were recorded in this session


class DumpImporter:
    """Imports the dumps of a source, and what is added to them while it is followed."""

    def __init__(self, dumps: list[Dump], experiment: Path, tokenizer: Path | None = None) -> None:
        self._experiment = experiment
        self._tokenizer = tokenizer
        self._coverage: dict[str, Coverage] = {}
        self._said = time.monotonic()
        self.runs = [self._open(dump) for dump in dumps]

    def look(self, *, is_live: bool = False) -> int:
        """Record what is new in every dump; returns how many steps that were."""
        new_steps = 0
        for run in self.runs:
            before = run.steps
            for step in run.dump.steps(run.recorder.last_step, is_live=is_live):
                run.recorder.record(step)
                run.steps += 1
                self._say_progress(run, step.number)
            if run.steps > before:
                run.recorder.flush(is_live=is_live)
            new_steps += run.steps - before
        return new_steps

    def follow(self) -> None:
        """Look again and again, until Ctrl-C."""
        from sorl.diagnosis.standing import counted

        with suppress(KeyboardInterrupt):
            while True:
                began = time.monotonic()
                if new_steps := self.look(is_live=True):
                    note(f"{counted(new_steps, 'step')} recorded")
                time.sleep(max(LOOK_SECONDS, LOOK_SHARE * (time.monotonic() - began)))

    def close(self) -> list[Dump]:
        """Write what is left, and say of each run what was read, what was not, and what was assumed.

        Returns the dumps of which no step was read; they leave no run behind.
        """
        empty: list[Dump] = []
        for run in self.runs:
            run.recorder.finish()
            run.lock.close()
            if run.recorder.last_step >= 0:
                report(run)
            else:
                shutil.rmtree(self._experiment / run.run_id, ignore_errors=True)
                empty.append(run.dump)
        return empty

    def _open(self, dump: Dump) -> OpenRun:
        from sorl.importing.dumps.record import DumpRecorder, Identity

        run_id = run_id_of(dump, self._experiment.name)
        folder = folder_to_write(self._experiment.parent, FolderName(self._experiment.name, "experiment"))
        folder = folder / run_id
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_file(folder / "lock")
        if lock is None:
            raise InputError(f"another process imports '{run_id}'; wait for it, or give another --name")
        identity = Identity(run_id, self._experiment.name, folder)
        decode = decoder_of(self._tokenizer) if self._tokenizer else decoder_beside(dump)
        return OpenRun(dump, run_id, DumpRecorder(dump, identity, decode), lock)

    def _say_progress(self, run: OpenRun, step: int) -> None:
        now = time.monotonic()
        if now - self._said > SAY_SECONDS:
            self._said = now
            note(f"{run.run_id}: step {step} read, {run.recorder.rows:,} rows so far")


def run_id_of(dump: Dump, experiment: str) -> str:
    """The id of the run that a dump becomes: the same whenever it is imported into an experiment."""
    plain = re.sub(r"[^0-9A-Za-z._-]+", "-", dump.folder.resolve().name).strip("-.")[:60] or "dump"
    digest = sha256(f"{dump.folder.resolve()}\0{experiment}".encode(errors="replace")).hexdigest()[:6]
    return f"{plain}-{digest}"


def decoder_beside(dump: Dump) -> Decode | None:
    """What turns a token id into its text, from the tokenizer that a dump brings along; None without one."""
    folder = dump.tokenizer
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    return decoder_of(folder)


def decoder_of(tokenizer: Path) -> Decode | None:
    """What turns a token id into its text, from a folder with `tokenizer.json`; None without `tokenizers`."""
    file = tokenizer if tokenizer.is_file() else tokenizer / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"no tokenizer in '{tokenizer}': a folder with tokenizer.json is needed")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        note("token texts are left out: run `pip install tokenizers` to have them")
        return None
    try:
        loaded = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises nothing else
        raise InputError(f"'{file}' cannot be read as a tokenizer: {error}") from None
    return lambda token: str(loaded.decode([token], skip_special_tokens=False))


def report(run: OpenRun) -> None:
    """Print what of a dump was read, and what its reader has to say."""
    from sorl.diagnosis.standing import counted

    recorder = run.recorder
    size = f"{counted(run.steps, 'step')}, {counted(recorder.rows, 'row')}"
    echo(f"{run.run_id}: {size} of {run.dump.trainer}, '{run.dump.folder}'")
    for sentence in recorder.sentences():
        echo(f"note: {sentence}")
    echo(f"To look at it: sorl diagnose {run.run_id}, or sorl app")
    echo()
