"""The grid against a scripted trainer (trainer.py): resume, isolation of failures, double start, interrupt, kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench.grid import folder as run_folder
from workbench.grid.cell import Cell
from workbench.grid.file import Grid, load
from workbench.grid.run import Commands, Result, run

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


def grid_of(folder: Path, algorithms: Sequence[str] = ("ppo", "grpo"), iterations: int = 4, **scripts: Any) -> Grid:
    path = folder / "demo.toml"
    path.write_text(
        f'question = "Does the grid survive its cells?"\n[base]\niterations = {iterations}\n'
        f"[axes]\nalgorithm = {json.dumps(list(algorithms))}\n"
    )
    script(folder, **scripts)
    return load(path)


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


def starts(result: Result) -> int:
    return len((result.folder / "starts.txt").read_text().split())


def row(result: Result) -> dict[str, Any]:
    found = run_folder.last_row(result.folder)
    assert found is not None
    return found


def test_every_cell_runs_to_its_end_and_its_progress_is_read(tmp_path: Path) -> None:
    tape = Tape()
    results = run(grid_of(tmp_path), tmp_path / "runs", tape, commands=COMMANDS, workers=2)
    assert [r.status for r in results] == ["finished", "finished"]
    assert [step for arm, step in tape.steps if arm == "ppo"] == [1, 2, 3, 4]
    assert row(results[0])["status"] == "finished"
    assert tape.closed == 1
    experiment = tmp_path / "runs" / "demo"
    assert (experiment / "experiment.toml").read_text() == (tmp_path / "demo.toml").read_text()
    assert len(list((experiment / "segments" / "experiment").glob("*.parquet"))) == 1


def test_the_same_call_skips_what_is_finished_and_starts_nothing(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    again = Tape()
    results = run(grid, tmp_path / "runs", again, commands=COMMANDS)
    assert all(r.skipped and r.status == "finished" for r in results)
    assert again.started_cells == []
    assert [starts(r) for r in results] == [1, 1]
    assert len(list((tmp_path / "runs/demo/segments/experiment").glob("*.parquet"))) == 1, (
        "an unchanged file is not recorded twice"
    )


def test_a_failing_cell_stops_nobody_and_says_why(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo", "s-ppo"), ppo={"fail_at": 2}, grpo={"fail_at": 2, "silent": True})
    results = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, workers=1))
    assert {arm: r.status for arm, r in results.items()} == {"ppo": "failed", "grpo": "failed", "s-ppo": "finished"}
    assert results["ppo"].reason == "RuntimeError: scripted failure"
    assert "SIGKILL" in results["grpo"].reason
    written = row(results["grpo"])  # the trainer died without a word: the grid files its death
    assert written["status"] == "failed"
    assert "SIGKILL" in written["reason"]
    assert written["ended_at"] is not None
    assert written["started_at"] is not None, "what the trainer had written before is kept"
    assert run_folder.last_line(results["ppo"].folder / "console.log") == "RuntimeError: scripted failure"


def test_failed_cells_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, iterations=5, ppo={"fail_at": 3})
    run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    script(tmp_path)
    tape = Tape()
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS))
    assert results["ppo"].status == "finished"
    assert tape.steps == [("ppo", 3), ("ppo", 4), ("ppo", 5)], "steps 1 and 2 are not trained again"
    assert tape.resumed == ["ppo"]
    assert results["grpo"].skipped


@pytest.fixture
def begin() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that do not outlive the test, whatever becomes of it."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()


Begin = Callable[..., "subprocess.Popen[bytes]"]


def test_a_cell_that_another_process_trains_is_not_started_twice(tmp_path: Path, begin: Begin) -> None:
    grid = grid_of(tmp_path, ppo={"wait_at": 2})
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    holder = begin(sys.executable, str(TRAINER), str(folder))
    wait_for(lambda: (folder / "progress.txt").exists())
    tape = Tape()
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS))
    assert results["ppo"].status == "elsewhere"
    assert results["grpo"].status == "finished"
    assert tape.started_cells == ["grpo"]
    (tmp_path / "runs" / "go").touch()
    assert holder.wait(120) == 0
    assert run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)[0].status == "finished"
    assert starts(results["ppo"]) == 1


def test_a_held_cell_that_becomes_free_while_others_train_is_run_after_all(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, iterations=6, grpo={"step_seconds": 0.2})
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    claim = run_folder.claim(folder)
    assert claim is not None
    threading.Timer(0.5, claim.close).start()
    results = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS))
    assert {arm: r.status for arm, r in results.items()} == {"ppo": "finished", "grpo": "finished"}


def test_two_grids_at_once_train_every_cell_once(tmp_path: Path, begin: Begin) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo", "s-ppo"), iterations=3)
    program = _program(tmp_path)
    other = begin(sys.executable, "-c", program)
    mine = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, workers=2)
    assert other.wait(120) == 0
    assert [starts(r) for r in mine] == [1, 1, 1]
    assert [row(r)["status"] for r in mine] == ["finished"] * 3


def test_one_interrupt_lets_the_cells_checkpoint_and_the_same_call_goes_on(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo"), iterations=30, ppo={"step_seconds": 0.1})
    tape = Tape(on_step=lambda cell, step: os.kill(os.getpid(), signal.SIGINT) if step["step"] == 2 else None)
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS, workers=1))
    assert {arm: r.status for arm, r in results.items()} == {"ppo": "interrupted", "grpo": "queued"}
    assert row(results["ppo"])["status"] == "interrupted"
    assert any("write a checkpoint" in note for note in tape.notes)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Ctrl-C means what it did before"
    reached = max(step for _, step in tape.steps)
    again = Tape()
    results = by_arm(run(grid, tmp_path / "runs", again, commands=COMMANDS, workers=2))
    assert {r.status for r in results.values()} == {"finished"}
    assert min(step for arm, step in again.steps if arm == "ppo") == reached + 1


def test_a_second_interrupt_kills_cells_that_do_not_stop(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo",), iterations=1000, ppo={"step_seconds": 0.05, "ignore_sigint": True})
    asked: list[int] = []

    def interrupt(cell: Cell, step: dict[str, Any]) -> None:
        if step["step"] in (2, 12):
            asked.append(step["step"])
            os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    (result,) = run(grid, tmp_path / "runs", Tape(on_step=interrupt), commands=COMMANDS)
    assert asked == [2, 12], "one interrupt alone did not end it"
    assert result.status == "interrupted"
    assert row(result)["status"] == "interrupted"
    assert time.monotonic() - began < 120
    assert not run_folder.held(result.folder), "the process is gone and with it its lock"


def test_a_killed_grid_leaves_nothing_that_the_same_call_cannot_go_on_from(tmp_path: Path, begin: Begin) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo"), ppo={"wait_at": 2})
    victim = begin(sys.executable, "-c", _program(tmp_path, workers=1))
    ppo = run_folder.folder_of(tmp_path / "runs", grid.cells[0])
    wait_for(lambda: (ppo / "progress.txt").exists())
    victim.kill()
    victim.wait()
    # The orphan trains on, and its claim keeps a second grid off it.
    results = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS))
    assert results["ppo"].status == "elsewhere"
    assert results["grpo"].status == "finished"
    (tmp_path / "runs" / "go").touch()
    wait_for(lambda: not run_folder.held(ppo, "claim"))
    results = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS))
    assert results["ppo"].status == "finished"
    assert starts(results["ppo"]) == 1


def test_a_trainer_that_was_killed_with_its_grid_shows_as_interrupted_and_is_resumed(
    tmp_path: Path, begin: Begin
) -> None:
    grid = grid_of(tmp_path, ("ppo",), iterations=6, ppo={"wait_at": 3})
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    trainer = begin(sys.executable, str(TRAINER), str(folder))
    wait_for(lambda: (folder / "progress.txt").exists() and (folder / "progress.txt").read_text() == "2")
    trainer.kill()
    trainer.wait()
    found = run_folder.last_row(folder)
    assert found is not None
    assert found["status"] == "running", "nobody could say that it died"
    assert run_folder.status_of(found, run_folder.held(folder)) == "interrupted"
    (tmp_path / "runs" / "go").touch()
    tape = Tape()
    (result,) = run(grid, tmp_path / "runs", tape, commands=COMMANDS)
    assert result.status == "finished"
    assert tape.steps[0] == ("ppo", 3)


def test_a_warm_start_is_made_once_before_the_cells_that_share_it(tmp_path: Path) -> None:
    log = tmp_path / "warm.txt"
    program = f"import sys, time; time.sleep(0.3); open({str(log)!r}, 'a').write(sys.argv[1] + chr(10))"
    commands = Commands(COMMANDS.trainer, (sys.executable, "-c", program))
    results = run(grid_of(tmp_path, ("ppo", "grpo", "s-ppo")), tmp_path / "runs", Tape(), commands=commands, workers=2)
    assert {r.status for r in results} == {"finished"}
    (made,) = log.read_text().split()
    assert made == str(results[0].folder / "config.toml")
    assert log.stat().st_mtime < (results[0].folder / "starts.txt").stat().st_mtime


def test_a_failed_warm_start_fails_the_cells_that_need_it_with_its_last_line(tmp_path: Path) -> None:
    commands = Commands(COMMANDS.trainer, (sys.executable, "-c", "import sys; sys.exit('no such tokenizer')"))
    results = run(grid_of(tmp_path), tmp_path / "runs", Tape(), commands=commands)
    assert {r.reason for r in results} == {"warm start failed: no such tokenizer"}
    assert {row(r)["status"] for r in results} == {"failed"}


def test_cells_wait_as_queued_rows_with_their_identity(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo"), ppo={"step_seconds": 0.2})
    seen: list[dict[str, Any]] = []

    def look(cell: Cell, step: dict[str, Any]) -> None:
        found = run_folder.last_row(run_folder.folder_of(tmp_path / "runs", grid.cells[1]))
        assert found is not None
        seen.append(found)

    run(grid, tmp_path / "runs", Tape(on_step=look), commands=COMMANDS, workers=1)
    first = seen[0]
    assert first["status"] == "queued"
    assert (first["arm"], first["seed"], first["experiment"]) == ("grpo", 0, "demo")
    assert json.loads(first["config"])["algorithm"] == "grpo"
    assert first["outcome"] is None


def test_a_torn_segment_does_not_hide_the_row_before_it(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo",))
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    (result.folder / "segments" / "run" / "000099.parquet").write_bytes(b"PAR1 torn")
    assert row(result)["status"] == "finished"


def test_forgetting_a_run_removes_its_folder_and_nothing_else(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    results = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    run_folder.forget(results[0].folder)
    left = sorted(p.name for p in (tmp_path / "runs" / "demo").iterdir() if p.is_dir())
    assert left == sorted([results[1].folder.name, "segments"])
    again = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS))
    assert not again["ppo"].skipped
    assert again["grpo"].skipped


@pytest.mark.parametrize("workers", [1, 2])
def test_no_more_cells_run_at_a_time_than_there_are_workers(tmp_path: Path, workers: int) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo", "s-ppo"))
    most = 0

    def count(cell: Cell, step: dict[str, Any]) -> None:
        nonlocal most
        held = sum(run_folder.held(run_folder.folder_of(tmp_path / "runs", c)) for c in grid.cells)
        most = max(most, held)

    run(grid, tmp_path / "runs", Tape(on_step=count), commands=COMMANDS, workers=workers)
    assert most <= workers


def _program(folder: Path, workers: int = 2) -> str:
    """A second grid process over the same file."""
    return (
        f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]\n"
        "from pathlib import Path\nimport test_processes as t\nfrom workbench.grid.file import load\n"
        f"t.run(load(Path({str(folder / 'demo.toml')!r})), Path({str(folder / 'runs')!r}), t.Tape(), "
        f"commands=t.COMMANDS, workers={workers})\n"
    )
