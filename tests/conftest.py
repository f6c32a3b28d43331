"""Fixtures that several rooms use."""

from pathlib import Path

import pytest

from sorl.store.sync import sync
from tests.learn.tiny import cache, new_run, trained
from tests.store.fixture import Shape, write_grid

__all__ = ["cache", "new_run", "trained"]


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
    sync(folder)
    return folder


@pytest.fixture
def small() -> Shape:
    """A run of a few rows."""
    return Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=4)
