"""Two grids over the same cells: none runs twice, and both end with all of them."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.grid.conftest import Begin
from tests.grid.harness import COMMANDS, TRAINER, Tape, by_arm, grid_of, kinds, program, row, starts, wait_for
from workbench.grid import folder as run_folder
from workbench.grid.child import Child
from workbench.grid.run import run
from workbench.grid.session import Limits
from workbench.spec import InputError


def test_two_grids_at_once_train_every_cell_once_and_both_see_all_of_them_finish(tmp_path: Path, begin: Begin) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo", "s-ppo"), iterations=3, seeds=(0, 1))
    other = begin(sys.executable, "-c", program(tmp_path))
    mine = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, workers=2)
    theirs, _ = other.communicate(timeout=120)
    assert other.returncode == 0
    assert [starts(r.folder) for r in mine] == [1] * 6
    assert theirs.split() == [f"{r.cell.run_id}={r.status}" for r in mine]
    assert [row(r.folder)["status"] for r in mine] == ["finished"] * 6


def test_a_cell_that_another_process_trains_is_waited_for(tmp_path: Path, begin: Begin) -> None:
    grid = grid_of(tmp_path, ppo={"wait_at": 2})
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    begin(sys.executable, str(TRAINER), str(folder))
    wait_for(lambda: run_folder.checkpoint(folder) == 1)
    tape = Tape()
    tape.ended = lambda result: (tmp_path / "runs" / "go").touch()  # type: ignore[method-assign]  # grpo is done
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS))
    assert {arm: r.status for arm, r in results.items()} == {"ppo": "finished", "grpo": "finished"}
    assert results["ppo"].skipped
    assert tape.started_cells == ["grpo"]
    assert starts(folder) == 1


def test_waiting_for_another_process_ends_with_ctrl_c_and_leaves_it_alone(tmp_path: Path, begin: Begin) -> None:
    grid = grid_of(tmp_path, ("ppo",), ppo={"wait_at": 2})
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    trainer = begin(sys.executable, str(TRAINER), str(folder))
    wait_for(lambda: run_folder.checkpoint(folder) == 1)
    claim = run_folder.take(folder / "claim")  # as its grid would hold it
    tape = Tape()
    tape.note = lambda text: os.kill(os.getpid(), signal.SIGINT)  # type: ignore[method-assign]  # it says that it waits
    (result,) = run(grid, tmp_path / "runs", tape, commands=COMMANDS)
    assert (result.status, result.reason) == ("elsewhere", "another process trains it")
    assert trainer.poll() is None
    assert claim is not None


def test_a_cell_that_becomes_free_unfinished_is_run_after_all(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, iterations=6, grpo={"step_seconds": 0.2})
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    claim = run_folder.claim(folder)
    assert claim is not None
    threading.Timer(0.5, claim.close).start()
    results = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS))
    assert {arm: r.status for arm, r in results.items()} == {"ppo": "finished", "grpo": "finished"}
    assert starts(folder) == 1


def test_a_cell_that_fails_in_the_other_grid_is_not_tried_again_here(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo",), ppo={"fail_at": 2})
    tape = Tape()
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    claim = run_folder.claim(folder)
    assert claim is not None
    command = (sys.executable, str(TRAINER), str(folder))

    def train_and_file(text: str) -> None:
        Child(command, folder / "console.log", 1)._process.wait()
        from workbench.grid import rows

        rows.change(folder, run_folder.identity(grid.cells[0]), status="failed", ended_at=rows.now())
        claim.close()

    tape.note = train_and_file  # type: ignore[method-assign]  # it says that it waits
    (result,) = run(grid, tmp_path / "runs", tape, commands=COMMANDS)
    assert (result.status, result.reason) == ("failed", "RuntimeError: scripted failure")
    assert starts(folder) == 1


def test_storage_without_locks_is_refused_because_nothing_would_keep_two_processes_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr("workbench.grid.folder.fcntl.flock", unsupported)
    with pytest.raises(InputError, match=r"storage without file locks .*name another folder with --runs"):
        run(grid_of(tmp_path), tmp_path / "runs", Tape(), commands=COMMANDS)


def test_a_trainer_whose_claim_did_not_travel_is_protected_by_its_own_lock(tmp_path: Path, begin: Begin) -> None:
    """A trainer on another machine holds no claim: a second grid that starts one is turned away and waits."""
    grid = grid_of(tmp_path, ("ppo",), iterations=3, ppo={"wait_at": 3})
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])

    class Elsewhere:
        slots = 1
        started = 0

        def start(self, command: list[str], log: Path, threads: int, keep: object) -> Child:
            self.started += 1
            if self.started == 1:  # in the moment between the claim and the start, the other one takes its lock
                begin(sys.executable, str(TRAINER), str(folder))
                wait_for(lambda: run_folder.checkpoint(folder) == 2)
                threading.Timer(1.0, (tmp_path / "runs" / "go").touch).start()
            return Child(command, log, threads)

    elsewhere = Elsewhere()
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, executor=elsewhere, limits=Limits(retries=0))
    assert result.status == "finished"
    assert elsewhere.started == 1
    assert starts(folder) == 2, "the second one found the lock taken and left"
    assert "failed" not in kinds(folder)
