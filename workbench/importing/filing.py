"""Where imported runs are filed: the default experiment, and what an experiment remembers of its imports."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from sorl.spec.files import MIB, from_json, read_text

DEFAULT = "imported"  # experiment of runs that are filed under none
RECORD = "imports.json"  # of an experiment's folder: what was imported, and what it looked like then


def record_of(experiment: Path) -> dict[str, Any]:
    """Return what was imported into the folder of an experiment: source -> its fingerprint and runs."""
    with suppress(OSError, ValueError, TypeError):
        return dict(from_json(read_text(experiment / RECORD, 64 * MIB)))
    return {}


def runs_from(experiment: Path, source: Path) -> list[str]:
    """Return the ids of the runs that were imported into an experiment from a file, or from inside of it."""
    home = source.resolve()
    run_ids: list[str] = []
    for path, entry in record_of(experiment).items():
        if Path(path).is_relative_to(home) and isinstance(entry, dict):
            run_ids += map(str, entry.get("runs", ()))
    return run_ids
