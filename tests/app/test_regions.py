"""An experiment of kind region on the screens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.conftest import Open, drawings, figures, html


def test_region_shows_the_answer_the_map_of_each_arm_and_the_boundaries(searched: Path, open_screen: Open) -> None:
    app = open_screen("region", searched)
    assert not app.exception
    shown = html(app)
    assert "Stable area, from the largest: st-ppo" in shown
    assert "Boundary: the learn.policy.lr at which half of the runs collapse, by learn.staleness." in shown
    words = [t["text"] for t in json.loads(figures(app)[0])["data"] if t.get("mode") == "text"]
    assert words == [["0/1", "1/1", "1/1"] * 2, ["0/1"] * 6]


def test_overview_of_a_region_leads_with_its_map_and_not_with_a_row_for_each_of_its_points(
    searched: Path, open_screen: Open
) -> None:
    app = open_screen("overview", searched)
    assert not app.exception
    shown = html(app)
    assert "Stable area, from the largest: st-ppo" in shown
    assert 'href="region?experiment=searched"' in shown
    assert len(figures(app)) == 1
    assert "customdata" in figures(app)[0]
    assert "st-ppo · staleness 8 · lr 0.4" not in figures(app)[0]


def test_overview_lists_every_run_of_a_region_on_demand(searched: Path, open_screen: Open) -> None:
    app = open_screen("overview", searched, show="runs")
    assert not app.exception
    assert drawings(app)[0].count("data-key=") == 12
    assert app.query_params["show"] in ("runs", ["runs"])


@pytest.mark.parametrize("screen", ["compare", "turns", "collapse"])
def test_the_screens_of_single_points_lead_to_the_whole_region(
    screen: str, searched: Path, grid: Path, open_screen: Open
) -> None:
    way = 'href="region?experiment=searched"'
    app = open_screen(screen, searched)
    assert not app.exception
    assert way in html(app)
    assert {arm.partition(" ")[0] for arm in app.multiselect(key="arm").value} == {"ppo", "st-ppo"}
    assert "Each arm here" not in html(open_screen(screen, grid))


def test_other_experiments_have_no_choice_between_map_and_runs(grid: Path, open_screen: Open) -> None:
    assert "show" not in open_screen("overview", grid).session_state
