"""kill -9 at random moments: the database opens, at most two seconds of rows are missing, and none is there twice."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from workbench.diagnostics import CATALOGUE
from workbench.spec import TABLES
from workbench.store.sync import sync

MakeRun = Callable[..., Path]


def kill_and_look(folder: Path, cache: Path, after: float) -> tuple[float, set[int]]:
    """Train for `after` seconds from the first step on, kill -9; when it died, and the steps finished 2 s before."""
    command = [sys.executable, "-m", "workbench.learn", str(folder), "--cache", str(cache)]
    log = folder / "progress.log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out) as process:
        while not log.read_text() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(after)
        process.kill()
        dead = time.time()
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return dead, {line["step"] - 1 for line in lines if line["at"] < dead - 2.0}


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_loses_two_seconds_and_doubles_nothing(
    new_run: MakeRun,
    cache: Path,
    kills: int,
) -> None:
    folder = new_run(iterations=3000, record={"checkpoint_every": 5}, evaluation={"every": 0})
    runs = folder.parents[1]
    moments = random.Random(kills)
    for _ in range(kills):
        _, safe = kill_and_look(folder, cache, moments.uniform(0.0, 4.0))
        sync(runs, CATALOGUE)
        with duckdb.connect(str(runs / "sorl.duckdb"), read_only=True) as db:
            for table in TABLES:
                if "step" in table.key:
                    keys = ", ".join(table.key)
                    twice = db.execute(f"SELECT {keys} FROM {table.name} GROUP BY ALL HAVING count(*) > 1").fetchall()
                    assert not twice, (table.name, twice[:3])
            there = {step for (step,) in db.execute("SELECT step FROM step").fetchall()}
            updates = {step for (step,) in db.execute("SELECT DISTINCT step FROM minibatch").fetchall()}
            assert there == set(range(len(there))), "no hole"
            assert safe <= there
            assert safe <= updates
            assert db.execute("SELECT count(*) FROM segment WHERE status = 'corrupt'").fetchone() == (0,)
            assert db.execute("SELECT status FROM run").fetchone() == ("interrupted",)
