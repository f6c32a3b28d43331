"""What happens to the process of a cell, as rows of table `event` that the grid writes itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workbench.grid.rows import append, now


@dataclass(frozen=True)
class Kind:
    """A kind of event: its severity, and what it means."""

    name: str
    severity: Literal["info", "warning", "critical"]
    meaning: str


KINDS: tuple[Kind, ...] = (
    Kind("resumed", "info", "the same command went on with the run; the value is the attempt that began"),
    Kind("retried", "warning", "an attempt failed and another one began at once; the value is the attempt that began"),
    Kind("interrupted", "info", "Ctrl-C or SIGTERM; the run wrote a checkpoint if it had begun"),
    Kind("hang", "critical", "no sign of life for longer than its pace allows, so it was killed"),
    Kind("out_of_memory", "critical", "the kernel, an allocator or the limit of --memory ended it"),
    Kind("killed", "critical", "a signal ended it, or its machine went away"),
    Kind("failed", "critical", "an exception ended it; the traceback is in console.log"),
)


def write(folder: Path, run_id: str, kind: str, step: int | None, message: str, value: float | None = None) -> None:
    """Append an event of one of KINDS to the run in `folder`; KeyError for another kind."""
    severity = {k.name: k.severity for k in KINDS}[kind]
    row = {
        "run_id": run_id, "step": step, "kind": kind, "severity": severity, "diagnostic": "", "value": value,
        "message": message, "written_at": now(),
    }  # fmt: skip
    append(folder, "event", row)
