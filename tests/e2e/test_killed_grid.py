"""Runs and grids that are killed with kill -9 at random moments, or lose their terminal, and
are run again.
"""

import fcntl
import json
import os
import pty
import random
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow.parquet as pq
import pytest
import tomli_w

from sorl.grid.folder import last_row
from sorl.spec import TABLES
from sorl.store.segments import held
from sorl.store.sync import sync
from tests.grid.harness import PATCH, row, starts
from tests.learn.tiny import TINY, merged, rows
from tests.store.processes import ROOT

ARMS = ("ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo")
ENDS = (
    {"outcome": "collapsed", "collapse_step": 2, "peak_success": 0.6, "final_success": 0.1},
    {"outcome": "healthy", "peak_success": 0.8, "final_success": 0.7},
)


class Place:
    """A folder with a grid file and its runs, and the commands that are typed there."""

    def __init__(self, folder: Path, seeds: int, base: dict[str, Any], scripted: bool) -> None:
        self.runs = folder / "runs"
        self.log = folder / "grid.log"
        file = folder / "kill.toml"
        self.runs.mkdir(parents=True)
        question = "Does a grid that is killed again and again end like one that is not?"
        grid = {
            "question": question,
            "seeds": list(range(seeds)),
            "base": base,
            "axes": {"algorithm": list(ARMS)},
        }
        file.write_text(tomli_w.dumps(grid))
        if scripted:
            scripts = {
                a: {"step_seconds": 0.1, "row": ENDS[i % 2], "grad_norm": i} for i, a in enumerate(ARMS)
            }
            (self.runs / "script.json").write_text(json.dumps(scripts))
        code = f"{PATCH}from sorl.cli.main import main\nmain()\n"
        program = ["-c", code] if scripted else [str(ROOT / "cli.py")]
        self.sorl = [sys.executable, *program, "--runs", str(self.runs)]
        self.run = [*self.sorl, "run", str(file), "--workers", "2"]

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("w") as out:
            return subprocess.Popen(self.run, stdout=out, stderr=out, cwd=ROOT)

    def finish(self) -> str:
        """Run to the end without a kill; return the table of the comparison."""
        assert self.start().wait() == 0, self.log.read_text()[-3000:]
        command = [*self.sorl, "compare", "kill", "--format", "csv"]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout

    def cells(self) -> list[Path]:
        return sorted(f.parent for f in (self.runs / "kill").glob("*/run.json"))


def kill_all(parent: subprocess.Popen[bytes]) -> float:
    """kill -9 the grid and everything it started, also what it is just about to start; when
    they were dead.
    """
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(parent.pid)
        process.send_signal(signal.SIGSTOP)
        for child in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
    parent.wait()
    return time.time()


def recorded(cell: Path) -> list[int]:
    """The steps of a run that are on the disk, in order."""
    files = (cell / "segments" / "step").glob("*.parquet")
    return sorted(
        step for file in files for step in pq.read_table(file, columns=["step"])["step"].to_pylist()
    )


def reported(log: Path, before: float) -> set[int]:
    """The steps that a run had reported as done by the time `before`."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    done = (json.loads(line) for line in lines if line.startswith('{"step"') and line.endswith("}"))
    return {line["step"] - 1 for line in done if line["at"] < before}


def check_rows(db: duckdb.DuckDBPyConnection) -> None:
    """No row is there twice, no segment is corrupt."""
    for table in TABLES:
        twice = f"SELECT {', '.join(table.key)} FROM {table.name} GROUP BY ALL HAVING count(*) > 1"
        assert not db.execute(twice).fetchall(), table.name
    assert db.execute("SELECT count(*) FROM segment WHERE status = 'corrupt'").fetchone() == (0,)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_loses_two_seconds_and_doubles_nothing(new_run, cache, kills):
    folder = new_run(iterations=3000, record={"checkpoint_every": 5}, evaluation={"every": 0})
    runs = folder.parents[1]
    log = folder / "progress.log"
    moments = random.Random(kills)
    for _ in range(kills):
        command = [sys.executable, "-m", "sorl.learn", str(folder), "--cache", str(cache)]
        with log.open("w") as out, subprocess.Popen(command, stdout=out) as process:
            while not log.read_text() and process.poll() is None:
                time.sleep(0.02)
            time.sleep(moments.uniform(0.0, 4.0))
            process.kill()
            dead = time.time()
        safe = reported(log, dead - 2.0)
        sync(runs)
        with duckdb.connect(str(runs / "sorl.duckdb"), read_only=True) as db:
            check_rows(db)
            steps = {step for (step,) in db.execute("SELECT step FROM step").fetchall()}
            updates = {step for (step,) in db.execute("SELECT DISTINCT step FROM minibatch").fetchall()}
            assert steps == set(range(len(steps))), "no hole"
            assert safe <= steps & updates
            assert db.execute("SELECT status FROM run").fetchone() == ("interrupted",)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("scripted", "seeds", "kills"),
    [
        pytest.param(True, 2, 2, id="12 scripted cells, 2 kills"),
        pytest.param(True, 10, 20, id="60 scripted cells, 20 kills", marks=pytest.mark.slow),
        pytest.param(False, 10, 20, id="60 trained cells, 20 kills", marks=pytest.mark.slow),
    ],
)
def test_a_grid_that_is_killed_again_and_again_ends_like_one_that_is_not(tmp_path, scripted, seeds, kills):
    changes = {"iterations": 5, "record": {"checkpoint_every": 2}, "evaluation": {"every": 0, "episodes": 8}}
    base = {"iterations": 6} if scripted else merged(TINY, changes)
    moments = random.Random(20 * seeds + kills)
    over = 0
    victim = Place(tmp_path / "victim", seeds, base, scripted)
    attempts: dict[str, int] = {}  # of each cell when it was seen finished for the first time

    def look():
        for cell in victim.cells():
            if (last_row(cell) or {}).get("status") == "finished":
                attempt = json.loads((cell / "run.json").read_text()).get("attempt")
                assert attempts.setdefault(cell.name, attempt) == attempt, f"{cell.name} ran again"

    for kill in range(kills):
        grid = victim.start()
        if kill % 5:  # every fifth one dies anywhere between its first import and its first cells
            while (
                not any(word in victim.log.read_text() for word in ("start  ", "resume  "))
                and grid.poll() is None
            ):
                time.sleep(0.02)
        time.sleep(moments.uniform(0.0, 3.0 if scripted else 12.0))
        over += grid.poll() is not None
        dead = kill_all(grid)
        look()
        for cell in victim.cells():
            steps = recorded(cell)
            assert steps == list(range(len(steps))), "no step twice, no hole"
            assert reported(cell / "console.log", dead - 2.0) <= set(steps)
    assert over <= kills // 4, "the grid was over before it was killed: too little was tried"
    table = victim.finish()
    look()
    assert len(attempts) == len(ARMS) * seeds

    untouched = Place(tmp_path / "untouched", seeds, base, scripted)
    assert table == untouched.finish()
    ours = victim.cells()
    theirs = untouched.cells()
    assert [cell.name for cell in ours] == [cell.name for cell in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for name in (
            "step",
            "minibatch",
            *(() if scripted else ("trajectory", "turn", "turn_step", "evaluation")),
        ):
            assert rows(a, name).equals(rows(b, name)), (a.name, name)
    with duckdb.connect(str(victim.runs / "sorl.duckdb"), read_only=True) as db:
        check_rows(db)
        assert db.execute("SELECT DISTINCT status FROM run").fetchall() == [("finished",)]
        resumed = db.execute("SELECT run_id FROM event WHERE kind = 'resumed'").fetchall()
        assert resumed, "nothing had to be resumed, so nothing was tried"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_grid_that_is_killed_leaves_nothing_alive_not_even_a_stopped_trainer(tmp_path, number):
    mine = Place(tmp_path / "mine", seeds=1, base={"iterations": 2000}, scripted=True)
    grid = mine.start()
    deadline = time.monotonic() + 120
    while sum((cell / "checkpoints").exists() for cell in mine.cells()) < 2:
        assert time.monotonic() < deadline, mine.log.read_text()
        time.sleep(0.02)
    family = psutil.Process(grid.pid).children(recursive=True)
    trainers = [int(file.read_text()) for file in mine.runs.glob("kill/*/starts.txt")]
    assert len(trainers) == 2
    assert {*trainers} < {process.pid for process in family}, "and the fork server"
    os.kill(trainers[0], signal.SIGSTOP)
    if number == signal.SIGKILL:  # nothing that is stopped can see that the grid is gone
        for process in {psutil.Process(pid).parent() for pid in trainers}:
            process.suspend()
    grid.send_signal(number)
    grid.wait(60)
    _, alive = psutil.wait_procs(family, timeout=10)
    for process in alive:
        process.kill()
    assert not [process for process in alive if process.pid in trainers], "it is gone with its grid"
    assert not alive
    assert not any(held(cell) or held(cell, "claim") for cell in mine.cells())
    if number != signal.SIGKILL:
        stopped = [row(cell) for cell in mine.cells() if row(cell)["status"] != "queued"]
        assert [r["status"] for r in stopped] == ["interrupted"] * 2
        assert {r["reason"] for r in stopped} == {"stopped by SIGINT"}


def test_two_commands_at_once_train_no_cell_twice_and_print_the_same_table(tmp_path):
    both = Place(tmp_path / "both", seeds=1, base={"iterations": 5}, scripted=True)
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(both.run, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) for _ in range(2)]
    (first, said), (second, also_said) = (process.communicate(timeout=250) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], said + also_said
    assert first == second
    assert first.count("1/1 [") == first.count("0/1 [") == 3, first
    assert [starts(cell) for cell in both.cells()] == [1] * 6
    assert "trained by another process" in said + also_said, "they met"


def test_a_closed_terminal_is_a_ctrl_c_and_the_cells_write_their_checkpoints(tmp_path):
    mine = Place(tmp_path / "mine", seeds=1, base={"iterations": 200}, scripted=True)
    terminal, inside = pty.openpty()
    grid = subprocess.Popen(
        mine.run,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        cwd=ROOT,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inside)
    os.set_blocking(terminal, False)
    deadline = time.monotonic() + 120
    while not any((cell / "checkpoints").exists() for cell in mine.cells()) and time.monotonic() < deadline:
        with suppress(BlockingIOError):
            os.read(terminal, 65536)  # or it fills up, and the grid waits
        time.sleep(0.02)
    os.close(terminal)
    grid.wait(120)
    stopped = [row(cell) for cell in mine.cells() if row(cell)["status"] != "queued"]
    assert {r["status"] for r in stopped} == {"interrupted"}
    assert {r["reason"] for r in stopped} <= {"stopped by SIGINT", "stopped before its first step"}
    assert any(r["steps"] for r in stopped)
