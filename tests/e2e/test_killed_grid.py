"""A grid that is killed with kill -9, all its processes at once, at random moments, and typed again each time."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow.parquet as pq
import pytest
import tomli_w

from tests.grid.harness import PATCH
from tests.learn.tiny import TINY, merged, rows
from workbench.grid.folder import last_row
from workbench.spec import TABLES

ROOT = Path(__file__).parents[2]
ARMS = ("ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo")
SCRIPTED = f"{PATCH}from workbench.cli.main import main\nmain()\n"


@dataclass
class Place:
    """A folder with a grid file and its runs, and the command that is typed there."""

    folder: Path
    scripted: bool

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def sorl(self, *words: str) -> list[str]:
        program = ("-c", SCRIPTED) if self.scripted else (str(ROOT / "cli.py"),)
        return [sys.executable, *program, "--runs", str(self.runs), *words]

    def start(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("w") as out:
            command = self.sorl("run", str(self.folder / "kill.toml"), "--workers", "2")
            return subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)

    def finish(self) -> str:
        """Run to the end without a kill; returns the table of the comparison."""
        log = self.folder / "last.log"
        assert self.start(log).wait() == 0, log.read_text()[-3000:]
        done = subprocess.run(self.sorl("compare", "kill", "--format", "csv"), capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def cells(self) -> list[Path]:
        return sorted(f.parent for f in (self.runs / "kill").glob("*/run.json"))


def place(folder: Path, seeds: int, base: dict[str, Any], scripted: bool) -> Place:
    (folder / "runs").mkdir(parents=True)
    document = {
        "question": "Does a grid that is killed again and again end like one that is not?",
        "seeds": list(range(seeds)),
        "base": base,
        "axes": {"algorithm": list(ARMS)},
    }
    (folder / "kill.toml").write_text(tomli_w.dumps(document))
    if scripted:
        ends = [
            {"outcome": "collapsed", "collapse_step": 2, "peak_success": 0.6, "final_success": 0.1},
            {"outcome": "healthy", "peak_success": 0.8, "final_success": 0.7},
        ]
        scripts = {arm: {"step_seconds": 0.1, "row": ends[i % 2], "grad_norm": i} for i, arm in enumerate(ARMS)}
        (folder / "runs" / "script.json").write_text(json.dumps(scripts))
    return Place(folder, scripted)


def kill_all(parent: subprocess.Popen[bytes]) -> float:
    """kill -9 the grid and everything it started, also what it is just about to start; when they were dead."""
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
    files = sorted((cell / "segments" / "step").glob("*.parquet"))
    return sorted(step for file in files for step in pq.read_table(file, columns=["step"])["step"].to_pylist())


def reported(cell: Path, before: float) -> set[int]:
    """The steps that the run had reported as done by the time `before`."""
    log = cell / "console.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    done = [json.loads(line) for line in lines if line.startswith('{"step"') and line.endswith("}")]
    return {line["step"] - 1 for line in done if line["at"] < before}


@dataclass
class Witness:
    """What was seen of each cell when it was found finished for the first time."""

    attempts: dict[str, int] = field(default_factory=dict)

    def look(self, cells: Sequence[Path]) -> None:
        for cell in cells:
            row = last_row(cell)
            attempt = json.loads((cell / "run.json").read_text()).get("attempt")
            if row is not None and row["status"] == "finished":
                assert self.attempts.setdefault(cell.name, attempt) == attempt, f"{cell.name} ran again"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("scripted", "seeds", "kills"),
    [
        pytest.param(True, 2, 2, id="12 scripted cells, 2 kills"),
        pytest.param(True, 2, 4, id="12 scripted cells, 4 kills", marks=pytest.mark.slow),
        pytest.param(True, 10, 20, id="60 scripted cells, 20 kills", marks=pytest.mark.slow),
        pytest.param(False, 10, 20, id="60 trained cells, 20 kills", marks=pytest.mark.slow),
    ],
)
def test_a_grid_that_is_killed_again_and_again_ends_like_one_that_is_not(
    tmp_path: Path, scripted: bool, seeds: int, kills: int
) -> None:
    changes = {"iterations": 5, "record": {"checkpoint_every": 2}, "evaluation": {"every": 0, "episodes": 8}}
    base = {"iterations": 6} if scripted else merged(TINY, changes)
    moments = random.Random(20 * seeds + kills)
    victim = place(tmp_path / "victim", seeds, base, scripted)
    witness = Witness()
    log = tmp_path / "victim.log"
    over = 0
    for kill in range(kills):
        grid = victim.start(log)
        if kill % 5:  # every fifth one dies anywhere between its first import and its first cells
            while not any(word in log.read_text() for word in ("start  ", "resume  ")) and grid.poll() is None:
                time.sleep(0.02)
        time.sleep(moments.uniform(0.0, 3.0 if scripted else 12.0))
        over += grid.poll() is not None
        dead = kill_all(grid)
        cells = victim.cells()
        witness.look(cells)
        for cell in cells:
            steps = recorded(cell)
            assert steps == list(range(len(steps))), "no step twice, no hole"
            assert reported(cell, dead - 2.0) <= set(steps)
    assert over <= kills // 4, "the grid was over before it was killed: too little was tried"
    table = victim.finish()
    witness.look(victim.cells())
    assert len(witness.attempts) == len(ARMS) * seeds

    untouched = place(tmp_path / "untouched", seeds, base, scripted)
    assert table == untouched.finish()
    ours, theirs = victim.cells(), untouched.cells()
    assert [cell.name for cell in ours] == [cell.name for cell in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for name in ("step", "minibatch", *(() if scripted else ("trajectory", "turn", "turn_step", "evaluation"))):
            assert rows(a, name).equals(rows(b, name)), (a.name, name)
    with duckdb.connect(str(victim.runs / "sorl.duckdb"), read_only=True) as db:
        for table_ in TABLES:
            keys = ", ".join(table_.key)
            twice = f"SELECT {keys} FROM {table_.name} GROUP BY ALL HAVING count(*) > 1"
            assert not db.execute(twice).fetchall(), table_.name
        assert db.execute("SELECT DISTINCT status FROM run").fetchall() == [("finished",)]
        assert db.execute("SELECT count(*) FROM segment WHERE status = 'corrupt'").fetchone() == (0,)
        resumed = db.execute("SELECT count(*) FROM event WHERE kind = 'resumed'").fetchone()
        assert resumed is not None
        assert resumed[0] > 0, "nothing had to be resumed, so nothing was tried"
