"""Files of a folder that may be logs or anything else: only those with steps of metrics are read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from sorl.importing.formats import Format, runs_in
from sorl.importing.names import is_step, place
from sorl.importing.rows import Rows
from sorl.spec import InputError
from sorl.spec.files import MIB, open_file

LOOSE = (".json", ".txt", ".out", ".log")  # endings that programs give to many other files
SHORTEST = 3  # rows
_WHOLE = 8 * MIB  # bytes up to which a file is looked at as a whole
_BEGINNING = 4 * MIB  # bytes of a larger one
_END = MIB
_RUNS = 8  # of a file that are looked at
# columns that a table of answers or of an evaluation has too
_OF_ANY_TABLE = frozenset(
    ("step.reward", "step.success", "step.heldout_success", "step.response_tokens", "step.turns")
)


def is_log(path: Path, its_format: Format) -> bool:
    """Whether a file holds steps of several metrics of which one is known at least."""
    try:
        if path.stat().st_size <= _WHOLE or its_format.name == "JSON":
            return any(map(_has_steps_of_metrics, islice(runs_in(path, its_format), _RUNS)))
        with _sample(path) as sample:
            return any(map(_has_steps_of_metrics, islice(runs_in(sample, its_format), _RUNS)))
    except (InputError, OSError):
        return False


def _has_steps_of_metrics(rows: Rows) -> bool:
    known = {place_of[0] for place_of in map(place, rows.metrics) if place_of is not None}
    if len(rows) < SHORTEST or len(rows.metrics) < 2 or not known:
        return False
    return any(map(is_step, rows.names)) or bool(known - _OF_ANY_TABLE)


@contextmanager
def _sample(path: Path) -> Iterator[Path]:
    """Have the beginning and the end of a file as one: a console may say much before its first metric."""
    with tempfile.TemporaryDirectory(prefix="sorl-") as folder:
        target = Path(folder) / path.name
        with open_file(path) as file, target.open("wb") as sample:
            sample.write(file.read(_BEGINNING))
            file.seek(-_END, os.SEEK_END)
            file.readline()
            sample.write(b"\n" + file.read(_END))
        yield target
