"""What people write about a run, a step, a trajectory or some of its tokens: table `note`, which only grows.

A note is a segment of one row in the folder of its run, so it is synced, copied and removed with the run. To
take one back another row names it: what was written once stays readable.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from sorl.recording.segments import schema_of
from sorl.spec import InputError
from sorl.store.notes import LONGEST
from sorl.store.segments import folder_of

TABLE = "note"
LONGEST_TAG = 80  # characters


@dataclass(frozen=True)
class PartNote:
    """A note on a run; on a step, a trajectory or tokens of it where these are given.

    Tokens are counted from 0, the last one included, as `token` tables count them.
    """

    text: str
    tag: str = ""
    step: int | None = None
    trajectory: int | None = None
    first_token: int | None = None
    last_token: int | None = None

    def check(self) -> None:
        """Raise InputError where the note has no text, is too long, or its place makes no sense."""
        if not self.text.strip():
            raise InputError("a note needs a text")
        if len(self.text) > LONGEST:
            raise InputError(f"a note has at most {LONGEST:,} characters, this one has {len(self.text):,}")
        if len(self.tag) > LONGEST_TAG:
            raise InputError(f"the tag of a note has at most {LONGEST_TAG} characters")
        self._check_place()

    def _check_place(self) -> None:
        if self.trajectory is not None and self.step is None:
            raise InputError("a note on a trajectory needs its step")
        if self.first_token is not None and self.trajectory is None:
            raise InputError("a note on tokens needs their trajectory")
        if (self.first_token is None) != (self.last_token is None):
            raise InputError("a note on tokens needs the first and the last of them")
        numbers = (self.step, self.trajectory, self.first_token, self.last_token)
        if any(number is not None and number < 0 for number in numbers):
            raise InputError("steps, trajectories and tokens of a note are counted from 0")
        tokens = [number for number in (self.first_token, self.last_token) if number is not None]
        if tokens != sorted(tokens):
            raise InputError(f"the last token ({self.last_token}) is before the first ({self.first_token})")


def append_note(runs: Path, experiment: str, run_id: str, note: PartNote) -> str:
    """Keep a note and return its identity. Raises InputError where it says nothing or cannot be written."""
    note.check()
    row = {
        "step": note.step,
        "trajectory": note.trajectory,
        "first_token": note.first_token,
        "last_token": note.last_token,
        "tag": note.tag.strip(),
        "text": note.text.strip(),
    }
    return _append(runs, experiment, run_id, row)


def withdraw_note(runs: Path, experiment: str, run_id: str, note: str) -> str:
    """Take a note back: append a row that names it. Raises InputError where that cannot be written."""
    return _append(runs, experiment, run_id, {"withdraws": note})


def _append(runs: Path, experiment: str, run_id: str, row: Mapping[str, object]) -> str:
    run_folder = folder_of(runs, experiment, run_id)
    if run_folder is None:
        raise InputError(f"cannot keep a note on '{run_id}': it has no folder of its own below '{runs}'")
    identity = uuid4().hex[:12]
    schema = schema_of(TABLE)
    written_at = datetime.now(UTC).replace(tzinfo=None)
    whole = {"run_id": run_id, "note": identity, "written_at": written_at, **row}
    folder = run_folder / "segments" / TABLE
    unfinished = folder / f".{identity}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([whole], schema=schema), unfinished)
        unfinished.rename(folder / f"{identity}.parquet")
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot keep a note on '{run_id}' in '{folder}': {why}") from None
    return identity
