from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.store.fixture import Shape, write_grid
from workbench.cli.main import app
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

Sorl = Callable[..., Any]


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
def small() -> Shape:
    """A run of a few rows."""
    return Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=4)


@pytest.fixture
def sorl() -> Sorl:
    """Call the command in this process: `sorl("ls", runs=folder)`."""

    def call(*arguments: object, runs: Path | None = None) -> Any:
        words = [str(a) for a in arguments] + ([] if runs is None else ["--runs", str(runs)])
        return CliRunner().invoke(app, words, prog_name="sorl")

    return call
