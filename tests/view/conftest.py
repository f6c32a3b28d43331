from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.store.fixture import Shape, write_experiment, write_grid, write_run
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

Open = Callable[..., AppTest]

# Each would show something else than itself in HTML, Markdown, LaTeX, a figure or a terminal.
HOSTILE = (
    "<script>alert(1)</script>", '<img src=x onerror="alert(1)">', "**bold** _it_ [link](https://example.org) `code`",
    "$x^2$ and $$\\frac{1}{2}$$", ":material/home: :red[red] :smile:", "%{x} %{customdata} {y}",
    "<b>bold</b><br><a href='javascript:alert(1)'>x</a>", "\x1b[31mred\x1b[0m \u202etxet", "&lt;b&gt; &#60;",
)  # fmt: skip


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synced runs folder with the small experiment; tests must not change it."""
    folder = tmp_path_factory.mktemp("grid") / "runs"
    folder.mkdir()
    write_grid(folder)
    sync(folder, CATALOGUE)
    return folder


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder whose question, arms and reasons are attacks on whatever shows them."""
    folder = tmp_path_factory.mktemp("hostile") / "runs"
    write_experiment(folder, "hostile", question=f"Is {HOSTILE[0]} {HOSTILE[3]} shown?")
    small = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)
    for number, text in enumerate(HOSTILE):
        write_run(
            folder, "hostile", f"run-{number}", shape=small, algorithm="ppo" if number else text, arm=text,
            status="failed", reason=text, collapse=6 if number == 1 else None,
        )  # fmt: skip
    sync(folder, CATALOGUE)
    return folder


@pytest.fixture
def open_screen(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Draw a screen: `open_screen("compare", folder, arm=["ppo"])`; keywords are parameters of its address."""

    def call(name: str, runs: Path, **address: str | list[str]) -> AppTest:
        monkeypatch.setenv("SORL_RUNS", str(runs))
        app = AppTest.from_string(f"from workbench.view.screens.{name} import {name}\n{name}()", default_timeout=60)
        for key, value in address.items():
            app.query_params[key] = value
        return app.run()

    return call


def html(app: AppTest) -> str:
    """All HTML of a screen."""
    return "\n".join(element.proto.body for element in app.get("html"))


def figures(app: AppTest) -> list[str]:
    """The figures of a screen, as JSON."""
    return [element.proto.spec for element in app.get("plotly_chart")]
