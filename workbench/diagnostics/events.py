"""An event: one thing that happened to a run, as a row of table `event` without the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True)
class Event:
    """What happened at `step`, the diagnostic that showed it (empty without one), its value and the threshold."""

    step: int
    kind: str
    severity: Severity
    message: str
    diagnostic: str = ""
    value: float | None = None
    threshold: float | None = None
