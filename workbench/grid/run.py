"""Run the cells of a grid, one process each; the same call goes on where the last one stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.grid import folder as run_folder
from workbench.grid import generations, rows
from workbench.grid.cell import Cell
from workbench.grid.edits import edits
from workbench.grid.ending import cause, one_line
from workbench.grid.executor import Executor, Local
from workbench.grid.file import Grid
from workbench.grid.forked import TRAINER
from workbench.grid.machine import cores
from workbench.grid.session import Limits, Session
from workbench.grid.signals import Signals
from workbench.grid.watch import Result, Watch
from workbench.spec import InputError


@dataclass(frozen=True)
class Commands:
    """How the processes are started; tests put a scripted trainer here."""

    trainer: tuple[str, ...] = TRAINER  # + RUN_FOLDER --cache CACHE
    warmstart: tuple[str, ...] = (sys.executable, "-m", "workbench.learn.warmstart")  # + CONFIG_TOML CACHE


def workers_for(cells: Sequence[Cell], asked: int | None = None, slots: int | None = None) -> int:
    """Cells at a time: what was asked, else as many as have a core (of `slots`) for each thread of their processes.

    Never more than there are cells.
    """
    threads = max((cell.settings.threads * cell.settings.compute.processes for cell in cells), default=1)
    return max(1, min(len(cells), asked or (slots or cores()) // threads))


def run(
    grid: Grid,
    runs: Path,
    watch: Watch,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    commands: Commands | None = None,
    limits: Limits | None = None,
    fresh: bool = False,
    sync: Callable[[], object] | None = None,
) -> list[Result]:
    """Run every cell that is not finished; returns how each cell stands, in the grid's order.

    A failing cell stops nobody; a cell that another process trains is waited for. SIGINT or SIGTERM once: children
    checkpoint and stop; twice: they are killed. With `fresh` every cell starts from nothing, in a folder of its own.
    Raises InputError for `fresh` while one of the cells is being trained, and for a runs folder that cannot be made.
    """
    # The trainers' files are wanted by absolute path: they may be started anywhere.
    runs = runs.resolve()
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"cannot make the runs folder '{runs}': {why}; name another with --runs") from None
    grid = generations.fresh(grid, runs) if fresh else generations.newest(grid, runs)
    run_folder.write_experiment(runs, grid.experiment, grid.question, grid.toml)
    edited = edits(runs, [cell for cell in grid.cells if not run_folder.folder_of(runs, cell).exists()])
    done: dict[str, Result] = {}
    todo: list[Cell] = []
    for cell in grid.cells:
        folder = run_folder.prepare(runs, cell)
        row = rows.last_row(folder)
        if row is not None and row["status"] == "finished":
            reason = one_line(row.get("reason") or "")
            done[cell.run_id] = Result(cell, "finished", folder, reason, cause(row), skipped=True)
            continue
        todo.append(cell)
        if row is None:
            identity = {**run_folder.identity(cell), "config": cell.settings.model_dump_json()}
            rows.change(folder, identity, status="queued")
    executor, commands = executor or Local(), commands or Commands()
    count = workers_for(todo, workers, executor.slots)
    watch.begin(todo, list(done.values()), count)
    for line in edited:
        watch.note(f"{line}: new cells, what ran before stays")
    with Signals() as signals:
        try:
            session = Session(
                runs, watch, count, executor, commands.trainer, commands.warmstart, signals, limits or Limits(), sync
            )
            done |= session.run(todo)
        finally:
            watch.close()
    return [done[cell.run_id] for cell in grid.cells]
