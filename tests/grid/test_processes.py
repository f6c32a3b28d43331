"""The grid against the scripted trainer: who runs, in which order, what is written down while they wait."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.grid.harness import COMMANDS, Tape, by_arm, grid_of, row, starts
from workbench.grid import folder as run_folder
from workbench.grid.cell import Cell
from workbench.grid.file import load
from workbench.grid.rows import last_row
from workbench.grid.run import Commands, run, workers_for
from workbench.grid.session import Limits


def test_every_cell_runs_to_its_end_and_its_progress_is_read(tmp_path: Path) -> None:
    tape = Tape()
    results = run(grid_of(tmp_path), tmp_path / "runs", tape, commands=COMMANDS, workers=2)
    assert [r.status for r in results] == ["finished", "finished"]
    assert [step for arm, step in tape.steps if arm == "ppo"] == [1, 2, 3, 4]
    written = row(results[0].folder)
    assert (written["status"], written["generation"], written["attempt"]) == ("finished", 1, 1)
    assert tape.closed == 1
    experiment = tmp_path / "runs" / "demo"
    assert (experiment / "experiment.toml").read_text() == (tmp_path / "demo.toml").read_text()
    assert len(list((experiment / "segments" / "experiment").glob("*.parquet"))) == 1
    assert not (results[0].folder / "segments" / "event").exists(), "nothing happened to a run that just ran"


def test_the_same_call_skips_what_is_finished_and_starts_nothing(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    again = Tape()
    results = run(grid, tmp_path / "runs", again, commands=COMMANDS)
    assert all(r.skipped and r.status == "finished" for r in results)
    assert again.started_cells == []
    assert [starts(r.folder) for r in results] == [1, 1]
    assert len(list((tmp_path / "runs/demo/segments/experiment").glob("*.parquet"))) == 1, (
        "an unchanged file is not recorded twice"
    )


def test_more_seeds_and_another_arm_run_only_what_is_new(tmp_path: Path) -> None:
    run(grid_of(tmp_path, ("ppo",), seeds=(0, 1)), tmp_path / "runs", Tape(), commands=COMMANDS)
    tape = Tape()
    results = run(grid_of(tmp_path, ("ppo", "grpo"), seeds=(0, 1, 2)), tmp_path / "runs", tape, commands=COMMANDS)
    assert {(r.cell.arm, r.cell.seed) for r in results if r.skipped} == {("ppo", 0), ("ppo", 1)}
    assert sorted(tape.started_cells) == ["grpo", "grpo", "grpo", "ppo"]
    assert tape.notes == [], "nothing was edited"


def test_a_warm_start_is_made_once_before_the_cells_that_share_it(tmp_path: Path) -> None:
    log = tmp_path / "warm.txt"
    program = f"import sys, time; time.sleep(0.3); open({str(log)!r}, 'a').write(sys.argv[1] + chr(10))"
    commands = Commands(COMMANDS.trainer, (sys.executable, "-c", program))
    grid = grid_of(tmp_path, ("ppo", "grpo", "s-ppo"), warm=False)
    tape = Tape()
    results = run(grid, tmp_path / "runs", tape, commands=commands, workers=2)
    assert {r.status for r in results} == {"finished"}
    assert tape.notes == ["warm start: 240 steps of imitation, shared and kept"]
    (made,) = log.read_text().split()
    assert made == str(results[0].folder / "config.toml")
    assert log.stat().st_mtime < (results[0].folder / "starts.txt").stat().st_mtime


def test_a_failed_warm_start_is_tried_again_and_then_fails_the_cells_that_need_it(tmp_path: Path) -> None:
    log = tmp_path / "warm.txt"
    program = f"import sys; open({str(log)!r}, 'a').write('x'); sys.exit('no such tokenizer')"
    commands = Commands(COMMANDS.trainer, (sys.executable, "-c", program))
    limits = Limits(retries=2)
    results = run(grid_of(tmp_path, warm=False), tmp_path / "runs", Tape(), commands=commands, limits=limits)
    assert log.read_text() == "xxx"
    assert {r.reason for r in results} == {"warm start failed: no such tokenizer"}
    assert {row(r.folder)["status"] for r in results} == {"failed"}


def test_cells_wait_as_queued_rows_with_their_identity(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo"), ppo={"step_seconds": 0.2})
    seen: list[dict[str, Any]] = []

    def look(cell: Cell, step: dict[str, Any]) -> None:
        seen.append(row(run_folder.folder_of(tmp_path / "runs", grid.cells[1])))

    run(grid, tmp_path / "runs", Tape(on_step=look), commands=COMMANDS, workers=1)
    first = seen[0]
    assert first["status"] == "queued"
    assert (first["arm"], first["seed"], first["experiment"]) == ("grpo", 0, "demo")
    assert json.loads(first["config"])["algorithm"] == "grpo"
    assert first["outcome"] is None


def test_a_torn_segment_does_not_hide_the_row_before_it(tmp_path: Path) -> None:
    (result,) = run(grid_of(tmp_path, ("ppo",)), tmp_path / "runs", Tape(), commands=COMMANDS)
    (result.folder / "segments" / "run" / "000099.parquet").write_bytes(b"PAR1 torn")
    assert row(result.folder)["status"] == "finished"


def test_a_run_of_an_earlier_version_without_the_newer_columns_is_taken_up(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    grid = grid_of(tmp_path, ("ppo",))
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    old = {"run_id": grid.cells[0].run_id, "experiment": "demo", "status": "failed", "started_at": None}
    (folder / "segments" / "run").mkdir(parents=True)
    import pyarrow as pa

    pq.write_table(pa.Table.from_pylist([old]), folder / "segments" / "run" / "000000.parquet")
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    assert result.status == "finished"
    found = last_row(folder)
    assert found is not None
    assert found["attempt"] == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_no_more_cells_run_at_a_time_than_there_are_workers(tmp_path: Path, workers: int) -> None:
    arms = ("ppo", "grpo", "s-ppo")
    grid = grid_of(tmp_path, arms, **{arm: {"step_seconds": 0.2} for arm in arms})  # alive while its line is read
    most = 0

    def count(cell: Cell, step: dict[str, Any]) -> None:
        nonlocal most
        held = sum(run_folder.held(run_folder.folder_of(tmp_path / "runs", c)) for c in grid.cells)
        most = max(most, held)

    run(grid, tmp_path / "runs", Tape(on_step=count), commands=COMMANDS, workers=workers)
    assert 0 < most <= workers


def test_a_core_for_each_thread_of_each_process_unless_the_user_knows_better(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('question = "How many at a time?"\nseeds = [0, 1, 2, 3, 4, 5]\n[base]\nthreads = 2\n')
    two_threads = load(path).cells
    one_thread = load(path, ["threads=1"]).cells
    assert [workers_for(one_thread, slots=cores) for cores in (1, 2, 4, 64)] == [1, 2, 4, 6]
    assert [workers_for(two_threads, slots=cores) for cores in (1, 2, 4, 64)] == [1, 1, 2, 6]
    assert workers_for(two_threads, asked=3, slots=2) == 3
    assert workers_for([], slots=4) == 1


def test_a_cell_that_cannot_be_started_stops_nobody(tmp_path: Path) -> None:
    class Broken:
        slots = 1

        def start(self, command: Any, log: Path, threads: int, keep: Any) -> Any:
            from workbench.grid.child import Child

            if "grpo" in log.parent.name:
                raise OSError("Resource temporarily unavailable")
            return Child(command, log, threads, keep)

    results = by_arm(run(grid_of(tmp_path), tmp_path / "runs", Tape(), commands=COMMANDS, executor=Broken()))
    assert results["ppo"].status == "finished"
    assert results["grpo"].reason == "could not be started: Resource temporarily unavailable"
