from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.conftest import Open, assert_literal, drawings, figures, html, value
from tests.store.fixture import Shape, write_run
from workbench.app import store
from workbench.app.page import SCREENS
from workbench.app.text import html_text
from workbench.app.theme import LIGHT
from workbench.store.connect import database, writer


@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_says_what_to_type_where_nothing_was_run_or_the_database_is_busy_or_none(
    name: str, tmp_path: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.app.page._PATIENCE", 30.0)  # the first sync of a busy machine
    for folder in (tmp_path, tmp_path / "nowhere") if name != "glossary" else ():  # which explains all without a run
        app = open_screen(name, folder)
        assert not app.exception
        assert "sorl run" in "".join(code.value for code in app.code)
    (busy := tmp_path / "busy").mkdir()
    (none := tmp_path / "none").mkdir()
    database(none).write_text("not a database")
    app = open_screen(name, none)
    assert not app.exception
    assert "sorl sync" in html(app)
    monkeypatch.setattr(store, "_WAIT", 0.05)
    monkeypatch.setattr(store, "_LOCK", 0.05)
    with writer(busy, 30.0):
        app = open_screen(name, busy)
        assert not app.exception
        assert "Waiting for the database" in html(app)


@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_shows_hostile_text_literally(name: str, hostile: Path, open_screen: Open) -> None:
    assert_literal(open_screen(name, hostile))


def test_overview_shows_the_question_its_answer_and_a_cell_a_run(grid: Path, open_screen: Open) -> None:
    app = open_screen("overview", grid)
    shown = html(app)
    assert "Does the clip stop the collapse?" in shown
    assert "Collapsed: ppo in 2 of 2" in shown
    assert "8 runs" in shown
    (cells,) = drawings(app)
    assert cells.count("data-key=") == 8
    assert 'href="run?experiment=demo&amp;run=ppo-s0-aaaa0000"' in cells


def test_a_live_run_shows_its_new_rows(tmp_path: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=4)
    monkeypatch.setattr(store, "_PERIOD", 0.0)
    monkeypatch.setattr("workbench.app.page._PATIENCE", 30.0)
    write_run(tmp_path, "demo", "a", shape=small, status="running")
    assert "1 runs" in html(open_screen("overview", tmp_path))
    write_run(tmp_path, "demo", "b", shape=small, seed=1, status="running")
    assert "2 runs" in html(open_screen("overview", tmp_path))


def test_compare_takes_its_view_from_the_address(grid: Path, open_screen: Open) -> None:
    address = {"arm": ["st-ppo", "ppo"], "metric": ["minibatch.grad_norm"], "x": "updates", "seeds": "single",
               "scale": "log", "smooth": "5", "range": "3..20"}  # fmt: skip
    app = open_screen("compare", grid, **address)
    assert not app.exception
    assert {name: value(app, name) for name in address} == address | {"metric": "minibatch.grad_norm"}
    figure = json.loads(figures(app)[0])
    assert [t["name"] for t in figure["data"] if t.get("showlegend") is not False] == ["st-ppo", "ppo"]
    assert figure["layout"]["yaxis"]["type"] == "log"


def test_compare_ignores_what_the_address_gets_wrong_and_says_so(grid: Path, open_screen: Open) -> None:
    app = open_screen("compare", grid, arm=["ppo", "<b>x</b>"], metric=["step.nope"], x="sideways", range="9..1")
    assert not app.exception
    shown = html(app)
    for words in ("arm = '<b>x</b>'", "metric = 'step.nope'", "x = 'sideways'", "range = '9..1'"):
        assert html_text(words) in shown
    assert app.multiselect(key="arm").value == ["ppo"]


def test_a_step_back_takes_back_what_the_address_says_by_silence(grid: Path, open_screen: Open) -> None:
    app = open_screen("compare", grid)
    before = dict(app.query_params)
    app.slider(key="range").set_range(3, 20).run()
    assert value(app, "range") == "3..20"
    app.query_params = before
    app.run()
    assert app.slider(key="range").value == (0, 29)
    assert app.steps == 1


def test_what_an_address_gets_wrong_does_not_undo_a_choice(grid: Path, open_screen: Open) -> None:
    app = open_screen("compare", grid, scale="sideways")
    app.query_params = {"scale": "sideways"}  # what a browser says until it hears of another address
    app.segmented_control(key="scale").set_value("log").run()
    assert value(app, "scale") == "log"


def test_two_choices_at_once_are_both_kept(grid: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_screen("compare", grid)
    with monkeypatch.context() as cut_short:
        cut_short.setattr("workbench.app.url.finish", lambda _: None)  # the second comes while the first is drawn
        app.segmented_control(key="scale").set_value("log").run()
    app.segmented_control(key="seeds").set_value("single").run()
    assert (app.session_state["scale"], app.session_state["seeds"]) == ("log", "single")
    assert app.steps == 1


@pytest.mark.parametrize(
    ("screen", "dragged", "kept"),
    [("run", (9.6, 20.3), "10..20"), ("compare", (12.2, 12.6), "11..13"), ("compare", (-3.0, 7.5), "0..7"),
     ("turns", (20.3, 9.6), "10..20")],
)  # fmt: skip
def test_a_part_of_a_figure_that_is_dragged_over_becomes_the_range_of_the_address(
    screen: str, dragged: tuple[float, float], kept: str, grid: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def chart(_: object, *, key: str, selection_mode: str | tuple[str, ...], **__: object) -> dict[str, object]:
        boxes = "box" in selection_mode and not any(other.startswith(key[:-2]) for other in drawn)
        drawn.append(key)
        inside = [{"customdata": [1, 12, 3]}] if boxes and "points" in selection_mode else []
        return {"selection": {"box": [{"x": list(dragged)}] if boxes else [], "points": inside}}

    monkeypatch.setattr("streamlit.plotly_chart", chart)
    app = open_screen(screen, grid)
    assert not app.exception
    assert value(app, "range") == kept
    zoomed = [key for key in drawn if key.startswith(("curves", "signals", "turns"))]
    assert len(set(zoomed)) == 2, "the new figure is another one, in which nothing is selected"
    assert "cell" not in app.query_params, "what lies in the part was not clicked"


def test_compare_marks_the_onset_and_draws_the_alarms_of_the_dictionary(grid: Path, open_screen: Open) -> None:
    app = open_screen("compare", grid, arm=["ppo", "st-ppo"], metric=["step.success"], x="onset")
    marks = [t for t in json.loads(figures(app)[0])["data"] if t.get("marker", {}).get("symbol") == "triangle-down"]
    assert [m["marker"]["color"] for m in marks] == [LIGHT.algorithms["ppo"]]
    assert "2 of 4 runs did not collapse" in html(app)
    app = open_screen("compare", grid, arm=["ppo", "st-ppo"], metric=["step.ess_frac_min", "step.grad_norm_max"])
    data = json.loads(figures(app)[0])["data"]
    words = [t["hovertemplate"] for t in data if t.get("line", {}).get("dash") == "2px,3px"]
    assert "alarm at 0.3<extra></extra>" in words
    assert any("for st-ppo" in w for w in words)
    assert sum(t.get("marker", {}).get("symbol") == "triangle-up-open" for t in data) == 2


@pytest.mark.parametrize(
    ("x", "seeds"), [("step", "band"), ("updates", "single"), ("tokens", "band"), ("onset", "single")]
)
def test_every_axis_shows_every_kind_of_diagnostic(grid: Path, open_screen: Open, x: str, seeds: str) -> None:
    metrics = ["step.success", "minibatch.clip_bias_norm", "turn_step.ratio_max"]
    app = open_screen("compare", grid, metric=metrics, x=x, seeds=seeds)
    assert not app.exception
    titles = [a["text"] for a in json.loads(figures(app)[0])["layout"]["annotations"]]
    assert not any("not measured" in title for title in titles)


def test_a_choice_changes_figure_and_address_in_one_step_and_an_opening_is_none(grid: Path, open_screen: Open) -> None:
    app = open_screen("compare", grid, arm=["ppo"], scale="log")
    assert (app.query_params["experiment"], app.steps) == (["demo"], 0)
    app.multiselect(key="arm").set_value(["ppo", "grpo"]).run()
    app.run()
    assert (app.query_params["arm"], app.steps) == (["ppo", "grpo"], 1)
    assert "What differs" in html(app)
    app.query_params["scale"] = "linear"  # an address from outside wins over the widgets
    app.run()
    assert app.session_state["scale"] == "linear"
    app.query_params.clear()  # a step back to a bare address is no step forward
    app.run()
    assert not app.exception
    assert app.steps == 1


@pytest.mark.parametrize("screen", ["compare", "turns", "collapse"])
def test_a_screen_of_arms_without_one_asks_for_one(screen: str, grid: Path, open_screen: Open) -> None:
    app = open_screen(screen, grid)
    app.multiselect(key="arm").set_value([]).run()
    assert not app.exception
    assert "Choose at least one arm" in html(app)
