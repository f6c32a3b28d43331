"""One cell raises, one hangs, one takes too much memory, one diverges: the others finish, each cause has its name."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.grid.harness import COMMANDS, Tape, by_arm, events, grid_of, kinds, row, starts
from workbench.grid import child as children
from workbench.grid import folder as run_folder
from workbench.grid.child import Child
from workbench.grid.run import Commands, run
from workbench.grid.session import Limits

ONCE = Limits(retries=0)
MIB = 2**20


def test_four_cells_end_badly_each_for_its_own_reason_and_the_others_finish(tmp_path: Path) -> None:
    grid = grid_of(
        tmp_path,
        ("ppo", "grpo", "s-ppo", "st-ppo", "turn-ppo", "so-grpo"),
        **{"ppo": {"fail_at": 2}, "grpo": {"grow_at": 2}, "s-ppo": {"hang_at": 3}, "st-ppo": {"nan_at": 2}},
    )
    limits = Limits(retries=0, hang_seconds=6, memory=300 * MIB)
    results = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=limits, workers=3))
    assert {arm: (r.status, r.cause) for arm, r in results.items()} == {
        "ppo": ("failed", "failed"),
        "grpo": ("failed", "out of memory"),
        "s-ppo": ("failed", "hang"),
        "st-ppo": ("finished", "diverged"),
        "turn-ppo": ("finished", ""),
        "so-grpo": ("finished", ""),
    }
    assert results["ppo"].reason == "RuntimeError: scripted failure"
    assert "over the limit of 0.293 GiB a cell (--memory)" in results["grpo"].reason
    assert "s in step 2, in wait_for_an_answer_that_never_comes (trainer.py:" in results["s-ppo"].reason
    assert results["st-ppo"].reason == "loss or gradient is not finite in step 1"
    for arm, kind in (("ppo", "failed"), ("grpo", "out_of_memory"), ("s-ppo", "hang")):
        folder = results[arm].folder
        assert kinds(folder) == [kind]
        (event,) = events(folder)
        assert (event["severity"], event["message"]) == ("critical", results[arm].reason)
        written = row(folder)
        assert (written["status"], written["reason"]) == ("failed", results[arm].reason)
        assert written["ended_at"] is not None
        assert written["started_at"] is not None, "what the trainer had written before is kept"
        assert not run_folder.held(folder), "its process is gone"


def test_a_trainer_that_is_killed_without_a_word_is_retried_and_its_death_is_filed(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo",), ppo={"fail_at": 3, "silent": True, "times": 1})
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS)
    assert result.status == "finished"
    killed, retried = events(result.folder)
    assert (killed["kind"], killed["step"]) == ("killed", 2)
    assert killed["message"].startswith("killed by SIGKILL at 0.")
    assert retried["kind"] == "retried"


def test_a_kill_by_the_kernel_for_want_of_memory_is_told_from_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([7, 8])  # of the whole machine: before the process was started, after it died
    monkeypatch.setattr(children, "oom_kills", lambda: next(counts))
    grid = grid_of(tmp_path, ("ppo",), ppo={"fail_at": 2, "silent": True})
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=ONCE)
    assert result.cause == "out of memory"
    assert result.reason.startswith("out of memory: the kernel killed it at 0.")
    assert kinds(result.folder) == ["out_of_memory"]


def test_an_allocation_that_fails_is_out_of_memory_with_the_peak_that_was_measured(tmp_path: Path) -> None:
    message = "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough memory: 12 bytes"
    grid = grid_of(tmp_path, ("ppo",), ppo={"fail_at": 2, "message": message, "step_seconds": 0.3})
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=ONCE)
    assert result.cause == "out of memory"
    assert result.reason.startswith("out of memory at 0.")
    assert result.reason.endswith(f"GiB: {message}")
    assert row(result.folder)["reason"] == result.reason


def test_memory_is_that_of_the_cell_with_everything_it_started(tmp_path: Path) -> None:
    inner = "import time; ballast = b'x' * (256 << 20); time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    commands = Commands((sys.executable, "-c", outer), ("true",))
    limits = Limits(retries=0, memory=200 * MIB)
    (result,) = run(grid_of(tmp_path, ("ppo",)), tmp_path / "runs", Tape(), commands=commands, limits=limits)
    assert result.cause == "out of memory"


def test_a_cell_that_is_slow_to_start_or_pauses_as_long_as_its_pace_allows_is_no_hang(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo",), iterations=1, ppo={"starting": 8})
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=Limits(retries=0, hang_seconds=5))
    assert result.status == "finished", "the limit counts from the first step"
    grid = grid_of(tmp_path, ("ppo",), iterations=3, ppo={"step_seconds": 2})
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=ONCE)
    assert result.status == "finished"


def test_a_heartbeat_inside_a_long_step_keeps_the_cell_alive(tmp_path: Path) -> None:
    beating = (
        "import sys, time, json; from pathlib import Path\n"
        "folder = Path(sys.argv[1]); print(json.dumps({'step': 1}))\n"
        "for _ in range(80): (folder / 'heartbeat').touch(); time.sleep(0.1)\n"
        "print(json.dumps({'step': 2}))"
    )
    commands = Commands((sys.executable, "-c", beating), ("true",))
    limits = Limits(retries=0, hang_seconds=5)
    (result,) = run(grid_of(tmp_path, ("ppo",)), tmp_path / "runs", Tape(), commands=commands, limits=limits)
    assert result.status == "finished"


def test_a_cell_that_hangs_is_retried_from_its_checkpoint(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo",), iterations=4, ppo={"hang_at": 3, "times": 1})
    tape = Tape()
    limits = Limits(retries=1, hang_seconds=4)
    (result,) = run(grid, tmp_path / "runs", tape, commands=COMMANDS, limits=limits)
    assert result.status == "finished"
    assert [step for _, step in tape.steps] == [1, 2, 3, 4]
    assert starts(result.folder) == 2
    assert kinds(result.folder) == ["hang", "retried"]


def test_a_process_that_cannot_be_killed_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits for a dead disk does not even take SIGKILL; the other cells must not wait with it."""
    monkeypatch.setattr("workbench.grid.session.DEATH_SECONDS", 0.5)
    stuck: list[Child] = []

    class Deaf(Child):
        def kill(self) -> None:
            if "ppo-s0" in str(self._log_name):
                stuck.append(self)
            else:
                super().kill()

        def __init__(self, command: list[str], log: Path, threads: int, keep: list[int]) -> None:
            self._log_name = log
            super().__init__(command, log, threads, keep)

    class Place:
        slots = 1

        def start(self, command: list[str], log: Path, threads: int, keep: list[int]) -> Child:
            return Deaf(command, log, threads, keep)

    grid = grid_of(tmp_path, ppo={"hang_at": 2})
    limits = Limits(retries=0, hang_seconds=6)
    results = by_arm(run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=limits, executor=Place()))
    assert {arm: (r.status, r.cause) for arm, r in results.items()} == {
        "ppo": ("failed", "hang"),
        "grpo": ("finished", ""),
    }
    assert run_folder.claim(results["ppo"].folder) is None, "nobody starts it again while that process is there"
    for child in stuck:
        Child.kill(child)
        child._process.wait()


def test_the_log_of_an_earlier_attempt_is_not_quoted_as_the_reason_of_this_one(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, ("ppo",), ppo={"fail_at": 2})
    run(grid, tmp_path / "runs", Tape(), commands=COMMANDS, limits=ONCE)
    silent = Commands((sys.executable, "-c", "import sys; sys.exit(9)"), ("true",))
    (result,) = run(grid, tmp_path / "runs", Tape(), commands=silent, limits=ONCE)
    assert result.reason == "exit code 9, nothing in console.log"


def test_what_a_trainer_said_reaches_the_reason_without_its_control_characters(tmp_path: Path) -> None:
    program = r"import sys; sys.exit('\x1b[2J\x1b]0;owned\x07boom\x9b31m \u202etxt')"
    (result,) = run(
        grid_of(tmp_path, ("ppo",)), tmp_path / "runs", Tape(),
        commands=Commands((sys.executable, "-X", "utf8", "-c", program), ("true",)), limits=ONCE,
    )  # fmt: skip
    assert result.reason == "boom31m txt"


def test_a_finished_run_whose_process_is_killed_afterwards_is_finished(tmp_path: Path) -> None:
    trainer = Path(__file__).with_name("trainer.py")
    program = (
        f"import os, runpy, signal, sys\nsys.argv[0] = {str(trainer)!r}\n"
        f"try:\n    runpy.run_path({str(trainer)!r}, run_name='__main__')\n"
        "except SystemExit:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    commands = Commands((sys.executable, "-c", program), ("true",))
    (result,) = run(grid_of(tmp_path, ("ppo",)), tmp_path / "runs", Tape(), commands=commands)
    assert result.status == "finished"
    assert starts(result.folder) == 1


def test_a_killed_child_takes_what_it_started_with_it(tmp_path: Path) -> None:
    program = "import subprocess, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    log = tmp_path / "log"
    child = Child([sys.executable, "-c", program], log, 1)
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    inner = int(log.read_text())
    child.kill()
    while child.look().code is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert child.look().code == -signal.SIGKILL
    while Path(f"/proc/{inner}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{inner}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if state == "Z":  # dead, and nobody asked for its exit code yet
            break
        time.sleep(0.05)
    else:
        with pytest.raises(ProcessLookupError):
            os.kill(inner, 0)
