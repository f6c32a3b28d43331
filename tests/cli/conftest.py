from pathlib import Path

import pytest

from tests.cli.command import fell, record
from tests.grid.harness import put_scripted_trainer
from tests.store.fixture import Shape, write_experiment, write_grid
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """An empty runs folder."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synced runs folder with the small experiment; tests must not change it."""
    folder = tmp_path_factory.mktemp("grid") / "runs"
    folder.mkdir()
    write_grid(folder)
    sync(folder, CATALOGUE)
    return folder


@pytest.fixture
def two(runs: Path) -> Path:
    """Recorded runs: ppo with two seeds that collapse, st-ppo with two that do not."""
    write_experiment(runs, "demo", question="Which of the two?")
    for seed in (0, 1):
        fell(runs, "ppo", seed, 12 + seed, detection_step=17)
        record(runs, "st-ppo", seed)
    return runs


@pytest.fixture
def small() -> Shape:
    """A run of a few rows."""
    return Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=4)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where `sorl run` starts the scripted trainer."""
    put_scripted_trainer(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path
