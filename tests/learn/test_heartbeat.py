from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from workbench.grid.process import where
from workbench.learn import run as run_module
from workbench.learn.run import Heartbeat

MakeRun = Callable[..., Path]


def beats(folder: Path) -> bool:
    """Whether the file was touched since it was last looked for."""
    file = folder / "heartbeat"
    found = file.exists()
    file.unlink(missing_ok=True)
    return found


def test_it_beats_at_every_pass_through_the_network_and_its_copies_but_at_most_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(run_module.time, "monotonic", lambda: now)
    network = torch.nn.Linear(2, 2)
    Heartbeat(tmp_path).follow(network)
    assert not beats(tmp_path), "nothing has moved yet"
    network(torch.ones(2))
    assert beats(tmp_path)
    now = 100.5
    network(torch.ones(2))
    assert not beats(tmp_path)
    now = 101.1
    deepcopy(network)(torch.ones(2))
    assert beats(tmp_path), "a sampler may work on a copy in another precision"


def test_it_changes_no_number_of_the_network(tmp_path: Path) -> None:
    network = torch.nn.Linear(3, 3)
    before = network(torch.ones(3))
    Heartbeat(tmp_path).follow(network)
    assert torch.equal(network(torch.ones(3)), before)
    assert set(network.state_dict()) == {"weight", "bias"}


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    Heartbeat(tmp_path / "none")()


def test_a_run_beats_while_it_trains_and_says_where_it_stands_when_it_is_asked(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(iterations=100_000, evaluation={"every": 0})
    log = folder / "console.log"
    command = [sys.executable, "-m", "workbench.learn", str(folder), "--cache", str(cache)]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            deadline = time.monotonic() + 200
            while '"step": 2' not in log.read_text() and time.monotonic() < deadline:
                time.sleep(0.1)
            assert (folder / "heartbeat").exists()
            first = (folder / "heartbeat").stat().st_mtime_ns
            while (folder / "heartbeat").stat().st_mtime_ns == first and time.monotonic() < deadline:
                time.sleep(0.1)
            assert (folder / "heartbeat").stat().st_mtime_ns > first
            os.kill(process.pid, signal.SIGUSR1)
            while not where(log) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert ".py:" in where(log)
            assert process.poll() is None, "it trains on"
        finally:
            process.kill()
