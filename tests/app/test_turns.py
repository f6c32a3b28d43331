from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path

import pytest

from tests.app.conftest import Open, figures, html
from tests.store.fixture import Shape, write_run
from workbench.app.theme import LIGHT
from workbench.diagnostics import CATALOGUE
from workbench.store.sync import sync

ADDRESS = {
    "arm": ["st-ppo", "ppo"], "measure": "advantage", "x": "onset", "seed": "1", "cells": "extreme", "range": "-6..4",
    "cell": ["ppo", "-2", "3"],
}  # fmt: skip


def maps(app: object) -> list[dict[str, object]]:
    return [trace for trace in json.loads(figures(app)[0])["data"] if trace["type"] == "heatmap"]


def test_turns_takes_its_view_from_the_address(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid, **ADDRESS)
    assert not app.exception
    for name, value in ADDRESS.items():
        kept = app.query_params[name]
        assert (kept if isinstance(kept, list) else [kept]) == (value if isinstance(value, list) else [value])
    layout = json.loads(figures(app)[0])["layout"]
    assert layout["xaxis"]["range"] == [-6.5, 4.5]
    assert "reward" in layout["coloraxis"]["colorbar"]["title"]["text"]


def test_turns_shows_a_map_an_arm_of_the_geometric_ratio(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid)
    assert len(maps(app)) == 4
    assert app.query_params["measure"] in ("ratio_geo", ["ratio_geo"])
    assert "Click a cell" in html(app)


def test_a_picked_cell_lists_its_trajectories_and_each_opens_its_episode(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid, arm=["ppo"])
    app.session_state["cell picked"] = ["ppo", "12", "3"]
    app.run()
    assert not app.exception
    assert app.query_params["cell"] == ["ppo", "12", "3"]
    shown = html(app)
    assert "ppo, turn 3, step 12: 16 trajectories" in shown
    assert shown.count('<a href="episode?experiment=demo&amp;run=ppo-s') == 16
    frames = [t for t in json.loads(figures(app)[0])["data"] if t.get("line", {}).get("color") == LIGHT.text]
    assert len(frames) == 1


def test_a_cell_stays_while_the_diagnostic_changes_and_is_listed_by_it(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid, arm=["ppo"], cell=["ppo", "12", "3"])
    app.selectbox(key="measure").set_value("clip_frac").run()
    assert app.query_params["cell"] == ["ppo", "12", "3"]
    assert "ordered by clip_frac" in html(app)


def test_a_diagnostic_that_single_turns_do_not_have_lists_by_drift(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid, arm=["ppo"], measure="n_turns", cell=["ppo", "12", "3"])
    assert not app.exception
    assert "ordered by log_ratio_sum" in html(app)


@pytest.mark.parametrize("cell", [["ppo"], ["nobody", "1", "1"], ["ppo", "1", "<b>"], ["ppo", "999", "1"]])
def test_a_cell_that_is_not_there_is_none(grid: Path, open_screen: Open, cell: list[str]) -> None:
    app = open_screen("turns", grid, arm=["ppo"], cell=cell)
    assert not app.exception
    assert "Click a cell" in html(app)


def test_a_cell_without_a_trajectory_says_so(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid, arm=["ppo"], cell=["ppo", "12", "9"])
    assert "no trajectory of these runs is recorded there" in html(app)


def test_turns_without_arms_asks_for_one(grid: Path, open_screen: Open) -> None:
    app = open_screen("turns", grid)
    app.multiselect(key="arm").set_value([]).run()
    assert not app.exception
    assert "Choose at least one arm" in html(app)


@pytest.mark.parametrize("carried", [[1, 12, 3], {"0": 1, "1": 12, "2": 3}])
def test_a_click_opens_the_cell_that_was_clicked(
    carried: object, grid: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    clicks = [{"selection": {"points": [{"customdata": carried}], "box": []}}]
    nothing = {"selection": {"points": [], "box": []}}
    monkeypatch.setattr("streamlit.plotly_chart", lambda *_, **__: clicks.pop() if clicks else nothing)
    app = open_screen("turns", grid, arm=["grpo", "ppo"])
    assert not app.exception
    assert app.query_params["cell"] == ["ppo", "12", "3"]


def test_a_click_on_the_cell_that_is_shown_draws_nothing_anew(
    grid: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = count()

    def chart(*_: object, **__: object) -> dict[str, object]:
        assert next(drawn) < 5, "drawn for ever"
        return {"selection": {"points": [{"customdata": [1, 12, 3]}], "box": []}}

    monkeypatch.setattr("streamlit.plotly_chart", chart)
    app = open_screen("turns", grid, arm=["grpo", "ppo"], cell=["ppo", "12", "3"])
    assert not app.exception
    assert "ppo, turn 3, step 12: 16 trajectories" in html(app)


def test_runs_without_turns_say_what_records_them(tmp_path: Path, open_screen: Open) -> None:
    run = write_run(tmp_path, "curves", "a", shape=Shape(steps=6, trajectories=2, turns=2, epochs=1))
    for table in ("turn", "turn_step", "trajectory", "token"):
        shutil.rmtree(run / "segments" / table)
    sync(tmp_path, CATALOGUE)
    for screen in ("turns", "episode"):
        app = open_screen(screen, tmp_path)
        assert not app.exception
        assert "hold curves only" in html(app)
        assert app.code[0].value == "sorl run FILE.toml"
    assert not figures(open_screen("turns", tmp_path)), "six empty maps tell nothing"
