"""The same command goes on: after failures, interrupts and kill -9; and an edited cell is a new one."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.grid.conftest import Begin
from tests.grid.harness import (
    COMMANDS,
    TRAINER,
    Tape,
    by_arm,
    events,
    grid_of,
    kinds,
    program,
    row,
    script,
    starts,
    wait_for,
)
from workbench.grid import folder as run_folder
from workbench.grid.cell import Cell
from workbench.grid.run import Commands, run
from workbench.grid.session import Limits
from workbench.spec import InputError

ONCE = Limits(retries=0)


def test_a_failed_cell_is_retried_from_its_checkpoint_and_its_attempts_are_counted(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo"), iterations=5, ppo={"fail_at": 3, "times": 1})
    tape = Tape()
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS, workers=1))
    assert results["ppo"].status == "finished"
    assert [step for arm, step in tape.steps if arm == "ppo"] == [1, 2, 3, 4, 5], "no step is trained twice"
    assert kinds(results["ppo"].folder) == ["failed", "retried"]
    retried = events(results["ppo"].folder)[-1]
    assert (retried["value"], retried["step"]) == (2.0, 2)
    assert "attempt 2 goes on from the checkpoint after 2 steps" in retried["message"]
    assert "RuntimeError: scripted failure" in retried["message"]
    assert row(results["ppo"].folder)["attempt"] == 2
    assert tape.notes == ["retry 1 of 1: ppo seed 0: RuntimeError: scripted failure"]
    assert row(results["grpo"].folder)["attempt"] == 1


@pytest.mark.parametrize("retries", [0, 2])
def test_a_cell_that_fails_every_time_is_given_up_after_its_retries(tmp_path: Path, retries: int) -> None:
    grid = grid_of(tmp_path, ("ppo",), ppo={"fail_at": 1})
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=Limits(retries=retries))
    assert (result.status, result.reason, result.cause) == ("failed", "RuntimeError: scripted failure", "failed")
    assert starts(result.folder) == retries + 1
    assert row(result.folder)["attempt"] == retries + 1


def test_wrong_input_is_not_retried(tmp_path: Path) -> None:
    commands = Commands((sys.executable, "-c", "import sys; print('sorl: no such model'); sys.exit(2)"), ("true",))
    tape = Tape()
    (result,) = run(grid_of(tmp_path, ("ppo",)), tmp_path / "runs", tape, commands=commands)
    assert (result.status, result.reason) == ("failed", "no such model")
    assert tape.started_cells == ["ppo"]


def test_a_failed_cell_is_taken_up_by_the_same_call_later(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, iterations=5, ppo={"fail_at": 3})
    run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=ONCE)
    script(tmp_path)
    tape = Tape()
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS))
    assert results["ppo"].status == "finished"
    assert tape.steps == [("ppo", 3), ("ppo", 4), ("ppo", 5)], "steps 1 and 2 are not trained again"
    assert tape.resumed == ["ppo"]
    assert results["grpo"].skipped
    assert kinds(results["ppo"].folder) == ["failed", "resumed"]


def test_one_interrupt_lets_the_cells_checkpoint_and_the_same_call_goes_on(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo"), iterations=30, ppo={"step_seconds": 0.1})
    before = signal.getsignal(signal.SIGINT)
    tape = Tape(on_step=lambda cell, step: os.kill(os.getpid(), signal.SIGINT) if step["step"] == 2 else None)
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS, workers=1))
    assert {arm: r.status for arm, r in results.items()} == {"ppo": "interrupted", "grpo": "queued"}
    assert row(results["ppo"].folder)["status"] == "interrupted"
    assert kinds(results["ppo"].folder) == ["interrupted"]
    assert any("write a checkpoint" in note for note in tape.notes)
    assert signal.getsignal(signal.SIGINT) is before, "Ctrl-C means what it did before"
    reached = max(step for _, step in tape.steps)
    again = Tape()
    results = by_arm(run(grid, tmp_path / "runs", again, commands=COMMANDS, workers=2))
    assert {r.status for r in results.values()} == {"finished"}
    assert min(step for arm, step in again.steps if arm == "ppo") == reached + 1
    assert kinds(results["ppo"].folder) == ["interrupted", "resumed"]


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
    assert (result.status, result.reason) == ("interrupted", "killed by a second Ctrl-C")
    assert row(result.folder)["status"] == "interrupted"
    assert time.monotonic() - began < 120
    assert not run_folder.held(result.folder), "the process is gone and with it its lock"


def test_an_interrupt_while_a_cell_starts_leaves_it_to_begin_later(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo",), ppo={"starting": 60})
    tape = Tape()
    tape.started = lambda cell, resumed: os.kill(os.getpid(), signal.SIGINT)  # type: ignore[method-assign]
    (result,) = run(grid, tmp_path / "runs", tape, commands=COMMANDS)
    assert (result.status, result.reason) == ("interrupted", "stopped before its first step")
    script(tmp_path)
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    assert result.status == "finished"


def test_an_interrupt_during_the_warm_start_stops_at_once_and_starts_no_cell(tmp_path: Path) -> None:
    commands = Commands(COMMANDS.trainer, (sys.executable, "-c", "import time; time.sleep(100)"))
    tape = Tape()
    tape.note = lambda text: os.kill(os.getpid(), signal.SIGINT)  # type: ignore[method-assign]  # it says that it begins
    began = time.monotonic()
    results = run(grid_of(tmp_path, warm=False), tmp_path / "runs", tape, commands=commands)
    assert time.monotonic() - began < 60
    assert tape.started_cells == []
    assert {(r.status, r.reason) for r in results} == {("queued", "not started: the grid was stopped")}
    results = run(grid_of(tmp_path, warm=False), tmp_path / "runs", Tape(), commands=COMMANDS)
    assert {r.status for r in results} == {"finished"}, "the claim on the warm start went with its process"


def test_a_trainer_that_was_killed_with_its_grid_is_resumed_and_its_death_is_on_record(
    tmp_path: Path, begin: Begin
) -> None:
    grid = grid_of(tmp_path, ("ppo",), iterations=6, ppo={"wait_at": 3})
    folder = run_folder.prepare(tmp_path / "runs", grid.cells[0])
    trainer = begin(sys.executable, str(TRAINER), str(folder))
    wait_for(lambda: run_folder.checkpoint(folder) == 2)
    trainer.kill()
    trainer.wait()
    assert row(folder)["status"] == "running", "nobody could say that it died"
    assert run_folder.status_of(row(folder), run_folder.held(folder)) == "interrupted"
    (tmp_path / "runs" / "go").touch()
    tape = Tape()
    (result,) = run(grid, tmp_path / "runs", tape, commands=COMMANDS)
    assert result.status == "finished"
    assert tape.steps[0] == ("ppo", 3)
    assert kinds(folder) == ["killed", "resumed"]


def test_a_killed_grid_leaves_trainers_that_the_next_call_waits_for(tmp_path: Path, begin: Begin) -> None:
    grid = grid_of(tmp_path, ("ppo", "grpo"), ppo={"wait_at": 2})
    victim = begin(sys.executable, "-c", program(tmp_path, workers=1))
    ppo = run_folder.folder_of(tmp_path / "runs", grid.cells[0])
    wait_for(lambda: run_folder.checkpoint(ppo) == 1)
    victim.kill()
    victim.wait()
    # The orphan trains on, and its claim keeps a second grid off it.
    tape = Tape()
    tape.ended = lambda result: (tmp_path / "runs" / "go").touch()  # type: ignore[method-assign]  # grpo is done
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS))
    assert {arm: r.status for arm, r in results.items()} == {"ppo": "finished", "grpo": "finished"}
    assert tape.started_cells == ["grpo"]
    assert any("ppo seed 0 is trained by another process" in note for note in tape.notes)
    assert starts(ppo) == 1


# Edited cells


def test_an_edited_cell_is_a_new_cell_and_the_edit_is_named(tmp_path: Path) -> None:
    before = run(grid_of(tmp_path, ("ppo", "grpo"), 3, (0, 1)), tmp_path / "runs", Tape(), commands=COMMANDS)
    tape = Tape()
    after = run(grid_of(tmp_path, ("ppo", "grpo"), 2, (0, 1)), tmp_path / "runs", tape, commands=COMMANDS)
    assert tape.notes == [
        "ppo seeds 0, 1; grpo seeds 0, 1 ran before with iterations = 3, now 2: new cells, what ran before stays"
    ]
    assert len(tape.started_cells) == 4
    assert not {r.folder for r in before} & {r.folder for r in after}
    assert all(r.folder.is_dir() for r in before)
    again = Tape()
    run(grid_of(tmp_path, ("ppo", "grpo"), 3, (0, 1)), tmp_path / "runs", again, commands=COMMANDS)
    assert (again.notes, again.started_cells) == ([], []), "the edit taken back, the old cells are there"


def test_the_closest_of_several_earlier_settings_is_compared_with(tmp_path: Path) -> None:
    def edited(*lines: str) -> Any:
        grid_of(tmp_path, ("ppo",), iterations=2)
        path = tmp_path / "demo.toml"
        path.write_text(path.read_text().replace("[axes]", "\n".join([*lines, "[axes]"])))
        from workbench.grid.file import load

        tape = Tape()
        run(load(path), tmp_path / "runs", tape, commands=COMMANDS)
        return tape.notes

    assert edited() == []
    assert edited("learn.epochs = 2", "learn.value_clip = 0.3") == [
        "ppo seed 0 ran before with learn.epochs = 1, now 2; learn.value_clip = 0.5, now 0.3: "
        "new cells, what ran before stays"
    ]
    assert edited("learn.epochs = 2", 'learn.value_clip = "none"') == [
        "ppo seed 0 ran before with learn.value_clip = 0.3, now none: new cells, what ran before stays"
    ]
    assert edited("learn.epochs = 2", 'learn.value_clip = "none"', "threads = 2") == [], "cosmetic: the same cell"


# Starting over


def test_fresh_starts_over_in_new_folders_and_deletes_nothing(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    first = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    kept = {p: p.read_bytes() for r in first for p in r.folder.rglob("*") if p.is_file()}
    tape = Tape()
    second = run(grid, tmp_path / "runs", tape, commands=COMMANDS, fresh=True)
    assert [r.folder.name for r in second] == [f"{r.folder.name}-g2" for r in first]
    assert tape.started_cells == ["ppo", "grpo"]
    assert tape.notes == [], "the same settings are no edit"
    assert {p: p.read_bytes() for p in kept} == kept
    assert [row(r.folder)["generation"] for r in (*first, *second)] == [1, 1, 2, 2]
    assert row(second[0].folder)["config_hash"] == row(first[0].folder)["config_hash"]


def test_after_fresh_the_plain_command_goes_on_with_the_newest_generation(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, iterations=5)
    run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    script(tmp_path, ppo={"fail_at": 3})
    run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, fresh=True, limits=ONCE)
    script(tmp_path)
    tape = Tape()
    results = by_arm(run(grid, tmp_path / "runs", tape, commands=COMMANDS))
    assert tape.steps == [("ppo", 3), ("ppo", 4), ("ppo", 5)]
    assert results["ppo"].folder.name.endswith("-g2")
    assert results["grpo"].skipped
    third = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, fresh=True)
    assert {r.folder.name[-3:] for r in third} == {"-g3"}


def test_fresh_takes_generations_that_never_began(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, iterations=30, ppo={"step_seconds": 0.1})
    tape = Tape(on_step=lambda cell, step: os.kill(os.getpid(), signal.SIGINT) if step["step"] == 1 else None)
    run(grid, tmp_path / "runs", tape, commands=COMMANDS, workers=1)
    script(tmp_path)
    results = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, fresh=True))
    assert results["ppo"].cell.generation == 2
    assert results["grpo"].cell.generation == 1, "it was only queued, so there is nothing to start over"


def test_fresh_refuses_while_a_cell_is_being_trained(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    results = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    claim = run_folder.claim(results[0].folder)
    assert claim is not None
    with claim, pytest.raises(InputError, match=f"another process trains: {results[0].folder.name}; stop it first"):
        run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, fresh=True)
    assert not (tmp_path / "runs" / "demo" / f"{results[1].folder.name}-g2").exists()
