"""kill -9 in the middle of a rollback: run again, the grid ends as one that was never killed."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from sorl.spec.rollback import NAME
from tests.e2e.test_killed_grid import kill_all
from tests.learn.tiny import TINY, merged, rows
from tests.store.processes import ROOT

STEPS = 14
ALARM_AT = 11  # the first step at which a band is judged


class Grid:
    """One run whose entropy lies outside the band of its baseline, so that its guard rolls it back once."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        saved = self.runs / ".baselines" / "usual.json"
        saved.parent.mkdir(parents=True)
        steps = list(range(STEPS))
        band = {
            "column": "entropy",
            "runs": 3,
            "steps": steps,
            "mean": [50.0] * STEPS,
            "unit": [0.01] * STEPS,
        }
        saved.write_text(json.dumps({"bands": [band]}))
        base = {
            "iterations": STEPS,
            "record": {"baseline": "usual", "ladder": 2, "checkpoint_every": 3},
            "guard": {"on": ["baseline"], "changes": [{}], "before": 2},
        }
        grid = {
            "question": "Does a rollback that is killed end like one that is not?",
            "seeds": [0],
            "base": merged(TINY, base),
            "axes": {"algorithm": ["ppo"]},
        }
        file = folder / "rollback.toml"
        file.write_text(tomli_w.dumps(grid))
        self.command = [sys.executable, str(ROOT / "cli.py"), "--runs", str(self.runs), "run", str(file)]

    def begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)

    def starts(self) -> list[Path]:
        folders = (self.runs / "rollback").glob("ppo-*")
        return sorted(folders, key=lambda folder: (len(folder.name), folder.name))


def has_alarm_step(grid: Grid) -> bool:
    """Whether the first start has come to the step that raises the alarm."""
    starts = grid.starts()
    log = starts[0] / "console.log" if starts else None
    return log is not None and log.is_file() and f'"step": {ALARM_AT + 1},' in log.read_text()


def has_decision(grid: Grid) -> bool:
    """Whether the decision is on the disk, and perhaps no more."""
    starts = grid.starts()
    return bool(starts) and (starts[0] / NAME).is_file()


def has_second_start(grid: Grid) -> bool:
    """Whether the folder of the second start was begun."""
    return len(grid.starts()) > 1


def kill_at(grid: Grid, is_time: Callable[[Grid], bool]) -> None:
    """Run until it is time, and kill everything."""
    process = grid.begin()
    while process.poll() is None:
        if is_time(grid):
            kill_all(process)
            return
        time.sleep(0.005)
    pytest.fail(f"the grid ended before {is_time.__name__}")


@pytest.mark.timeout(600)
def test_a_rollback_that_is_killed_at_each_of_its_moments_ends_like_one_that_is_not(tmp_path):
    plain = Grid(tmp_path / "plain")
    killed = Grid(tmp_path / "killed")
    assert plain.begin().wait() == 0
    for is_time in (has_alarm_step, has_decision, has_second_start):
        kill_at(killed, is_time)
    assert killed.begin().wait() == 0
    names = [folder.name for folder in plain.starts()]
    assert [folder.name for folder in killed.starts()] == names
    assert len(names) == 2
    for one, other in zip(plain.starts(), killed.starts(), strict=True):
        for table in ("step", "turn"):
            keys = [
                name for name in ("step", "epoch", "trajectory", "turn_index") if name in rows(one, table)
            ]
            steps = [rows(folder, table).drop_duplicates(keys).set_index(keys) for folder in (one, other)]
            assert steps[0].sort_index().equals(steps[1].sort_index()), (one.name, table)
