"""Screen Collapse: events, survival, and which alarm comes first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import Open, figures, html
from tests.store.fixture import Shape, write_experiment, write_run, write_status
from workbench.app.figures.common import AXES
from workbench.app.figures.runs import TITLE
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync


def axis_titles(app: AppTest) -> list[list[str]]:
    layouts = [json.loads(figure)["layout"] for figure in figures(app)]
    axes = [[axis for name, axis in layout.items() if name.startswith("xaxis")] for layout in layouts]
    return [[text for axis in found if (text := axis.get("title", {}).get("text"))] for found in axes]


def test_collapse_shows_events_survival_and_leads(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid)
    assert not app.exception
    assert axis_titles(app) == [[AXES["step"]], [TITLE], [AXES["onset"]]]
    shown = html(app)
    for words in ("What happened when", "Survival", "Which signal moves first", "permuted log-rank p"):
        assert words in shown
    _, curves, order = (json.loads(figure)["layout"] for figure in figures(app))
    assert any(a["text"].startswith("Log-rank test that all 4 arms") for a in curves["annotations"])
    assert order["yaxis"]["ticktext"] == ["ess_frac_min ↓", "grad_norm_max ↑"]
    texts = [a["text"] for a in order["annotations"]]
    assert texts.count("2/2") >= 3  # both alarms warned in both runs, the first of them came first twice


def test_collapse_takes_its_view_from_the_address(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid, arm=["st-ppo", "ppo"], x="onset", reference="ppo")
    assert not app.exception
    assert app.query_params["arm"] == ["st-ppo", "ppo"]
    for name, value in (("x", "onset"), ("reference", "ppo")):
        assert app.query_params[name] in (value, [value])
    assert axis_titles(app)[0] == [AXES["onset"]]
    marks = next(t for t in json.loads(figures(app)[0])["data"] if t.get("name") == "onset of the collapse")
    assert [c[1] for c in marks["customdata"]] == [0, 0]


def test_what_cannot_be_tested_or_ordered_is_said(grid: Path, open_screen: Open) -> None:
    for arm, words in (("ppo", "No log-rank test"), ("st-ppo", "None of these runs collapsed.")):
        app = open_screen("collapse", grid, arm=[arm])
        assert words in html(app) + "".join(figures(app))


def test_a_queued_run_breaks_nothing_and_a_running_run_is_watched_until_now(tmp_path: Path, open_screen: Open) -> None:
    folder = write_experiment(tmp_path, "queue") / "queued"
    folder.mkdir()
    write_status(folder, status="queued", outcome=None, steps=None, ended_at=None, started_at=None)
    small = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)
    write_run(tmp_path, "demo", "a", shape=small, status="running")
    sync(tmp_path, CATALOGUE)
    queued, running = (open_screen("collapse", tmp_path, experiment=name) for name in ("queue", "demo"))
    assert not queued.exception
    assert "has trained a step" in html(queued)
    assert json.loads(figures(running)[1])["layout"]["xaxis"]["range"][1] == pytest.approx(12 * 1.02)
