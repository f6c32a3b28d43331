"""The console log of a cell: the last words, the last progress, and where a process that was asked says it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from workbench.store.console import tail

_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')


def last_line(log: Path, since: int = 0) -> str:
    """The last line that says something and is not a progress line; empty where there is none."""
    return next(_words(log, since), "")


def last_step(log: Path) -> int | None:
    """Steps done at the last progress line; None before the first."""
    for line in reversed(tail(log)):
        if (found := progress(line)) is not None:
            return found
    return None


def progress(line: str) -> int | None:
    """Steps done that a progress line reports; None for any other line."""
    if not line.startswith('{"step"'):
        return None
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError):
        return None


def where(log: Path, since: int = 0) -> str:
    """`recv (socket.py:706)`: where the main thread stood in the last dump of its stack; empty without one."""
    lines = tail(log, since)
    starts = [i for i, line in enumerate(lines) if line.startswith("Current thread")]
    for line in lines[starts[-1] + 1 :] if starts else []:
        if found := _FRAME.search(line):
            file, number, function = found.groups()
            return f"{function} ({Path(file).name}:{number})"
    return ""


def _words(log: Path, since: int) -> Iterator[str]:
    for line in reversed(tail(log, since)):
        words = line.strip()
        # The latter is a bar of somebody's library.
        if words and progress(words) is None and not words.endswith("it/s]"):
            yield words
