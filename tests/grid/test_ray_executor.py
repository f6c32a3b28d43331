"""`--executor ray` on a real Ray of this machine with two worker processes."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w

from sorl.grid import folder as run_folder
from sorl.grid import process
from sorl.grid.config import load
from sorl.grid.process import Ray
from sorl.grid.result import Limits
from sorl.grid.run import run
from sorl.spec import InputError
from tests.grid.harness import Tape, by_arm, events, go, grid_of, home, kinds, row, starts
from tests.learn.tiny import TINY, merged, rows

REAL = process.TRAINER


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray with room for two processes, for this module."""
    ray = pytest.importorskip("ray", reason="needs Ray: make test-ray")
    ray.init(num_cpus=2, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    yield Ray()
    ray.shutdown()


def trainer(folder: Path) -> psutil.Process:
    """The process that trains in `folder`: a worker of Ray."""
    return psutil.Process(int((folder / "starts.txt").read_text().split()[-1]))


def test_cells_run_in_workers_side_by_side_and_end_as_on_this_machine(tmp_path, cluster):
    assert cluster.slots == 2
    workers: dict[int, str] = {}

    def look(cell, step):
        with suppress(psutil.NoSuchProcess):  # after the last step it may be gone
            worker = trainer(run_folder.folder_of(tmp_path / "runs", cell))
            workers[worker.pid] = " ".join(worker.cmdline())

    scripts: dict[str, Any] = {"ppo": {"step_seconds": 0.3}, "grpo": {"step_seconds": 0.3}}
    tape = Tape(on_step=look)
    grid = grid_of(tmp_path, iterations=6, **scripts)
    results = go(grid, tape, executor=cluster)
    assert [r.status for r in results] == ["finished", "finished"]
    assert len(workers) == 2, "two worker processes"
    assert all(command.startswith("ray::") for command in workers.values())
    assert sorted(step for arm, step in tape.steps if arm == "ppo") == [1, 2, 3, 4, 5, 6]
    assert all(r.skipped for r in go(grid, executor=cluster))


@pytest.mark.timeout(600)
def test_ray_and_local_record_identical_steps(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(process, "TRAINER", REAL)
    path = tmp_path / "same.toml"
    base = merged(TINY, {"iterations": 4})
    path.write_text(
        tomli_w.dumps({"question": "Is a cell the same anywhere?", "seeds": [0, 1], "base": base})
    )
    grid = load(path)
    here = run(grid, tmp_path / "local", Tape(), workers=1)
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / ".cache").symlink_to(tmp_path / "local" / ".cache")
    there = run(grid, tmp_path / "ray", Tape(), executor=cluster)
    assert {r.status for r in (*here, *there)} == {"finished"}
    for a, b in zip(here, there, strict=True):
        for table in ("step", "minibatch", "turn"):
            local = rows(a.folder, table)
            remote = rows(b.folder, table)
            assert len(local) > 0
            assert local.equals(remote), (a.cell.run_id, table)


def test_a_worker_that_is_killed_is_replaced_and_resumes_from_the_checkpoint(tmp_path, cluster):
    grid = grid_of(tmp_path, iterations=5, ppo={"step_seconds": 0.3})
    ppo = home(grid)

    def kill(cell, step):
        if cell.arm == "ppo" and step["step"] == 2 and starts(ppo) == 1:
            trainer(ppo).kill()

    results = by_arm(go(grid, Tape(on_step=kill), executor=cluster))
    assert {arm: r.reason or r.status for arm, r in results.items()} == {
        "ppo": "finished",
        "grpo": "finished",
    }
    assert kinds(ppo) == ["killed", "retried"]
    assert events(ppo)[0]["message"].startswith("lost with its Ray worker")
    assert row(ppo)["attempt"] == 2
    assert rows(ppo, "step")["step"].to_list() == [0, 1, 2, 3, 4], "no step twice, none missing"


def test_ctrl_c_reaches_the_trainer_on_the_cluster_and_ends_a_wait_for_room(tmp_path, cluster):
    grid = grid_of(tmp_path, ("ppo",), iterations=50, ppo={"step_seconds": 0.2})
    tape = Tape(on_step=lambda cell, step: os.kill(os.getpid(), signal.SIGINT) if step["step"] == 2 else None)
    (result,) = go(grid, tape, executor=cluster)
    assert (result.status, result.reason) == ("interrupted", "stopped by SIGINT")
    assert run_folder.checkpoint(result.folder) == row(result.folder)["steps"]
    (result,) = go(grid_of(tmp_path, ("ppo",), iterations=50), executor=cluster)
    assert result.status == "finished", "the worker that was cancelled does not disturb the next one"
    path = tmp_path / "demo.toml"
    path.write_text(path.read_text().replace("[base]", "[base]\nthreads = 64\nlearn.epochs = 3"))
    threading.Timer(3.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    (result,) = go(load(path), executor=cluster)
    assert (result.status, starts(result.folder)) == ("interrupted", 0)


@pytest.mark.parametrize(
    ("how", "cause"), [("grow_at", "out of memory"), ("hang_at", "hang"), ("fail_at", "failed")]
)
def test_a_bad_end_on_the_cluster_has_the_same_cause(tmp_path, cluster, how, cause):
    grid = grid_of(tmp_path, ("ppo",), ppo={how: 2})
    limits = Limits(retries=0, memory=700 * 2**20, hang_seconds=3)
    (result,) = go(grid, executor=cluster, limits=limits)
    assert result.cause == cause


def test_without_ray_the_option_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'sorl\[ray\]'"):
        Ray()
