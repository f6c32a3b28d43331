"""Logs that a browser sends: read and diagnosed without being kept, filed in the runs folder on demand."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sorl.app import page
from sorl.diagnosis.diagnose import diagnose
from sorl.diagnosis.finding import Diagnosis
from sorl.importing.filing import runs_from
from sorl.importing.logs import Imported, log_of, sources
from sorl.importing.unpack import unpacked_below
from sorl.spec import InputError
from sorl.spec.files import MIB, words_of
from sorl.spec.names import FolderName, folder_to_write
from sorl.store.example import is_example

LIMIT_MIB = 100  # of a file; `maxUploadSize` in config.toml is the same
RUNS = 200  # of a file that can be chosen from
_WAITING = ".uploads"  # of a runs folder: files that are being filed; the store looks past names with a dot
_SECONDS = 300.0  # that filing may take
_NAME = 60  # characters of the name of a file


@dataclass(frozen=True)
class Given:
    """What a user hands over: the content of a file, and its name as the browser says it."""

    name: str
    content: bytes

    @cached_property
    def digest(self) -> str:
        """What tells two files apart; it is the same whenever a file is given."""
        return sha256(f"{self.file_name}\0".encode() + self.content).hexdigest()[:16]

    @property
    def file_name(self) -> str:
        """A name that is safe as one file: no separator, no control character, not hidden, not long."""
        last = re.split(r"[/\\]", self.name)[-1]
        plain = re.sub(r"[^\w.+=-]+", "-", last)[-_NAME:]
        return plain.strip("-.") or "log"

    def write_below(self, folder: Path) -> Path:
        """Write the file into a folder of its own name: logs that all have one name are named by theirs."""
        home = folder / (Path(self.file_name).stem or "log")
        home.mkdir(parents=True, exist_ok=True)
        path = home / self.file_name
        path.write_bytes(self.content)
        return path


class Part(NamedTuple):
    """A run that a file holds, and where in the file it stands."""

    run: Imported
    path: Path


@dataclass
class Upload:
    """What was read of a file: its runs, and a line for each part that is none."""

    parts: list[Part]
    refused: list[str]
    left_out: int  # runs beyond RUNS
    _diagnoses: dict[int, Diagnosis] = field(default_factory=dict)

    def diagnosis(self, number: int) -> Diagnosis:
        """Return the diagnosis of one of its runs."""
        if number not in self._diagnoses:
            self._diagnoses[number] = diagnose(log_of(*self.parts[number]))
        return self._diagnoses[number]


def read(given: Given) -> Upload:
    """Read the runs of a file by way of a temporary folder. Raises InputError where none can be read."""
    if len(given.content) > LIMIT_MIB * MIB:
        raise InputError(
            f"'{given.file_name}' is larger than {LIMIT_MIB} MiB; type on a terminal: sorl diagnose FILE"
        )
    with TemporaryDirectory(prefix="sorl-upload-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        with _as_the_user_knows_it(folder, given):
            path = given.write_below(folder)
            with unpacked_below(folder):
                upload = _runs_of(path)
        upload.refused = [_known_to_user(line, path.parent) for line in upload.refused]
    return upload


def _runs_of(path: Path) -> Upload:
    """Read every run of a file. Raises InputError where there is none."""
    upload = Upload([], [], 0)
    for source in sources(path, upload.refused):
        try:
            for run in source.runs(upload.refused):
                if len(upload.parts) < RUNS:
                    upload.parts.append(Part(run, source.path))
                else:
                    upload.left_out += 1
        except InputError as error:
            upload.refused.append(str(error))
    if not upload.parts:
        raise InputError("; ".join(upload.refused[:3]) or f"'{path}' holds no log that can be read")
    return upload


@contextmanager
def _as_the_user_knows_it(folder: Path, given: Given) -> Iterator[None]:
    """Have an error of this block name the file without the folder that it was written to."""
    try:
        yield
    except InputError as error:
        home = folder / (Path(given.file_name).stem or "log")
        raise InputError(_known_to_user(str(error), home)) from None
    except OSError as error:
        raise InputError(f"'{given.file_name}' cannot be written to a folder: {words_of(error)}") from None


def _known_to_user(line: str, home: Path) -> str:
    return line.replace(f"{home}{os.sep}", "").replace(str(home), home.name)


# Filing


def why_not_filed(runs: Path) -> str:
    """Return why nothing can be filed in a runs folder, as a sentence; empty where it can."""
    if is_example(runs):
        return "This is the recorded example, in which nothing is filed. Start the app on a folder of yours."
    there = runs.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return f"Nothing can be filed: this app must not write to its runs folder, {runs.absolute()}."
    return ""


def file_in(runs: Path, given: Given, experiment: str) -> list[str]:
    """File the runs of a file, as `sorl import` does, and return their ids. Raises InputError."""
    name = FolderName(experiment, "the experiment")
    folder = folder_to_write(runs, name)
    if reason := why_not_filed(runs):
        raise InputError(reason)
    # A run is known by the place of its log: the same file has the same place, so filed twice it is one run.
    place = runs.absolute() / _WAITING / given.digest
    try:
        with _as_the_user_knows_it(place, given):
            path = given.write_below(place)
            words = ["--runs", str(runs.absolute()), "import", str(path), "--name", name]
            page.run_sorl(words, f"sorl import {given.file_name} --name {name}", _SECONDS)
            return runs_from(folder, path)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):  # another file is being filed
            place.parent.rmdir()
