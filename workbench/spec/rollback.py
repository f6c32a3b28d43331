"""The file `rollback.json` of a run folder: that its guard ended the run, and where the next start begins."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from sorl.spec.files import MIB, InputError, from_json, read_text

NAME = "rollback.json"


@dataclass(frozen=True)
class Rollback:
    """A guard's decision: back to a checkpoint on the ladder of a run, and on with one change."""

    experiment: str
    run: str  # whose checkpoint it is: the run itself, or the one that it was forked from
    at_step: int  # the first step that is trained again
    alarm_step: int  # the step that raised the alarm
    reason: str
    change: dict[str, Any]  # settings by dotted key
    number: int  # of this rollback, from 1
    most: int  # rollbacks that are allowed

    @property
    def words(self) -> str:
        """Return what is done, as an event says it."""
        change = ", ".join(f"{key} = {value}" for key, value in self.change.items()) or "no change"
        lost = self.alarm_step + 1 - self.at_step
        return (
            f"{self.reason}; back to step {self.at_step} with {change}, {lost} steps are trained again"
            f" (rollback {self.number} of {self.most})"
        )

    def write(self, folder: Path) -> None:
        """Write the file in one rename."""
        unfinished = folder / f".{NAME}"
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.rename(unfinished, folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the decision of a run, or None. Raises InputError for a damaged file."""
        file = folder / NAME
        if not file.is_file():
            return None
        try:
            return cls(**from_json(read_text(file, MIB)))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"'{file}' cannot be read: {error}; delete it to give up the rollback") from None
