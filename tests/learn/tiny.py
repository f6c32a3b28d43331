"""A run small enough to train in a second, and what its folder says afterwards."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
import pyarrow.parquet as pq
import pytest
import tomli_w
from pandas.testing import assert_frame_equal

from sorl.agent.tokenizer import build_tokenizer
from sorl.grid.cell import merge as merged
from sorl.learn.loop import Trainer
from sorl.learn.run import run
from sorl.learn.warmstart import ensure
from sorl.recording.recorder import Recorder
from sorl.spec import RunSettings

MakeRun = Callable[..., Path]
TINY: dict[str, Any] = {
    # Eight people and one hop: easy enough that a tiny network sometimes succeeds, or there would be no
    # gradient.
    "world": {"entities": 8, "relations": 4, "hops": [1.0, 0.0, 0.0], "max_turns": 3},
    "policy": {"hidden": 32, "layers": 1, "heads": 2, "mlp": 32},
    "warmstart": {"steps": 100, "batch": 32},
    "learn": {"episodes": 16, "epochs": 2, "minibatches": 2, "staleness": 2, "policy": {"lr": 0.05}},
    "iterations": 6,
    "evaluation": {"every": 3, "episodes": 8},
    "record": {"checkpoint_every": 3},
}

# Wall time and memory are what two equal runs do not share.
CLOCK = ("written_at", "seconds", "tokens_per_second", "started_at", "ended_at", "memory_")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def written(
    runs: Path, name: str, changes: dict[str, Any], base: Any = TINY, experiment: str = "tiny"
) -> Path:
    """The folder of a run that is yet to be trained, with changes to the tiny run or another `base`."""
    folder = runs / experiment / name
    settings = merged(base, changes)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    algorithm = settings.get("algorithm", "ppo")
    identity = {"run_id": name, "experiment": experiment, "algorithm": algorithm, "arm": algorithm, "seed": 0}
    (folder / "run.json").write_text(json.dumps(identity | {"config_hash": "0"}))
    return folder


@pytest.fixture
def new_run(tmp_path: Path) -> MakeRun:
    """Make a run folder from changes to the tiny run."""
    return lambda name="run", **changes: written(tmp_path, name, changes)


@pytest.fixture(scope="session")
def trained(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Train a run with changes to the tiny run once a session; its folder is for reading."""
    finished: dict[str, Path] = {}

    def make(**changes: Any) -> Path:
        key = json.dumps(changes, sort_keys=True)
        if key not in finished:
            finished[key] = written(tmp_path_factory.mktemp("trained"), "run", changes)
            assert train(finished[key], cache) == 0
        return finished[key]

    return make


def cell(folder: Path, cache: Path, **pipes: Any) -> "subprocess.Popen[str]":
    """The process of a cell, as the grid starts it."""
    command = [sys.executable, "-m", "sorl.learn", str(folder), "--cache", str(cache)]
    return subprocess.Popen(
        command, text=True, **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes)
    )


def interrupted(folder: Path, cache: Path, after: int, by: signal.Signals = signal.SIGINT) -> int:
    """Start the process of a cell, send it a signal after so many iterations, and return its exit code."""
    with cell(folder, cache, stderr=None) as process:
        for _ in range(after):
            process.stdout.readline()
        process.send_signal(by)
        process.stdout.read()
        return process.wait()


class Session:
    """A run in this process, as `sorl.learn` drives it, that ends when the test says so."""

    def __init__(self, folder: Path, cache: Path, **changes: Any) -> None:
        settings = RunSettings.model_validate(
            merged(TINY, {"evaluation": {"every": 0, "episodes": 2}, **changes})
        )
        self.folder = folder
        self.recorder = Recorder(folder, "r", settings)
        self.trainer = Trainer(settings, ensure(settings, cache), self.recorder, build_tokenizer())
        self.trainer.resume(folder / "checkpoints")

    def train(self, steps: int = 1000, save: bool = False) -> None:
        for _ in self.trainer.steps():
            if self.trainer.step == steps:
                break
        if save:
            self.trainer.save(self.folder / "checkpoints")

    def guard(self) -> list[tuple[str, int, str]]:
        """Close the run; its events of the guard, as (kind, step, message)."""
        self.recorder.close()
        if not (self.folder / "segments" / "event").exists():
            return []
        found = rows(self.folder, "event")
        found = found[found["kind"].str.startswith("guard_")]
        return list(zip(found["kind"], found["step"], found["message"], strict=True))


def resumed(folder: Path, cache: Path, steps: int, **changes: Any) -> Path:
    """The folder, trained for so many iterations and then by another session to the end."""
    session = Session(folder, cache, **({"evaluation": TINY["evaluation"]} | changes))
    session.train(steps, save=True)
    session.recorder.close()
    assert train(folder, cache) == 0
    return folder


def assert_same_rows(a: Path, b: Path, *tables: str) -> None:
    for table in tables or ("step", "minibatch", "turn", "trajectory", "turn_step", "evaluation"):
        assert_frame_equal(rows(a, table), rows(b, table), check_exact=True, obj=table)


def train(folder: Path, cache: Path, out: TextIO | None = None) -> int:
    """What the process of a cell does, without the seconds that it takes to import torch; returns its exit
    code.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    ours = [signal.getsignal(number) for number in numbers]
    try:
        return run(folder, cache, out=out or io.StringIO())
    finally:
        for number, handler in zip(numbers, ours, strict=True):
            signal.signal(number, handler)


def rows(folder: Path, table: str) -> pd.DataFrame:
    """The rows of one table of a run without what the clock wrote, in the order in which they
    were written.
    """
    files = sorted((folder / "segments" / table).glob("*.parquet"))
    frame = pd.concat([pq.read_table(file).to_pandas() for file in files], ignore_index=True)
    return frame[[c for c in frame.columns if not c.startswith(CLOCK) and c != "run_id"]]
