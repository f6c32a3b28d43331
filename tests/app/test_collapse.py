from __future__ import annotations

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import Open, figures, html
from tests.store.fixture import Shape, write_experiment, write_run, write_status
from workbench.app.figures.collapse import TITLE
from workbench.app.series import AXES
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

SMALL = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)


def axis_titles(app: AppTest) -> list[list[str]]:
    layouts = [json.loads(figure)["layout"] for figure in figures(app)]
    axes = [[axis for name, axis in layout.items() if name.startswith("xaxis")] for layout in layouts]
    return [[axis["title"]["text"] for axis in found if "text" in axis.get("title", {})] for found in axes]


def test_collapse_shows_events_survival_and_leads(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid)
    assert not app.exception
    assert axis_titles(app) == [[AXES["step"]], [TITLE], [AXES["onset"]]]
    shown = html(app)
    for words in ("What happened when", "How long the arms stay up", "Which signal moves first", "permuted log-rank p"):
        assert words in shown
    survival = json.loads(figures(app)[1])["layout"]["annotations"]
    assert any(a["text"].startswith("Log-rank test that all 4 arms") for a in survival)


def test_the_lead_of_an_alarm_is_that_of_the_fixture(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid)
    figure = json.loads(figures(app)[2])
    assert [t["ticktext"] for n, t in figure["layout"].items() if n == "yaxis"] == [
        ["ess_frac_min ↓", "grad_norm_max ↑"]
    ]
    texts = [a["text"] for a in figure["layout"]["annotations"]]
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


def test_one_arm_has_a_curve_and_no_test(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid, arm=["ppo"])
    assert not app.exception
    texts = [a["text"] for a in json.loads(figures(app)[1])["layout"]["annotations"]]
    assert any(text.startswith("No log-rank test") for text in texts)


def test_without_a_collapse_there_is_no_order_of_signals(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid, arm=["st-ppo"])
    assert not app.exception
    assert "None of these runs collapsed." in html(app)


def test_collapse_without_arms_asks_for_one(grid: Path, open_screen: Open) -> None:
    app = open_screen("collapse", grid)
    app.multiselect(key="arm").set_value([]).run()
    assert not app.exception
    assert "Choose at least one arm" in html(app)


def test_a_queued_run_breaks_nothing(tmp_path: Path, open_screen: Open) -> None:
    folder = write_experiment(tmp_path, "demo") / "queued"
    folder.mkdir()
    write_status(folder, status="queued", outcome=None, steps=None, ended_at=None, started_at=None)
    sync(tmp_path, CATALOGUE)
    app = open_screen("collapse", tmp_path)
    assert not app.exception
    assert "has trained a step" in html(app)


def test_a_running_run_is_watched_until_now(tmp_path: Path, open_screen: Open) -> None:
    write_run(tmp_path, "demo", "a", shape=SMALL, status="running")
    sync(tmp_path, CATALOGUE)
    app = open_screen("collapse", tmp_path)
    assert not app.exception
    assert json.loads(figures(app)[1])["layout"]["xaxis"]["range"][1] == pytest.approx(12 * 1.02)
