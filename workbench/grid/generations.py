"""Which time a cell is trained from nothing: `--fresh` begins the next generation and deletes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.grid.cell import Cell, of_generation
from workbench.grid.folder import folder_of, held, last_row
from workbench.spec import InputError

if TYPE_CHECKING:
    from workbench.grid.file import Grid


def newest(grid: Grid, runs: Path) -> Grid:
    """The grid with the newest generation of every cell that lies in `runs`, the first of those that never ran."""
    return replace(grid, cells=tuple(of_generation(cell, max(1, last(runs, cell))) for cell in grid.cells))


def fresh(grid: Grid, runs: Path) -> Grid:
    """The grid with a generation of every cell that has not begun yet; InputError while the newest is being trained."""
    cells = newest(grid, runs).cells
    _refuse_running(runs, cells)
    return replace(grid, cells=tuple(_unbegun(runs, cell) for cell in cells))


def last(runs: Path, cell: Cell) -> int:
    """The newest generation of `cell` that has a folder; 0 when none has."""
    first = of_generation(cell, 1).run_id
    name = re.compile(rf"{re.escape(first)}(?:-g(\d+))?")
    found = (name.fullmatch(f.name) for f in (runs / cell.experiment).glob(f"{first}*") if f.is_dir())
    return max((int(match[1] or 1) for match in found if match), default=0)


def _unbegun(runs: Path, cell: Cell) -> Cell:
    row = last_row(folder_of(runs, cell))
    return cell if row is None or row["status"] == "queued" else of_generation(cell, cell.generation + 1)


def _refuse_running(runs: Path, cells: Sequence[Cell]) -> None:
    folders = [folder_of(runs, cell) for cell in cells]
    if busy := [f.name for f in folders if held(f) or held(f, "claim")]:
        raise InputError(f"--fresh cannot start over what another process trains: {', '.join(busy)}; stop it first")
