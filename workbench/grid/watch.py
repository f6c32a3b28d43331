"""What a grid tells whoever watches it: the live display, plain lines, or a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from workbench.grid.cell import Cell


@dataclass(frozen=True)
class Result:
    """How a cell stands when the grid is done with it.

    `status` is a status of table `run`, or `elsewhere` when another process trains the cell and was not waited for.
    """

    cell: Cell
    status: str
    folder: Path
    reason: str = ""
    cause: str = ""  # of a bad end: diverged, hang, out of memory, killed or failed
    skipped: bool = False  # it was finished before this call, or by another process
    seconds: float = 0.0


class Watch(Protocol):
    """Whoever is told what happens."""

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        """The cells that will run and those that were finished before."""
        ...

    def started(self, cell: Cell, resumed: bool) -> None:
        """A process was started."""
        ...

    def stepped(self, cell: Cell, row: dict[str, Any]) -> None:
        """A progress line came."""
        ...

    def ended(self, result: Result) -> None:
        """A cell is done with, one way or another."""
        ...

    def note(self, text: str) -> None:
        """Something worth a sentence."""
        ...

    def tick(self) -> None:
        """Called ten times a second: redraw if it is time."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...
