"""What a person says of a run: a note, tags, and whether it is hidden. A small file next to its segments, no
row.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sorl.spec import InputError
from sorl.spec.files import MIB, from_json, read_text
from sorl.spec.names import FolderName
from sorl.store.segments import folder_of

FILE = "notes.json"
# characters of a note or of all tags together, tags of a run
LONGEST = 4_000
TAGS = 20


class Notes(NamedTuple):
    """The notes of a run; all empty where nobody wrote any."""

    note: str = ""
    tags: tuple[str, ...] = ()
    hidden: bool = False


def read(runs: Path, experiment: str, run_id: str) -> Notes:
    """Return the notes of a run; what is missing or unreadable is empty."""
    folder = folder_of(runs, experiment, run_id)
    with suppress(OSError, ValueError):
        found = from_json(read_text(folder / FILE, MIB)) if folder else None
        if isinstance(found, dict):
            note = found.get("note")
            tags = found.get("tags")
            tags = tuple(str(tag) for tag in tags[:TAGS]) if isinstance(tags, list) else ()
            return Notes(note[:LONGEST] if isinstance(note, str) else "", tags, found.get("hidden") is True)
    return Notes()


def every(runs: Path, experiment: str) -> dict[str, Notes]:
    """Return the notes of an experiment's runs, by run id, of those that have any: one look, however many
    there are.
    """
    try:
        home = runs / FolderName(experiment, "experiment")
    except InputError:
        return {}
    found = (file.parent.name for file in home.glob(f"*/{FILE}"))
    return {run_id: read(runs, experiment, run_id) for run_id in found}


def write(runs: Path, experiment: str, run_id: str, notes: Notes) -> None:
    """Keep the notes of a run, whole or not at all. Raises InputError where its folder is gone or cannot be
    written.
    """
    folder = folder_of(runs, experiment, run_id)
    if folder is None:
        raise InputError(f"cannot keep notes of '{run_id}': it has no folder of its own below '{runs}'")
    unfinished = folder / f".{FILE}.{os.getpid()}"
    try:
        unfinished.write_text(
            json.dumps(notes._asdict(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
        unfinished.replace(folder / FILE)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot keep notes of '{run_id}' in '{folder}': {why}") from None
