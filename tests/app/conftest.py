"""Screens without a browser, the runs folders that they show, and what a browser makes of their HTML and
figures.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import plotly.graph_objects as go
import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from sorl.store.sync import sync
from tests.store.fixture import (
    START,
    Shape,
    write_experiment,
    write_grid,
    write_run,
    write_segment,
    write_status,
)

SMALL = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)

# Each would show something else than itself in HTML, Markdown, LaTeX, a figure or a terminal.
HOSTILE = (
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "**bold** _it_ [link](https://example.org) `code`",
    "$x^2$ and $$\\frac{1}{2}$$",
    ":material/home: :red[red] :smile:",
    "%{x} %{customdata} {y}",
    "<b>bold</b><br><a href='javascript:alert(1)'>x</a>",
    "\x1b[31mred\x1b[0m \u202etxet",
    "&lt;b&gt; &#60;",
)


class Visit(AppTest):
    """An app in a browser: no run raises, and the address is completed as the page says. `steps` counts the
    others.
    """

    steps = 0

    def _run(self, *args: Any, **options: Any) -> "Visit":
        before = urlencode(self.query_params, doseq=True)
        super()._run(*args, **options)
        assert not self.exception
        self.steps += urlencode(self.query_params, doseq=True) != before
        if completed := re.search(r"history\.replaceState\(history\.state, '', (\".*\")\)", self.source):
            self.query_params = dict(parse_qs(json.loads(completed[1]).removeprefix("?")))
        return self

    def value(self, name: str) -> str | list[str]:
        """A parameter of the address; a list of one is its value."""
        found = self.query_params[name]
        return found[0] if isinstance(found, list) and len(found) == 1 else found

    @property
    def source(self) -> str:
        """All HTML of the screen."""
        return "\n".join(element.proto.body for element in self.get("html"))

    @property
    def figures(self) -> list[Any]:
        return [json.loads(element.proto.spec) for element in self.get("plotly_chart")]

    @property
    def drawings(self) -> list[str]:
        """The pictures of our own, as SVG."""
        return [json.loads(element.proto.json)["svg"] for element in self.get("bidi_component")]


def visit(script: str, **address: str | list[str]) -> Visit:
    """Open an app whose script is this text."""
    app = Visit(AppTest.from_string(script)._script_path, default_timeout=60)
    app.query_params |= address
    return app.run()


def press(app: Visit, label: str) -> Visit:
    return next(b for b in app.button if b.label == label).click().run()


Open = Callable[..., Visit]
Patch = pytest.MonkeyPatch


class Read(HTMLParser):
    """What a browser makes of HTML: its elements with their attributes, its texts and its scripts."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._words: list[tuple[str, str]] = []
        self.feed(str(source))  # plain text: Markup would escape what is taken from it
        self.close()
        self.tags = [tag for tag, _ in self.elements]
        self.attributes = {name for _, attributes in self.elements for name in attributes}
        self.text = "".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        (self.scripts if self.cdata_elem == "script" else self.texts).append(data)
        self._words.append((self.lasttag, data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def words(self, tag: str) -> list[str]:
        return [text for name, text in self._words if name == tag]

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


OURS = {
    "h1",
    "h2",
    "p",
    "a",
    "span",
    "i",
    "b",
    "style",
    "div",
    "table",
    "tr",
    "th",
    "td",
    "button",
    "script",
    "code",
    "pre",
    "sub",
    "sup",
}


def assert_literal(app: Visit) -> str:
    """Check that no text became an element and no script but ours is there; return the texts."""
    parsed = [Read(element.proto.body) for element in app.get("html")]
    for one in parsed:
        assert set(one.tags) <= OURS
        assert one.tags.count("script") <= 1  # ours, of a figure or of the address, and nothing else in it
        assert "alert(1)" not in "".join(one.scripts)
    assert not [m.value for m in app.markdown if any(text in m.value for text in HOSTILE)]
    return "".join(one.text for one in parsed)


# Tags that our figures write themselves.
_MARKUP = re.compile(
    r"</?b>|<br>|<extra></extra>|</span>|<span style='(?:font-size:12px;)?color:#[0-9a-f]{6}'>"
)


def checked(figure: go.Figure) -> go.Figure:
    """Return the figure after plotly has checked all of it, which drawing leaves out."""
    return go.Figure([trace.to_plotly_json() for trace in figure.data], figure.layout.to_plotly_json())


def assert_figure_literal(found: Any) -> None:
    """Check that no string of a figure, or of its JSON, would be read as markup by the drawing library."""
    if isinstance(found, go.Figure):
        assert_figure_literal(json.loads(found.to_json()))
    elif isinstance(found, dict | list):
        for part in found.values() if isinstance(found, dict) else found:
            assert_figure_literal(part)
    elif isinstance(found, str):
        assert not set("<$") & set(_MARKUP.sub("", found)), found


def write_queued(runs: Path, experiment: str) -> None:
    folder = write_experiment(runs, experiment) / "queued"
    nothing = dict.fromkeys(["outcome", "steps", "started_at", "ended_at", "seconds"])
    write_status(folder, status="queued", **nothing)


@pytest.fixture(autouse=True)
def main_module(monkeypatch: Patch) -> None:
    """Put `__main__` back: AppTest leaves the app there, and processes that a later test starts would import
    it.
    """
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture(scope="session", autouse=True)
def components() -> Iterator[None]:
    """Streamlit looks for components in every installed package each time an app starts, which no test is
    about.
    """
    found = manifest_scanner.scan_component_manifests()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", lambda: found)
        yield


@pytest.fixture(autouse=True)
def patience(monkeypatch: Patch) -> None:
    """Wait for the first sync of a screen, also on a busy machine: a test need not sync what it
    then opens.
    """
    monkeypatch.setattr("sorl.app.page._PATIENCE", 30.0)


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synced runs folder with the small experiment; tests must not change it."""
    folder = tmp_path_factory.mktemp("grid")
    write_grid(folder)
    sync(folder)
    return folder


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder whose question, arms and reasons are attacks on whatever shows them."""
    folder = tmp_path_factory.mktemp("hostile")
    write_experiment(folder, "hostile", question=f"Is {HOSTILE[0]} {HOSTILE[3]} shown?")
    for number, text in enumerate(HOSTILE):
        write_run(
            folder,
            "hostile",
            f"run-{number}",
            shape=SMALL,
            algorithm="ppo" if number else text,
            arm=text,
            status="failed",
            reason=text,
            collapse=6 if number == 1 else None,
        )
    sync(folder)
    return folder


SEARCHED = """
kind = "region"
question = "How large a learning rate does each survive?"
seeds = [0]
[axes]
algorithm = ["ppo", "st-ppo"]
"learn.staleness" = [0, 8]
[region]
low = 0.1
high = 0.4
points = 3
"""


def region_arms() -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Every arm of SEARCHED: name, algorithm, settings of `learn`, and whether it collapses:
    ppo above 0.1.
    """
    for algorithm in ("ppo", "st-ppo"):
        for staleness in (0, 8):
            for rate in (0.1, 0.2, 0.4):
                learn = {"staleness": staleness, "policy": {"lr": rate}}
                name = f"{algorithm} · staleness {staleness} · lr {rate:g}"
                yield name, algorithm, learn, algorithm == "ppo" and rate > 0.1


def write_searched(folder: Path) -> None:
    """An experiment of kind region: ppo collapses from a learning rate of 0.2 on, st-ppo nowhere."""
    about = {
        "experiment": "searched",
        "question": "How large a learning rate does each survive?",
        "toml": SEARCHED,
    }
    write_segment(
        folder / "searched", "experiment", {k: [v] for k, v in (about | {"written_at": START}).items()}
    )
    shape = Shape(steps=24, trajectories=2, turns=2, epochs=1, steps_per_segment=24)
    for number, (name, algorithm, learn, fell) in enumerate(region_arms()):
        arm: dict[str, Any] = {"algorithm": algorithm, "arm": name}
        onset = 12 if fell else None
        run = write_run(folder, "searched", f"{algorithm}-{number}", shape=shape, collapse=onset, **arm)
        write_status(
            run,
            **arm,
            config=json.dumps({"algorithm": algorithm, "learn": learn}),
            steps=24,
            collapse_step=onset,
            outcome="collapsed" if fell else "healthy",
        )


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with an experiment of kind region."""
    folder = tmp_path_factory.mktemp("searched")
    write_searched(folder)
    sync(folder)
    return folder


@pytest.fixture
def open_screen(grid: Path, monkeypatch: Patch) -> Open:
    """Draw a screen: `open_screen("compare", folder, arm=["ppo"])`; keywords are parameters of
    its address.
    """

    def call(name: str, runs: Path = grid, /, **address: str | list[str]) -> Visit:
        monkeypatch.setenv("SORL_RUNS", str(runs))
        return visit(f"from sorl.app.screens.{name} import {name}\n{name}()", **address)

    return call
