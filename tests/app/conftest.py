from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from tests.store.fixture import (
    START,
    Shape,
    write_experiment,
    write_grid,
    write_run,
    write_segment,
    write_status,
)
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync


class Visit(AppTest):
    """An app in a browser: it completes its address as the page tells it to. `steps` counts what came after that."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps = 0

    def _run(self, *args: Any, **options: Any) -> Visit:
        said = dict(self.query_params)
        super()._run(*args, **options)
        self.steps += urlencode(self.query_params, doseq=True) != urlencode(said, doseq=True)
        if told := re.search(r"history\.replaceState\(history\.state, '', (\".*\")\)", html(self)):
            self.query_params = dict(parse_qs(json.loads(told[1]).removeprefix("?")))
        return self


Open = Callable[..., Visit]

# Each would show something else than itself in HTML, Markdown, LaTeX, a figure or a terminal.
HOSTILE = (
    "<script>alert(1)</script>", '<img src=x onerror="alert(1)">', "**bold** _it_ [link](https://example.org) `code`",
    "$x^2$ and $$\\frac{1}{2}$$", ":material/home: :red[red] :smile:", "%{x} %{customdata} {y}",
    "<b>bold</b><br><a href='javascript:alert(1)'>x</a>", "\x1b[31mred\x1b[0m \u202etxet", "&lt;b&gt; &#60;",
)  # fmt: skip


@pytest.fixture(autouse=True)
def main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `__main__` back: AppTest leaves the app there, and processes that a later test starts would import it."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture(scope="session", autouse=True)
def components() -> Iterator[None]:
    """Streamlit looks for components in every installed package each time an app starts, which no test is about."""
    found = manifest_scanner.scan_component_manifests()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", lambda: found)
        yield


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


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with an experiment of kind region: ppo collapses from a learning rate of 0.2 on, st-ppo nowhere."""
    folder = tmp_path_factory.mktemp("searched") / "runs"
    about = {"experiment": "searched", "question": "How large a learning rate does each survive?", "toml": SEARCHED}
    write_segment(folder / "searched", "experiment", {k: [v] for k, v in (about | {"written_at": START}).items()})
    small = Shape(steps=24, trajectories=2, turns=2, epochs=1, steps_per_segment=24)
    for algorithm in ("ppo", "st-ppo"):
        for staleness in (0, 8):
            for rate in (0.1, 0.2, 0.4):
                fell = algorithm == "ppo" and rate > 0.1
                name = f"{algorithm} · staleness {staleness} · lr {rate:g}"
                run = f"{algorithm}-{staleness}-{rate:g}"
                write_run(
                    folder, "searched", run, shape=small, algorithm=algorithm, arm=name, collapse=12 if fell else None
                )
                config = {"algorithm": algorithm, "learn": {"staleness": staleness, "policy": {"lr": rate}}}
                write_status(
                    folder / "searched" / run, algorithm=algorithm, arm=name, status="finished",
                    config=json.dumps(config), outcome="collapsed" if fell else "healthy",
                    collapse_step=12 if fell else None, steps=24,
                )  # fmt: skip
    sync(folder, CATALOGUE)
    return folder


@pytest.fixture
def visit(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Visit]:
    """Open an app whose script is this text."""

    def call(script: str, **address: str | list[str]) -> Visit:
        file = tmp_path_factory.mktemp("app") / "app.py"
        file.write_text(script)
        app = Visit(str(file), default_timeout=60)
        app.query_params |= address
        app.run()
        return app

    return call


@pytest.fixture
def open_screen(visit: Callable[..., Visit], monkeypatch: pytest.MonkeyPatch) -> Open:
    """Draw a screen: `open_screen("compare", folder, arm=["ppo"])`; keywords are parameters of its address."""

    def call(name: str, runs: Path, **address: str | list[str]) -> Visit:
        monkeypatch.setenv("SORL_RUNS", str(runs))
        return visit(f"from workbench.app.screens.{name} import {name}\n{name}()", **address)

    return call


class Read(HTMLParser):
    """What a browser makes of HTML: elements, attributes, links, and the texts with the class of their element."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.hrefs: list[str] = []
        self.tips: list[str] = []
        self.text = ""
        self.feed(str(source))  # plain text: Markup would escape what is taken from it
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.attributes |= set(given)
        self.hrefs += [given["href"] or ""] if "href" in given else []
        self.tips += [given["data-tip"] or ""] if "data-tip" in given else []

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = {"p", "a", "span", "i", "b", "style", "div", "table", "tr", "th", "td", "button", "script", "code", "pre", "sub",
        "sup"}  # fmt: skip


def assert_literal(app: AppTest) -> str:
    """Check that no text became an element and no script but ours is there; return the texts."""
    assert not app.exception
    said = []
    for element in app.get("html"):
        parsed = Read(element.proto.body)
        assert set(parsed.tags) <= OURS
        if "script" in parsed.tags:  # ours, next to a figure or for the address, and nothing else in it
            assert element.proto.body.count("<script>") == 1
            assert "alert(1)" not in element.proto.body
        said.append(parsed.text)
    assert not [m.value for m in app.markdown if any(text in m.value for text in HOSTILE)]
    return "".join(said)


def value(app: AppTest, name: str) -> str | list[str]:
    """A parameter of the address; a list of one is its value."""
    found = app.query_params[name]
    return found[0] if isinstance(found, list) and len(found) == 1 else found


def html(app: AppTest) -> str:
    """All HTML of a screen."""
    return "\n".join(element.proto.body for element in app.get("html"))


def figures(app: AppTest) -> list[str]:
    """The figures of a screen, as JSON."""
    return [element.proto.spec for element in app.get("plotly_chart")]


def drawings(app: AppTest) -> list[str]:
    """The pictures of our own on a screen, as SVG."""
    return [json.loads(element.proto.json)["svg"] for element in app.get("bidi_component")]
