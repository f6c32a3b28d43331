from pathlib import Path

import pytest

from tests.cli.command import fell, record
from tests.grid.harness import put_scripted_trainer
from tests.store.fixture import write_experiment


@pytest.fixture
def two(runs: Path) -> Path:
    """Recorded runs: ppo with two seeds that collapse, st-ppo with two that do not."""
    write_experiment(runs, "demo", question="Which of the two?")
    for seed in (0, 1):
        fell(runs, "ppo", seed, 12 + seed, detection_step=17)
        record(runs, "st-ppo", seed)
    return runs


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where `sorl run` starts the scripted trainer."""
    put_scripted_trainer(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path
