"""A grid over the scripted trainer: what it said, what its folders hold, and a second grid beside it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from workbench.grid import rows
from workbench.grid.cell import Cell
from workbench.grid.file import Grid, load
from workbench.grid.run import Commands
from workbench.grid.warm import warm_key
from workbench.grid.watch import Result

TRAINER = Path(__file__).with_name("trainer.py")
COMMANDS = Commands(trainer=(sys.executable, str(TRAINER)), warmstart=(sys.executable, "-c", "pass"))


class Tape:
    """Remembers what the grid said; `on_step` lets a test act in the middle of a run."""

    def __init__(self, on_step: Any = None) -> None:
        self.started_cells: list[str] = []
        self.resumed: list[str] = []
        self.steps: list[tuple[str, int]] = []
        self.results: list[Result] = []
        self.notes: list[str] = []
        self.closed = 0
        self._on_step = on_step

    def begin(self, todo: Sequence[Cell], done: Sequence[Result], workers: int) -> None:
        self.todo, self.skipped, self.workers = list(todo), list(done), workers

    def started(self, cell: Cell, resumed: bool) -> None:
        self.started_cells.append(cell.arm)
        if resumed:
            self.resumed.append(cell.arm)

    def stepped(self, cell: Cell, row: dict[str, Any]) -> None:
        self.steps.append((cell.arm, row["step"]))
        if self._on_step is not None:
            self._on_step(cell, row)

    def ended(self, result: Result) -> None:
        self.results.append(result)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tick(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


def grid_of(
    folder: Path,
    algorithms: Sequence[str] = ("ppo", "grpo"),
    iterations: int = 4,
    seeds: Sequence[int] = (0,),
    warm: bool = True,
    **scripts: Any,
) -> Grid:
    """A grid file in `folder`, read, with its scripts; its warm start counts as made unless `warm` is False."""
    path = folder / "demo.toml"
    path.write_text(
        f'question = "Does the grid survive its cells?"\nseeds = {list(seeds)}\n[base]\niterations = {iterations}\n'
        f"[axes]\nalgorithm = {json.dumps(list(algorithms))}\n"
    )
    script(folder, **scripts)
    grid = load(path)
    if warm:
        made = folder / "runs" / ".cache" / "warmstart" / warm_key(grid.cells[0].settings)
        made.mkdir(parents=True, exist_ok=True)
        (made / "model.safetensors").touch()
    return grid


def script(folder: Path, **scripts: Any) -> None:
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "script.json").write_text(json.dumps(scripts))


def by_arm(results: Sequence[Result]) -> dict[str, Result]:
    return {result.cell.arm: result for result in results}


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def starts(folder: Path) -> int:
    """How often a trainer was started in a run's folder."""
    file = folder / "starts.txt"
    return len(file.read_text().split()) if file.exists() else 0


def row(folder: Path) -> dict[str, Any]:
    """The run's newest row of table `run`."""
    found = rows.last_row(folder)
    assert found is not None
    return found


def events(folder: Path) -> list[dict[str, Any]]:
    """The run's rows of table `event`, in the order in which they were written."""
    files = sorted((folder / "segments" / "event").glob("*.parquet"))
    return sorted((r for f in files for r in pq.read_table(f).to_pylist()), key=lambda r: r["written_at"])


def kinds(folder: Path) -> list[str]:
    """What happened to the run, in order."""
    return [event["kind"] for event in events(folder)]


def program(folder: Path, workers: int = 2) -> str:
    """A second grid process over the same file; it prints how every cell stands."""
    root = Path(__file__).parents[2]
    return (
        f"import sys; sys.path[:0] = [{str(root)!r}]\n"
        "from pathlib import Path\nfrom tests.grid.harness import COMMANDS, Tape\n"
        "from workbench.grid.file import load\nfrom workbench.grid.run import run\n"
        f"results = run(load(Path({str(folder / 'demo.toml')!r})), Path({str(folder / 'runs')!r}), Tape(), "
        f"commands=COMMANDS, workers={workers})\n"
        "print(*(f'{r.cell.run_id}={r.status}' for r in results))\n"
    )
