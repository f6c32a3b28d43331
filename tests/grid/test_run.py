"""A grid over the scripted trainer: bad ends and their causes, retries, Ctrl-C, kill -9, edits, starting
over.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sorl.grid import folder as run_folder
from sorl.grid.cell import workers_for
from sorl.grid.config import Grid, load
from sorl.grid.folder import History, append, mean_factor
from sorl.grid.process import Local
from sorl.grid.result import Limits, Result
from sorl.grid.run import run, run_rounds
from sorl.spec import InputError
from sorl.store.segments import held, now
from tests.grid import harness
from tests.grid.harness import (
    TRAINER,
    Tape,
    by_arm,
    events,
    go,
    grid_of,
    home,
    kinds,
    row,
    script,
    starts,
    wait_for,
)

ONCE = Limits(retries=0)
MIB = 2**20


def ctrl_c(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt(*steps: int) -> Any:
    return lambda cell, row: ctrl_c() if row["step"] in steps else None


def test_every_cell_runs_to_its_end_and_the_same_call_starts_nothing(tmp_path):
    grid = grid_of(tmp_path)
    tape = Tape()
    again = Tape()
    results = go(grid, tape, workers=2)
    assert [r.status for r in results] == ["finished", "finished"]
    assert [step for arm, step in tape.steps if arm == "ppo"] == [1, 2, 3, 4]
    written = row(results[0].folder)
    assert (written["status"], written["generation"], written["attempt"]) == ("finished", 1, 1)
    assert not (results[0].folder / "segments" / "event").exists(), "nothing happened to it"
    experiment = tmp_path / "runs" / "demo"
    assert (experiment / "experiment.toml").read_text() == (tmp_path / "demo.toml").read_text()
    assert all(r.skipped and r.status == "finished" for r in go(grid, again))
    assert (again.started_cells, tape.closed, again.closed) == ([], 1, 1)
    assert [starts(r.folder) for r in results] == [1, 1]
    assert len(list((experiment / "segments" / "experiment").glob("*.parquet"))) == 1, (
        "an unchanged file is kept once"
    )
    more = Tape()
    go(grid_of(tmp_path, ("ppo", "grpo"), seeds=(0, 1)), more)
    assert (sorted(more.started_cells), more.notes) == (
        ["grpo", "ppo"],
        [],
    ), "only what is new, and nothing was edited"
    (results[0].folder / "segments" / "run" / "000099.parquet").write_bytes(b"PAR1 torn")
    assert row(results[0].folder)["status"] == "finished", "a torn segment does not hide the row before it"


def test_cells_wait_as_queued_rows_and_no_more_run_at_a_time_than_there_are_workers(tmp_path):
    arms = ("ppo", "grpo", "s-ppo")
    grid = grid_of(tmp_path, arms, **{arm: {"step_seconds": 0.2} for arm in arms})
    folders = [run_folder.folder_of(tmp_path / "runs", cell) for cell in grid.cells]
    seen: list[tuple[int, dict[str, Any]]] = []
    look = lambda *_: seen.append((sum(map(held, folders)), row(folders[2])))  # noqa: E731
    go(grid, Tape(on_step=look), workers=2)
    assert 0 < max(training for training, _ in seen) <= 2
    first = seen[0][1]
    assert (first["status"], first["arm"], first["seed"], first["outcome"]) == ("queued", "s-ppo", 0, None)
    assert json.loads(first["config"])["algorithm"] == "s-ppo"


def test_a_core_for_each_thread_unless_the_user_says_otherwise(tmp_path):
    cells = load(harness.grid_file(tmp_path, "seeds = [0, 1, 2, 3, 4, 5]\n[base]\nthreads = 2\n")).cells
    assert [workers_for(cells, slots=cores) for cores in (1, 2, 4, 64)] == [1, 1, 2, 6]
    assert (workers_for(cells, wanted=3, slots=2), workers_for([], slots=4)) == (3, 1)


def test_cells_end_badly_each_for_its_own_reason_and_the_others_finish(tmp_path):
    bad: dict[str, Any] = {"ppo": {"fail_at": 2}, "grpo": {"grow_at": 2}, "s-ppo": {"hang_at": 2}}
    bad |= {"st-ppo": {"nan_at": 2}, "so-grpo": {"grow_at": 1, "child": True}}
    slow = {"starting": 4, "step_seconds": 3.5, "beats": True}  # with signs of life, so that it is no hang
    grid = grid_of(tmp_path, (*bad, "turn-ppo"), iterations=2, **bad, **{"turn-ppo": slow})
    results = by_arm(go(grid, limits=Limits(retries=0, hang_seconds=3, memory=600 * MIB), workers=3))
    assert {arm: (r.status, r.cause) for arm, r in results.items()} == {
        "ppo": ("failed", "failed"),
        "grpo": ("failed", "out of memory"),
        "s-ppo": ("failed", "hang"),
        "st-ppo": ("finished", "diverged"),
        "so-grpo": ("failed", "out of memory"),  # the memory is that of a child
        "turn-ppo": ("finished", ""),
    }
    assert results["ppo"].reason == "RuntimeError: scripted failure"
    assert "over the limit of 0.586 GiB a cell (--memory)" in results["grpo"].reason
    hung = "hang: no sign of life for 3 s in step 1, in wait_for_an_answer_that_never_comes (trainer.py:"
    assert results["s-ppo"].reason.startswith(hung)
    assert results["st-ppo"].reason == "loss or gradient is not finite in step 1"
    for arm, kind in (("ppo", "failed"), ("grpo", "out_of_memory"), ("s-ppo", "hang")):
        folder = results[arm].folder
        written = row(results[arm].folder)
        (event,) = events(folder)
        assert (event["kind"], event["severity"], event["message"]) == (kind, "critical", results[arm].reason)
        assert (written["status"], written["reason"]) == ("failed", results[arm].reason)
        assert None not in (
            written["ended_at"],
            written["started_at"],
        ), "what the trainer wrote before is kept"
        assert not held(folder), "its process is gone"


@pytest.mark.parametrize(
    ("how", "kind", "reason"),
    [
        ({"fail_at": 3}, "failed", "RuntimeError: scripted failure"),
        ({"fail_at": 3, "silent": True}, "killed", "killed by SIGKILL, often because memory ran out"),
        ({"hang_at": 3}, "hang", "hang: no sign of life for 2 s in step 2, in wait_for_an_answer"),
    ],
)
def test_a_cell_that_fails_is_retried_from_its_checkpoint_and_its_attempts_are_counted(
    tmp_path, how, kind, reason
):
    tape = Tape()
    (result,) = go(
        grid_of(tmp_path, ("ppo",), iterations=5, ppo={"times": 1, **how}), tape, limits=Limits(1, 2)
    )
    assert result.status == "finished"
    assert tape.steps == [("ppo", step) for step in (1, 2, 3, 4, 5)], "no step is trained twice"
    failed, retried = events(result.folder)
    assert (failed["kind"], failed["step"], retried["kind"], retried["step"]) == (kind, 2, "retried", 2)
    assert failed["message"].startswith(reason)
    assert (
        retried["message"]
        == f"attempt 2 starts from the checkpoint after 2 steps; before it: {failed['message']}"
    )
    assert retried["value"] == row(result.folder)["attempt"] == 2
    assert tape.notes == [f"retry 1 of 1: ppo seed 0: {failed['message']}"]


@pytest.mark.parametrize("retries", [0, 2])
def test_a_cell_that_fails_every_time_is_given_up_and_the_next_call_tries_again(tmp_path, retries):
    grid = grid_of(tmp_path, iterations=5, ppo={"fail_at": 3})
    ppo = by_arm(go(grid, limits=Limits(retries=retries)))["ppo"]
    assert (ppo.status, ppo.reason, ppo.cause) == ("failed", "RuntimeError: scripted failure", "failed")
    assert starts(ppo.folder) == row(ppo.folder)["attempt"] == retries + 1
    script(tmp_path)
    tape = Tape()
    results = by_arm(go(grid, tape))
    assert (results["ppo"].status, results["grpo"].skipped) == ("finished", True)
    assert tape.steps == [("ppo", 3), ("ppo", 4), ("ppo", 5)], "steps 1 and 2 are not trained again"
    assert tape.resumed == ["ppo"]
    assert kinds(ppo.folder)[-1] == "resumed"


@pytest.mark.parametrize(
    ("how", "reason", "tries"),
    [
        ({"exit": 2, "said": "sorl: no such model"}, "no such model", 1),
        ({"exit": 9}, "exit code 9, nothing in console.log", 2),
        ({"exit": 1, "said": "\x1b[2J\x1b]0;owned\x07boom\x9b31m \u202etxt"}, "boom31m txt", 2),
    ],
)
def test_a_reason_is_the_last_line_of_its_attempt_and_wrong_input_is_not_retried(
    tmp_path, how, reason, tries
):
    go(grid_of(tmp_path, ("ppo",), ppo={"exit": 1, "said": "an earlier attempt"}))
    tape = Tape()
    (result,) = go(grid_of(tmp_path, ("ppo",), ppo=how), tape)
    assert (result.status, result.reason) == ("failed", reason)
    assert tape.started_cells == ["ppo"] * tries


def test_a_finished_run_whose_process_is_killed_is_finished_and_leaves_no_process_behind(tmp_path):
    (result,) = go(grid_of(tmp_path, ("ppo",), ppo={"killed_after": True, "grandchild": True}))
    assert (result.status, starts(result.folder)) == ("finished", 1)
    pid = int((result.folder / "grandchild").read_text())
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_cell_that_cannot_be_started_stops_no_other_and_an_error_in_the_display_stops_all(tmp_path):
    class Broken(Local):
        def start(self, job):
            if "grpo" in job.folder.name:
                raise OSError("Resource temporarily unavailable")
            return super().start(job)

    grid = grid_of(tmp_path)
    results = by_arm(go(grid, executor=Broken()))
    assert results["ppo"].status == "finished"
    assert results["grpo"].reason == "could not be started: Resource temporarily unavailable"
    grid = grid_of(tmp_path, ("ppo",), iterations=10_000)
    with pytest.raises(ZeroDivisionError):
        go(grid, Tape(on_step=lambda *_: 1 / 0))
    assert not held(home(grid))


def test_one_interrupt_lets_the_cells_checkpoint_and_the_same_call_resumes(tmp_path):
    grid = grid_of(tmp_path, ("ppo", "grpo"), iterations=30, ppo={"step_seconds": 0.1})
    before = signal.getsignal(signal.SIGINT)
    tape = Tape(on_step=interrupt(2))
    again = Tape()
    results = by_arm(go(grid, tape, workers=1))
    assert {arm: r.status for arm, r in results.items()} == {"ppo": "interrupted", "grpo": "queued"}
    assert row(results["ppo"].folder)["status"] == "interrupted"
    assert any("1 runs write a checkpoint" in note for note in tape.notes)
    assert signal.getsignal(signal.SIGINT) is before, "Ctrl-C means what it did before"
    results = by_arm(go(grid, again, workers=2))
    assert {r.status for r in results.values()} == {"finished"}
    assert min(s for arm, s in again.steps if arm == "ppo") == 1 + max(step for _, step in tape.steps)
    assert kinds(results["ppo"].folder) == ["interrupted", "resumed"]


def test_a_second_interrupt_kills_cells_that_do_not_stop_and_one_at_a_start_leaves_it_for_later(tmp_path):
    grid = grid_of(tmp_path, ("ppo",), iterations=1000, ppo={"step_seconds": 0.05, "ignore_sigint": True})
    tape = Tape(on_step=interrupt(2, 12))
    (result,) = go(grid, tape)
    assert max(tape.steps)[1] >= 12, "one interrupt alone did not end it"
    assert (result.status, result.reason) == ("interrupted", "killed by a second Ctrl-C")
    assert row(result.folder)["status"] == "interrupted"
    assert not held(result.folder), "the process is gone and its lock with it"
    (result,) = go(grid_of(tmp_path, ("grpo",), grpo={"starting": 60}), Tape(on_start=ctrl_c))
    assert (result.status, result.reason) == ("interrupted", "stopped before its first step")
    (result,) = go(grid_of(tmp_path, ("grpo",)))
    assert result.status == "finished"


def test_a_trainer_killed_with_its_grid_is_resumed_and_its_death_recorded(tmp_path, begin):
    grid = grid_of(tmp_path, ("ppo",), iterations=6, ppo={"wait_at": 3})
    folder = home(grid, prepared=True)
    trainer = begin(sys.executable, str(TRAINER), str(folder))
    wait_for(lambda: run_folder.checkpoint(folder) == 2)
    trainer.kill()
    trainer.wait()
    assert row(folder)["status"] == "running", "nothing could record its death"
    assert run_folder.status_of(row(folder), held(folder)) == "interrupted"
    (tmp_path / "runs" / "go").touch()
    tape = Tape()
    (result,) = go(grid, tape)
    assert result.status == "finished"
    assert tape.steps[0] == ("ppo", 3)
    assert kinds(folder) == ["killed", "resumed"]


@pytest.mark.parametrize(("status", "trained"), [("queued", 1), ("failed", 0)])
def test_a_cell_that_becomes_free_is_run_unless_it_just_failed_elsewhere(tmp_path, status, trained):
    grid = grid_of(tmp_path, ("ppo",))
    folder = home(grid, prepared=True)
    claim = run_folder.claim(folder)

    def end(text):
        identity = run_folder.identity(grid.cells[0])
        run_folder.change(folder, identity, status=status, reason="no luck", ended_at=now())
        claim.close()

    (result,) = go(grid, Tape(on_note=end))  # it reports that it waits
    assert (result.status, starts(folder)) == ("finished" if trained else "failed", trained)


def stop_once(folder: Path) -> Any:
    """Stop the first attempt of a run when it has done a step, as SIGSTOP and a frozen disk do."""

    def hook(cell, row):
        if starts(folder) == row["step"] == 1:
            os.kill(int((folder / "starts.txt").read_text().split()[0]), signal.SIGSTOP)

    return hook


def test_a_trainer_that_is_stopped_is_killed_from_outside_and_tried_again(tmp_path):
    grid = grid_of(tmp_path, ("ppo",), iterations=60, ppo={"step_seconds": 0.1})
    tape = Tape(on_step=stop_once(home(grid)))
    began = time.monotonic()
    (result,) = go(grid, tape, limits=Limits(retries=1, hang_seconds=2))
    assert time.monotonic() - began < 60
    assert (result.status, starts(result.folder)) == ("finished", 2)
    killed = events(result.folder)[0]
    assert (killed["kind"], killed["severity"]) == ("hang", "critical")
    assert killed["message"].startswith("hang: no sign of life for 2 s in step ")
    assert killed["message"].endswith(", stopped from outside (SIGSTOP)")


def test_a_trainer_that_is_stopped_before_its_first_step_is_killed_too_and_a_slow_one_is_not(tmp_path):
    class Stopping(Local):
        def start(self, job):
            trainer = super().start(job)
            if "s-ppo" in job.folder.name and not starts(job.folder):
                os.kill(trainer._pid, signal.SIGSTOP)
            return trainer

    grid = grid_of(tmp_path, ("ppo", "s-ppo"), iterations=2, ppo={"starting": 4})
    limits = Limits(retries=0, hang_seconds=1)
    results = by_arm(go(grid, executor=Stopping(), limits=limits, workers=2))
    assert (results["ppo"].status, results["s-ppo"].status) == ("finished", "failed")
    assert (
        results["s-ppo"].reason == "hang: no sign of life for 1 s in step 0, stopped from outside (SIGSTOP)"
    )


def test_a_stopped_trainer_writes_its_checkpoint_on_ctrl_c(tmp_path):
    grid = grid_of(tmp_path, ("ppo",), iterations=100, ppo={"step_seconds": 0.1})

    def stop_and_interrupt(cell, row):
        stop_once(home(grid))(cell, row)
        interrupt(1)(cell, row)

    (result,) = go(grid, Tape(on_step=stop_and_interrupt))
    assert (result.status, result.reason) == ("interrupted", "stopped by SIGINT")


def test_a_trainer_of_another_command_trains_on_and_waiting_for_it_ends_with_ctrl_c(tmp_path, begin):
    grid = grid_of(tmp_path, ("ppo",), ppo={"wait_at": 2})
    folder = home(grid, prepared=True)
    trainer = begin(sys.executable, str(TRAINER), str(folder))
    wait_for(lambda: run_folder.checkpoint(folder) == 1)
    tape = Tape(on_note=ctrl_c)  # it says that it waits
    (result,) = go(grid, tape)
    waits = f"waiting: ppo seed 0 is trained by another process, PID {trainer.pid}"
    assert tape.notes == [f"{waits}; `kill {trainer.pid}` ends it"]
    trainer.send_signal(signal.SIGSTOP)
    tape = Tape(on_note=ctrl_c)
    go(grid, tape)
    ends = f"`kill -CONT {trainer.pid}` continues it, `kill -KILL {trainer.pid}` ends it"
    assert tape.notes == [f"{waits}, which is stopped: {ends}"]
    trainer.send_signal(signal.SIGCONT)
    assert (result.status, result.reason) == ("elsewhere", "another process trains it")
    assert trainer.poll() is None
    # The next call waits until it is done, and trains nothing again.
    (result,) = go(grid, Tape(on_note=lambda text: (tmp_path / "runs" / "go").touch()))
    assert (result.status, result.skipped, starts(folder)) == ("finished", True, 1)


def test_a_trainer_that_begins_between_claim_and_start_keeps_the_second_out(tmp_path, begin):
    grid = grid_of(tmp_path, ("ppo",), iterations=3, ppo={"wait_at": 3})
    folder = home(grid, prepared=True)

    class Late(Local):
        def start(self, job):
            if not starts(folder):
                begin(sys.executable, str(TRAINER), str(folder))
                wait_for(lambda: run_folder.checkpoint(folder) == 2)
            return super().start(job)

    tape = Tape(on_note=lambda text: (tmp_path / "runs" / "go").touch())  # it says that it waits
    (result,) = go(grid, tape, executor=Late(), limits=ONCE)
    assert (result.status, starts(folder)) == ("finished", 2), "the second one found the lock taken and left"
    assert "failed" not in kinds(folder)


def test_folders_that_cannot_be_made_or_locked_are_refused(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    grid = grid_of(tmp_path, ("ppo",))
    for folder in (Path("/proc/nowhere"), tmp_path / "file" / "runs"):
        with pytest.raises(
            InputError, match=rf"cannot make the runs folder '{folder}': .*name another with --runs"
        ):
            run(grid, folder, Tape())
    os.mkfifo(home(grid, prepared=True) / "claim")
    with pytest.raises(InputError, match=r"claim' is a pipe.*remove it"):
        go(grid)
    (home(grid) / "claim").unlink()

    monkeypatch.setattr(
        "sorl.spec.files.fcntl.flock", Mock(side_effect=OSError(95, "Operation not supported"))
    )
    with pytest.raises(InputError, match=r"storage without file locks .*name another folder with --runs"):
        go(grid)


def test_an_edited_cell_is_a_new_cell_and_the_newest_earlier_settings_are_named(tmp_path):
    def edited(*lines):
        path = grid_of(tmp_path, ("ppo",), iterations=2, seeds=(0, 1)).path
        tape = Tape()
        path.write_text(path.read_text().replace("[axes]", "\n".join([*lines, "[axes]"])))
        assert len({r.folder for r in go(load(path), tape)}) == 2
        return tape.notes

    assert edited() == []
    before = "ppo seeds 0, 1 ran before with"
    stay = "new cells; the earlier runs stay"
    both = "learn.epochs = 1, now 2; learn.value_clip = 0.5, now 0.3"
    assert edited("learn.epochs = 2", "learn.value_clip = 0.3") == [f"{before} {both}: {stay}"]
    found = edited("learn.epochs = 2", 'learn.value_clip = "none"')
    assert found == [f"{before} learn.value_clip = 0.3, now none: {stay}"]
    assert edited("learn.epochs = 2", 'learn.value_clip = "none"', "threads = 2") == [], (
        "cosmetic: the same cell"
    )
    assert edited() == [], "the edit undone, the first cells are there"


def test_fresh_starts_over_in_new_folders_and_the_plain_command_continues_the_newest(tmp_path):
    grid = grid_of(tmp_path, iterations=5)
    tape = Tape()
    first = go(grid)
    kept = {
        p: p.read_bytes() for r in first for p in r.folder.rglob("*") if p.is_file() and p.name != "claim"
    }
    script(tmp_path, ppo={"fail_at": 3})
    second = go(grid, tape, fresh=True, limits=ONCE)
    assert [r.folder.name for r in second] == [f"{r.folder.name}-g2" for r in first]
    assert tape.notes == [], "the same settings are no edit"
    assert {p: p.read_bytes() for p in kept} == kept
    assert [row(r.folder)["generation"] for r in (*first, *second)] == [1, 1, 2, 2]
    assert row(second[0].folder)["config_hash"] == row(first[0].folder)["config_hash"]
    script(tmp_path)
    third = Tape()
    results = by_arm(go(grid, third))
    assert third.steps == [("ppo", 3), ("ppo", 4), ("ppo", 5)]
    assert results["ppo"].folder == second[0].folder
    assert results["grpo"].skipped
    assert {r.folder.name[-3:] for r in go(grid, fresh=True)} == {"-g3"}


def test_fresh_takes_cells_that_never_began_as_they_are_and_refuses_those_in_training(tmp_path):
    grid = grid_of(tmp_path, iterations=30, ppo={"step_seconds": 0.1})
    go(grid, Tape(on_step=interrupt(1)), workers=1)
    script(tmp_path)
    results = by_arm(go(grid, fresh=True))
    assert (results["ppo"].cell.generation, results["grpo"].cell.generation) == (2, 1)
    claim = run_folder.claim(results["ppo"].folder)
    with (
        claim,
        pytest.raises(InputError, match=f"another process trains: {results['ppo'].folder.name}; stop it"),
    ):
        go(grid, fresh=True)
    assert not list((tmp_path / "runs" / "demo").glob("*-g3"))


REGION = """
kind = "region"
seeds = [0, 1]
[base]
iterations = 2
[axes]
algorithm = ["grpo"]
"learn.staleness" = [0, 8]
[region]
low = 0.1
high = 0.8
points = 4
probes = 1
"""
MATCHED = """
seeds = [0, 1]
[base]
iterations = 2
learn.policy.lr = 0.2
[axes]
algorithm = ["s-ppo"]
[[arms]]
name = "ppo, matched"
algorithm = "ppo"
match = "s-ppo"
"""


def rounds(path: Path, tape: Tape | None = None, **options: Any) -> tuple[Grid, list[Result]]:
    runs = path.parent / "runs"
    history = History(path.parent / "runs", now() if options.get("fresh") else None)
    return run_rounds(
        lambda: load(path, (), history), runs, lambda: tape or Tape(), **{"workers": 2, **options}
    )


FALLS = {"grpo": {"0": 0.3, "8": 0.3}}


def test_a_region_is_searched_round_by_round_and_the_same_call_goes_on(tmp_path):
    path = harness.scripted_file(tmp_path, REGION, falls=FALLS)
    # The first round fails at one of its runs: nothing that depends on it is begun.
    label = "grpo · staleness 0 · policy.lr 0.2"
    script(tmp_path, falls=FALLS, **{label: {"fail_at": 1}})
    grid, results = rounds(path, limits=Limits(retries=0))
    assert [(r.cell.arm, r.cell.seed, r.status) for r in results] == [(label, 0, "failed")]
    assert grid.region.progress.rounds == 0
    script(tmp_path, falls=FALLS)
    tape = Tape()
    grid, results = rounds(path, tape)
    assert {r.status for r in results} == {"finished"}
    assert not grid.region.progress.now
    probed = [(c.settings.learn.staleness, c.settings.learn.policy.lr, c.seed) for c in grid.cells]
    assert probed == [(staleness, lr, seed) for staleness in (0, 8) for seed in (0, 1) for lr in (0.2, 0.4)]
    assert len([note for note in tape.notes if note.startswith("round ")]) > 1
    _, again = rounds(path)
    assert all(r.skipped for r in again), "a search that is over starts nothing"
    assert {starts(r.folder) for r in again if r.cell.arm != label} == {1}


def test_the_matched_arm_waits_for_its_source_and_takes_its_factor_seed_by_seed(tmp_path):
    path = harness.scripted_file(tmp_path, MATCHED, **{"s-ppo": {"factor": 0.75}})
    known = load(path)
    assert [c.arm for c in known.cells] == ["s-ppo", "s-ppo"]
    assert [str(w) for w in known.waiting] == [
        f"'ppo, matched' seed {s} waits for s-ppo seed {s}" for s in (0, 1)
    ]
    grid, results = rounds(path)
    assert not grid.waiting
    matched = [r.cell for r in results if r.cell.arm == "ppo, matched"]
    told = [(c.seed, c.settings.learn.policy.lr, c.settings.match) for c in matched]
    assert told == [(0, 0.15, "s-ppo"), (1, 0.15, "s-ppo")]
    _, again = rounds(path)
    assert all(r.skipped for r in again)
    assert {r.cell.run_id for r in again} == {r.cell.run_id for r in results}
    history = History(tmp_path / "runs")
    cell = known.cells[0]
    assert mean_factor(history.past(cell).folder) == 0.75
    assert history.past(replace(cell, generation=7)) == history.past(cell), "the newest start, asked with any"
    assert History(tmp_path / "runs", since=now()).past(cell) is None, "only those that ended since"


def test_an_arm_of_another_experiment_is_followed_past_bad_folders_or_asked_for(tmp_path):
    (tmp_path / "other").mkdir()
    path = harness.scripted_file(tmp_path, MATCHED.replace('match = "s-ppo"', 'match = "other/s-ppo"'))
    waiting = load(path, (), History(tmp_path / "runs")).waiting
    assert "waits for other/s-ppo seed 0; train it with `sorl run experiments/other.toml`" in str(waiting[0])
    hurt = tmp_path / "runs" / "other"
    for name, told in (("text", "{"), ("a list", "[]"), ("deep", "[" * 10**5)):
        (hurt / name).mkdir(parents=True)
        (hurt / name / "run.json").write_text(told)
    source = hurt / "s-ppo-s0"
    (source / "segments" / "minibatch").mkdir(parents=True)
    (source / "run.json").write_text('{"arm": "s-ppo", "seed": 0}')
    append(source, "run", {"run_id": source.name, "status": "finished", "written_at": now()})
    for number, factor in enumerate((["text"], [0.5, None, 0.75])):
        pq.write_table(
            pa.table({"stabiliser_factor": factor}), source / f"segments/minibatch/{number:06d}.parquet"
        )
    os.mkfifo(source / "segments" / "minibatch" / "000002.parquet")
    grid = load(path, (), History(tmp_path / "runs"))
    assert [str(w).split(";")[0] for w in grid.waiting] == [
        "'ppo, matched' seed 1 waits for other/s-ppo seed 1"
    ]
    (matched,) = (c for c in grid.cells if c.arm == "ppo, matched")
    assert matched.settings.learn.policy.lr == 0.2 * 0.625


@pytest.mark.parametrize(
    ("text", "old", "new", "told"),
    [
        (MATCHED, 'match = "s-ppo"', 'match = "s-pppo"', "no arm of this file (did you mean 's-ppo'?)"),
        (MATCHED, 'match = "s-ppo"', 'match = "ppo, matched"', "is matched itself"),
        (REGION, "[region]", "[region]\nalong = 'learn.policy.lrr'", "did you mean 'learn.policy.lr'?"),
        (REGION, "[region]", "[region]\nalong = 'learn.staleness'", "an axis at once"),
        (
            REGION,
            "[region]",
            "[[arms]]\nname = 'a'\nlearn.policy.lr = 0.1\n[region]",
            "which is searched; delete it",
        ),
        (
            REGION,
            "[region]",
            "[[arms]]\nname = 'a'\nmatch = 'grpo'\n[region]",
            "'match', which a region cannot have",
        ),
        (REGION, "low = 0.1", "low = 0.9", "low = 0.9 must be below high = 0.8"),
        (REGION, "points = 4", "points = 2", "greater than or equal to 3"),
        (REGION, 'kind = "region"', 'kind = "grid"', "[region] needs kind = 'region'"),
        (REGION, REGION[REGION.index("[region]") :], "", "kind = 'region' needs a table [region]"),
        (REGION, '["grpo"]', '["grpo", "pppo"]', "did you mean 'ppo'?"),
        (REGION, "[0, 8]", "[]", "axis 'learn.staleness'"),
    ],
)
def test_a_mistake_in_a_search_or_a_match_is_named(tmp_path, text, old, new, told):
    with pytest.raises(InputError) as refused:
        load(harness.grid_file(tmp_path, text.replace(old, new)))
    assert told in str(refused.value)


def test_controls_have_a_region_too_and_further_axes_have_columns_of_their_own(tmp_path):
    text = REGION.replace(
        "[region]",
        '"learn.epochs" = [1, 4]\n[[arms]]\nname = "ppo, clipped"\nalgorithm = "ppo"\n'
        '"learn.policy.max_grad_norm" = 1.0\n[region]',
    )
    grid = load(harness.grid_file(tmp_path, text))
    assert [s.label for s in grid.region.series] == ["grpo", "ppo, clipped"]
    staleness_epochs = [(c["learn.staleness"], c["learn.epochs"]) for c in grid.region.columns]
    assert staleness_epochs == [(0, 1), (8, 1), (0, 4), (8, 4)]
    assert grid.region.neighbours == (None, 0, 0, 2)
    first = " · staleness 0 · epochs 1 · policy.lr 0.2"
    assert [c.arm for c in grid.cells] == [f"grpo{first}", f"ppo, clipped{first}"]
