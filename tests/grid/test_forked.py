"""Forked trainers behave as started ones: their log, their exit codes, their signals, what they keep open."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from workbench.grid import forked
from workbench.grid.child import Child, Sight
from workbench.grid.forked import TRAINER, ForkedChild, can_fork

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or any(device.exists() for device in forked._GPUS), reason="no trainer is forked here"
)


def _ended(child: Child, seconds: float = 60.0) -> Sight:
    limit = time.monotonic() + seconds
    while (sight := child.look()).code is None and time.monotonic() < limit:
        time.sleep(0.05)
    return sight


def test_only_our_own_trainer_is_forked() -> None:
    assert can_fork((*TRAINER, "folder", "--cache", "cache"))
    assert not can_fork((sys.executable, "trainer.py", "folder"))
    assert not can_fork((sys.executable, "-m", "workbench.learn.warmstart", "x"))


def test_a_fork_that_is_killed_at_once_leaves_nothing_claimed(tmp_path: Path) -> None:
    for attempt in range(5):
        claim = (tmp_path / "claim").open("w")
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child = ForkedChild((*TRAINER, str(tmp_path / "nothing")), tmp_path / "console.log", 1, (claim.fileno(),))
        claim.close()
        child.kill()
        assert _ended(child).code in (-signal.SIGKILL, 2), attempt


def test_beside_a_gpu_every_trainer_starts_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "_GPUS", (tmp_path,))
    assert not can_fork((*TRAINER, "folder"))


def test_a_forked_trainer_says_in_its_log_what_is_wrong_and_ends_with_its_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("before\n")
    child = ForkedChild((*TRAINER, str(tmp_path / "nothing")), log, 1)
    assert _ended(child).code == 2
    assert log.read_text().startswith("before\nsorl: no config.toml in ")


def test_a_second_trainer_comes_from_the_same_process_and_need_not_import_torch_again(tmp_path: Path) -> None:
    parents = set()
    for name in ("a", "b"):
        child = ForkedChild((*TRAINER, str(tmp_path / name)), tmp_path / f"{name}.log", 1)
        with psutil.Process(child._process.pid).oneshot():
            parents.add(psutil.Process(child._process.pid).ppid())
        assert _ended(child).code == 2
    (parent,) = parents
    assert parent != os.getpid()
    assert "torch" in " ".join(m.path for m in psutil.Process(parent).memory_maps())


def test_a_forked_trainer_keeps_the_claim_after_the_grid_lets_go_and_a_kill_ends_both(tmp_path: Path) -> None:
    claim = (tmp_path / "claim").open("w")
    fcntl.flock(claim, fcntl.LOCK_EX)
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "run.json").write_text("{}")
    os.mkfifo(tmp_path / "lock")  # the trainer waits for its lock as long as nobody reads from it
    child = ForkedChild((*TRAINER, str(tmp_path)), tmp_path / "console.log", 1, (claim.fileno(),))
    claim.close()
    with (tmp_path / "claim").open("w") as other:
        time.sleep(0.5)
        assert child.look().code is None
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.kill()
        assert _ended(child).code == -signal.SIGKILL
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
