"""The console of verl: lines `step:3 - actor/entropy:0.5 - ...` among anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sorl.importing.rows import Rows
from sorl.importing.text import Line, numbered_lines, opened
from sorl.importing.title import title_of
from sorl.spec import InputError

_METRICS = re.compile(r"(?:^|\s)step:(\d+) - (\S+:.*)")


def console(path: Path) -> Iterator[Rows]:
    """The lines with metrics among any others."""
    rows = Rows(title_of(path), place_unit="line")
    with opened(path) as file:
        rows.extend(_metrics_of(numbered_lines(file), rows))
    if not rows:
        raise InputError(
            f"'{path}' has no line 'step:N - metric:value' as verl prints, nor another known form"
        )
    yield rows


def _metrics_of(lines: Iterable[Line], rows: Rows) -> Iterator[dict[str, Any]]:
    for line in lines:
        match = _METRICS.search(line.text) if "step:" in line.text else None
        if match is None:
            continue
        rows.position = line.number
        row: dict[str, Any] = {"step": match[1]}
        for pair in match[2].split(" - "):
            name, _, value = pair.strip().rpartition(":")
            row[name] = value
        yield row
