"""Which folders hold a token dump, and of which trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from sorl.importing.dumps.rows import Dump, Sampler

# Modules with readers, in the order in which they are asked; each is loaded when a folder is looked at.
READERS = (
    ("nemo_rl", "NemoRlDump"),
    ("prime_rl_traces", "PrimeRlTraces"),
    ("prime_rl_exports", "PrimeRlExports"),
    ("miles", "MilesDump"),
    ("slime", "SlimeDump"),
    ("skyrl", "SkyRlDump"),
    ("tinker", "TinkerCapture"),
    ("tinker_summaries", "TinkerSummaries"),
    ("verl", "VerlDump"),
)
DEEP = 6  # folders below each other that are looked at
MOST_FOLDERS = 10_000


@cache
def readers() -> tuple[type[Dump], ...]:
    """The readers of all formats."""
    return tuple(getattr(import_module(f"{__package__}.{module}"), name) for module, name in READERS)


def dumps_in(path: Path, sampler: Sampler | None = None) -> list[Dump]:
    """The dumps in a folder and those below it; none of a file. What is below a dump is part of it."""
    if not path.is_dir():
        return []
    return [reader(folder, sampler or Sampler()) for folder, reader in _found(path)]


def _found(path: Path) -> Iterator[tuple[Path, type[Dump]]]:
    base = len(path.parts)
    for number, (name, folders, _) in enumerate(os.walk(path)):
        folder = Path(name)
        reader = next((known for known in readers() if known.is_in(folder)), None)
        if reader is not None:
            yield folder, reader
        is_deep = len(folder.parts) - base >= DEEP
        if reader is not None or is_deep or number >= MOST_FOLDERS:
            folders.clear()
        else:
            folders[:] = sorted(below for below in folders if not below.startswith("."))
