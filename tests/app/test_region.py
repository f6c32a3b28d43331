"""An experiment of kind region: its screen, and its place on other screens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.conftest import Open, drawings, figures, html


def test_region_shows_the_answer_the_map_of_each_arm_and_the_boundaries(searched: Path, open_screen: Open) -> None:
    app = open_screen("region", searched)
    assert not app.exception
    for words in ("Stable area, from the largest: st-ppo", "at which half of the runs collapse, by learn.staleness."):
        assert words in html(app)
    words = [t["text"] for t in json.loads(figures(app)[0])["data"] if t.get("mode") == "text"]
    assert words == [["0/1", "1/1", "1/1"] * 2, ["0/1"] * 6]


def test_overview_of_a_region_leads_with_its_map_and_lists_runs_on_demand(
    searched: Path, grid: Path, open_screen: Open
) -> None:
    app = open_screen("overview", searched)
    assert not app.exception
    assert "Stable area, from the largest: st-ppo" in html(app)
    assert 'href="region?experiment=searched"' in html(app)
    assert len(figures(app)) == 1
    assert "customdata" in figures(app)[0]
    assert "st-ppo · staleness 8 · lr 0.4" not in figures(app)[0]
    every = open_screen("overview", searched, show="runs")
    assert not every.exception
    assert drawings(every)[0].count("data-key=") == 12
    assert every.query_params["show"] in ("runs", ["runs"])
    assert "show" not in open_screen("overview", grid).session_state


@pytest.mark.parametrize("screen", ["compare", "turns", "collapse"])
def test_screens_of_single_points_lead_to_the_region(
    screen: str, searched: Path, grid: Path, open_screen: Open
) -> None:
    app = open_screen(screen, searched)
    assert not app.exception
    assert 'href="region?experiment=searched"' in html(app)
    assert {arm.partition(" ")[0] for arm in app.multiselect(key="arm").value} == {"ppo", "st-ppo"}
    assert "See all in Region" not in html(open_screen(screen, grid))
