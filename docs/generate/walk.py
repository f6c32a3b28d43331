"""The stops of docs/walk.md: five lines of a file each, found by their first one and quoted as they are."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LINES = 5  # of a stop


class Stop(NamedTuple):
    """A place of the walk: a file, how the first of its lines begins, and what happens there (walk.toml)."""

    file: str
    begins_with: str
    title: str
    words: str


def read_stops() -> tuple[Stop, ...]:
    """Return the stops of walk.toml."""
    table = tomllib.loads(Path(__file__).with_name("walk.toml").read_text(encoding="utf-8"))
    return tuple(Stop(**stop) for stop in table["stop"])


STOPS = read_stops()


def walk(stops: Sequence[Stop] = STOPS) -> str:
    """Return the stops as Markdown, a heading each, with the lines as they are today."""
    return "\n\n".join(_section(number, stop) for number, stop in enumerate(stops, 1))


def quoted_lines(stop: Stop) -> list[str]:
    """Return the lines of a stop. Raises ValueError where its first line is not there exactly once."""
    lines = (ROOT / stop.file).read_text(encoding="utf-8").splitlines()
    places = [number for number, line in enumerate(lines) if line.strip().startswith(stop.begins_with)]
    if len(places) != 1:
        raise ValueError(f"{stop.file} has {len(places)} lines that begin with '{stop.begins_with}'")
    first = places[0]
    return dedent("\n".join(lines[first : first + LINES])).splitlines()


def _section(number: int, stop: Stop) -> str:
    language = stop.file.rpartition(".")[2].replace("py", "python")
    code = "\n".join(quoted_lines(stop))
    return f"## {number}. {stop.title}\n\n`{stop.file}`\n\n{stop.words}\n\n```{language}\n{code}\n```"
