"""What a call of the grid is given and gives back: limits of a cell, and its state at the end."""

from dataclasses import dataclass
from pathlib import Path

from sorl.grid.cell import Cell


@dataclass(frozen=True)
class Limits:
    """When the grid gives a cell up."""

    retries: int = 1  # attempts after the first, in one call
    hang_seconds: float = 600.0  # without a sign of life, from the first one on; 0 = never
    memory: int | None = None  # bytes that the processes of a cell may hold; None = no limit


@dataclass(frozen=True)
class Result:
    """The state of a cell at the end of a call."""

    cell: Cell
    status: str  # of table `run`, or `elsewhere` when another process trains the cell
    folder: Path
    reason: str = ""
    cause: str = ""  # of a bad end: diverged, hang, out of memory, killed or failed
    skipped: bool = False  # finished before this call, or by another process
    seconds: float = 0.0
