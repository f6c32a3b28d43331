"""The folder of a run as the grid sees it: configuration and identity in, status out, and who holds it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import tomli_w

from workbench.grid.cell import Cell
from workbench.grid.rows import append, now
from workbench.spec import InputError
from workbench.spec.files import MIB, from_json, open_file, read_text


def folder_of(runs: Path, cell: Cell) -> Path:
    """`runs/<experiment>/<run_id>`."""
    return runs / cell.experiment / cell.run_id


def prepare(runs: Path, cell: Cell) -> Path:
    """Make the folder of a cell with its `config.toml` (resolved) and `run.json` (who it is)."""
    folder = folder_of(runs, cell)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.toml", tomli_w.dumps(_words(cell.settings.model_dump(mode="json"))))
    stored = read_identity(folder)
    if {**stored, **identity(cell)} != stored:
        _write_identity(folder, {**stored, **identity(cell)})
    return folder


def identity(cell: Cell) -> dict[str, Any]:
    """What the trainer cannot know from the settings: the names under which its rows are filed."""
    return {
        "run_id": cell.run_id,
        "experiment": cell.experiment,
        "algorithm": cell.algorithm,
        "arm": cell.arm,
        "seed": cell.seed,
        "config_hash": cell.config_hash,
        "generation": cell.generation,
    }


def read_identity(folder: Path) -> dict[str, Any]:
    """The run's `run.json`; empty where there is none yet, or none that can be read: the grid writes it again."""
    try:
        found = from_json(read_text(folder / "run.json", MIB))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def next_attempt(folder: Path, begun: bool) -> int:
    """Count one more attempt in `run.json` and return its number, from 1; `begun` says that there was one before.

    Whoever calls it holds the claim.
    """
    stored = read_identity(folder)
    attempt = 1 + int(stored.get("attempt") or begun)
    _write_identity(folder, {**stored, "attempt": attempt})
    return attempt


def write_experiment(runs: Path, experiment: str, question: str, toml: str) -> None:
    """Keep the grid file beside its runs and append its row of table `experiment` when it changed."""
    folder = runs / experiment
    kept = folder / "experiment.toml"
    if kept.is_file() and kept.read_text(encoding="utf-8", errors="replace") == toml:
        return
    row = {"experiment": experiment, "question": question, "toml": toml, "written_at": now()}
    append(folder, "experiment", row)
    _write(kept, toml)


def checkpoint(folder: Path) -> int | None:
    """Steps done at the newest whole checkpoint; None without one."""
    found = (folder / "checkpoints").glob("[0-9]*/progress.json")
    return max((int(f.parent.name) for f in found if f.parent.name.isdigit()), default=None)


def _words(settings: Any) -> Any:
    """TOML has no null; the settings read "none" as switched off."""
    if isinstance(settings, dict):
        return {k: _words(v) for k, v in settings.items()}
    if isinstance(settings, (list, tuple)):
        return [_words(v) for v in settings]
    return "none" if settings is None else settings


def _write_identity(folder: Path, stored: Mapping[str, Any]) -> None:
    _write(folder / "run.json", json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(path)


def status_of(row: Mapping[str, Any] | None, alive: bool) -> str:
    """The status to show: what the last row says, except that a dead trainer cannot be running."""
    if row is None or row.get("status") is None:
        return "queued"
    status = str(row["status"])
    return "interrupted" if status == "running" and not alive else status


# ---------------------------------------------------------------------------------------------------------------------
# Who holds it


def held(folder: Path, name: str = "lock") -> bool:
    """True while some process holds the folder's lock: the trainer for as long as it lives, however it was started."""
    try:
        handle = open_file(folder / name)
    except OSError:  # none yet, or a pipe of that name: nobody holds it
        return False
    with handle:
        return not _lock(handle, fcntl.LOCK_SH)


def claim(folder: Path) -> IO[str] | None:
    """Take the cell for this grid, or None when another grid has it or its trainer still lives.

    The claim is a second lock beside the trainer's own: between "nobody trains this" and the trainer's first line lie
    seconds of imports, in which a second grid must not start the cell too. The handle is inherited by the child, so
    the claim outlives a grid that is killed for exactly as long as its trainer does. A child on another machine cannot
    inherit it: there the trainer's own lock is what keeps a second trainer out.
    """
    handle = take(folder / "claim")
    if handle is not None and held(folder):
        handle.close()
        return None
    return handle


def take(file: Path) -> IO[str] | None:
    """Lock `file` until the handle and its copies in children are closed; None when somebody else has it."""
    handle = file.open("a")
    if _lock(handle, fcntl.LOCK_EX):
        return handle
    handle.close()
    return None


def _lock(handle: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        folder = Path(handle.name).parent
        raise InputError(
            f"'{folder}' lies on storage without file locks ({error.strerror}), so nothing could keep two processes "
            "from training one run; mount it with flock, or name another folder with --runs"
        ) from None
    return True
