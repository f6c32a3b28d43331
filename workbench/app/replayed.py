"""The answers of `sorl replay` for the app, by a process of its own: the app has no torch. Kept beside the batch."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import workbench
from workbench.spec import InputError
from workbench.store.batches import file_of
from workbench.store.text import plain

SECONDS = 120.0  # that an answer may take; torch alone takes some to be imported
KEPT = 64  # answers of a run; the oldest go
_COMMAND = (sys.executable, "-c", "from workbench.cli.main import main; main()")


def replayed(folder: Path, step: int, algorithms: Sequence[str], trajectory: int | None = None) -> dict[str, Any]:
    """What `sorl replay --format json` says of a stored step; asked once for each state of its file.

    Raises InputError with what the command says where it has no answer, and for one that takes too long.
    """
    words = ["replay", str(folder), "--step", str(step), "--format", "json", "--tokens"]
    words += [word for name in algorithms for word in ("--algorithm", name)]
    words += [] if trajectory is None else ["--trajectory", str(trajectory)]
    stat = file_of(folder, step).stat()
    key = json.dumps([words, stat.st_mtime_ns, stat.st_size, version("sorl")])
    place = folder / "batches" / ".replay" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):
        return _answer(place.read_text(encoding="utf-8"))
    text = _ask(words)
    answer = _answer(text)
    with suppress(OSError):  # a folder that may not be written costs time, not the answer
        _keep(place, text)
    return answer


def _ask(words: Sequence[str]) -> str:
    paths = [str(Path(workbench.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*_COMMAND, *words], capture_output=True, timeout=SECONDS, check=False, env=surroundings,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(f"the replay took more than {SECONDS:.0f} s; {_typed(words)}") from None
    except OSError as error:
        raise InputError(f"the replay could not be started ({error.strerror}); {_typed(words)}") from None
    if done.returncode:
        said = plain(done.stderr.decode(errors="replace")).strip().removeprefix("sorl: ")
        raise InputError(" ".join(said[-600:].split()) or f"the replay ended with code {done.returncode}")
    return done.stdout.decode(errors="replace")


def _answer(text: str) -> dict[str, Any]:
    """The JSON of an answer; ValueError for anything else."""
    found = json.loads(text)
    if not isinstance(found, dict) or not {"own", "summary", "turns", "culprits", "tokens"} <= set(found):
        raise ValueError("no answer of a replay")
    return found


def _keep(place: Path, text: str) -> None:
    place.parent.mkdir(exist_ok=True)
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(place)
    for old in sorted(place.parent.glob("*.json"), key=lambda file: file.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)


def _typed(words: Sequence[str]) -> str:
    return f"type it on a terminal: sorl replay {words[1]} --step {words[3]}"
