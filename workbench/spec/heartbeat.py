"""The file `heartbeat` of a run folder: what its trainer is doing now, as one JSON object."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sorl.spec.files import from_json, read_text

NAME = "heartbeat"
_BYTES = 4096  # most that is read
_LETTERS = 120  # of each text in it
_LONG_SECONDS = 5.0  # after which it is said how long a part has taken


@dataclass(frozen=True)
class Doing:
    """What a trainer is doing: a part of its work, and how far it is in it."""

    doing: str
    step: int | None = None  # steps done before this one; None before training
    steps: int | None = None  # of the run
    done: int | None = None
    of: int | None = None
    unit: str = ""
    detail: str = ""
    since: float | None = None  # Unix time at which the part began

    def as_json(self) -> str:
        """Return one line."""
        return json.dumps({name: value for name, value in vars(self).items() if value not in (None, "")})

    @property
    def seconds(self) -> float:
        """Return how long the part has taken, by this machine's clock; 0 if that is not known."""
        return max(0.0, time.time() - self.since) if self.since is not None else 0.0

    @property
    def words(self) -> str:
        """Return it as text: `step 4 of 60: rollout, turn 2 of 4, 1,100 tokens, 12 of 32 episodes ended`."""
        counted = ""
        if self.done is not None and self.of is not None and (self.unit or self.of > 1):
            counted = f"{self.done:,} of {self.of:,}"
        if self.unit:
            parts = [self.doing, self.detail, f"{counted} {self.unit}" if counted else ""]
        else:
            parts = [f"{self.doing} {counted}".rstrip(), self.detail]
        parts.append(f"for {self.seconds:,.0f} s" if self.seconds >= _LONG_SECONDS else "")
        text = ", ".join(filter(None, parts))
        if self.step is None:
            return text
        total = f" of {self.steps:,}" if self.steps is not None else ""
        return f"step {self.step + 1:,}{total}: {text}"


def read_heartbeat(folder: Path) -> Doing | None:
    """Return what the trainer of a run folder wrote last; None without a file, or where it says nothing.

    An empty file says nothing. A link is not followed: what it leads to is not the run's.
    """
    if (folder / NAME).is_symlink():
        return None
    try:
        found = from_json(read_text(folder / NAME, _BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("doing"), str):
        return None
    since = found.get("since")
    return Doing(
        doing=_text(found.get("doing")),
        step=_count(found.get("step")),
        steps=_count(found.get("steps")),
        done=_count(found.get("done")),
        of=_count(found.get("of")),
        unit=_text(found.get("unit")),
        detail=_text(found.get("detail")),
        since=float(since) if isinstance(since, int | float) else None,
    )


def _text(value: Any) -> str:
    return value[:_LETTERS] if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
