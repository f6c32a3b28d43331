"""A grid over the scripted trainer: what it reported, what its folders hold, and a second grid at the same
time.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sorl.grid import folder as run_folder
from sorl.grid.cell import Cell
from sorl.grid.config import Grid, load
from sorl.grid.progress import Display
from sorl.grid.run import Result, run
from sorl.learn.warmstart import key

TRAINER = Path(__file__).with_name("trainer.py")
# For programs of their own that run a grid over the scripted trainer.
PATCH = (
    f"import sys; sys.path[:0] = [{str(TRAINER.parents[2])!r}]\n"
    "from sorl.grid import process\n"
    "process.TRAINER, process.PRELOAD = 'tests.grid.trainer:main', ('tests.grid.trainer',)\n"
)


def put_scripted_trainer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sorl.grid.process.TRAINER", "tests.grid.trainer:main")
    patch.setattr("sorl.grid.process.PRELOAD", ("tests.grid.trainer",))


class Tape(Display):
    """Remembers what the grid reported; a hook of the same name acts on a step, a note or a start."""

    def __init__(self, on_step: Any = None, on_note: Any = None, on_start: Any = None) -> None:
        self.started_cells = []
        self.resumed = []
        self.steps = []
        self.notes = []
        self.replacements = []
        self.closed = 0
        hooks = (hook or (lambda *_: None) for hook in (on_step, on_note, on_start))
        self._on_step, self._on_note, self._on_start = hooks

    def started(self, cell: Cell, resumed: bool, folder: Path) -> None:
        self.started_cells.append(cell.arm)
        self.resumed += [cell.arm] if resumed else []
        self._on_start(cell)

    def stepped(self, cell: Cell, row: dict[str, Any]) -> None:
        self.steps.append((cell.arm, row["step"]))
        self._on_step(cell, row)

    def note(self, text: str, style: str = "") -> None:
        self.notes.append(text)
        self._on_note(text)

    def replaced(self, cell: Cell, again: Cell, why: str) -> None:
        self.replacements.append(why)

    def begin(self, *_: Any) -> None: ...

    tick = ended = begin

    def close(self) -> None:
        self.closed += 1


def go(grid: Grid, tape: Tape | None = None, **options: Any) -> list[Result]:
    """Run a grid in the folder `runs` next to its file."""
    return run(grid, grid.path.parent / "runs", tape or Tape(), **options)


def home(grid: Grid, prepared: bool = False) -> Path:
    """The folder of the first cell."""
    return (run_folder.prepare if prepared else run_folder.folder_of)(
        grid.path.parent / "runs", grid.cells[0]
    )


def grid_of(
    folder: Path,
    algorithms: Sequence[str] = ("ppo", "grpo"),
    iterations: int = 4,
    seeds: Sequence[int] = (0,),
    **scripts: Any,
) -> Grid:
    """A scripted grid of these algorithms in `folder`, read."""
    base = f"seeds = {list(seeds)}\n[base]\niterations = {iterations}\n"
    path = scripted_file(folder, f"{base}[axes]\nalgorithm = {json.dumps(list(algorithms))}\n", **scripts)
    return load(path)


def grid_file(folder: Path, text: str, name: str = "demo.toml") -> Path:
    """A grid file in `folder`: a question and `text`."""
    (folder / name).write_text(f'question = "Does the grid do what its file says?"\n{text}')
    return folder / name


def scripted_file(folder: Path, text: str, **scripts: Any) -> Path:
    """A grid file in `folder` with the scripts of its arms; its warm start counts as made."""
    path = grid_file(folder, text)
    script(folder, **scripts)
    made = folder / "runs" / ".cache" / "warmstart" / key(load(path).cells[0].settings)
    made.mkdir(parents=True, exist_ok=True)
    (made / "model.safetensors").touch()
    return path


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
    return run_folder.last_row(folder) or {}


def events(folder: Path) -> list[dict[str, Any]]:
    """The run's rows of table `event`, in the order in which they were written."""
    files = sorted((folder / "segments" / "event").glob("*.parquet"))
    return sorted((r for f in files for r in pq.read_table(f).to_pylist()), key=lambda r: r["written_at"])


def kinds(folder: Path) -> list[str]:
    """The kinds of the run's events, in order."""
    return [event["kind"] for event in events(folder)]
