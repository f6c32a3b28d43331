"""Grids whose cells depend on what others recorded: run what is known, look again, until nothing new is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.grid.cell import Cell, of_generation
from workbench.grid.file import Grid
from workbench.grid.history import History
from workbench.grid.run import run
from workbench.grid.watch import Result, Watch


def run_rounds(
    load: Callable[[], Grid],
    runs: Path,
    watch: Callable[[], Watch],
    history: History,
    begin: Callable[[Grid], None] = lambda grid: None,
    **options: Any,
) -> tuple[Grid, list[Result]]:
    """Run the cells of `load()`, load again, and so on; returns the last grid and how every cell stands.

    `load` reads the grid by `history`; `begin` is told each grid before its new cells run; `options` are those of
    `run.run`. A round that leaves a cell unfinished is the last: what follows depends on it.
    """
    done: dict[str, Result] = {}
    while True:
        grid = load()
        new = _unseen(grid.cells, done)
        if new:
            begin(grid)
            for result in run(replace(grid, cells=tuple(new)), runs, watch(), **options):
                done[_key(result.cell)] = result
                if result.status == "finished":
                    history.know(result.cell)
        ended = all(result.status == "finished" for result in done.values())
        if not new or not ended or (grid.region is None and not grid.waiting):
            return grid, list(done.values())


def _unseen(cells: Sequence[Cell], done: dict[str, Result]) -> list[Cell]:
    return [cell for cell in cells if _key(cell) not in done]


def _key(cell: Cell) -> str:
    return of_generation(cell, 1).run_id
