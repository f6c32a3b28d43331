"""An experiment of kind region: its screen, its place on other screens, and its figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE, Open, drawings, figures, html
from tests.app.hostile_figures import assert_literal, checked
from workbench.app.figures.region import region
from workbench.app.theme import DARK, LIGHT, Palette, contrast, mixed, styles


def test_region_shows_the_answer_the_map_of_each_arm_and_the_boundaries(searched: Path, open_screen: Open) -> None:
    app = open_screen("region", searched)
    assert not app.exception
    shown = html(app)
    assert "Stable area, from the largest: st-ppo" in shown
    assert "Boundary: the learn.policy.lr at which half of the runs collapse, by learn.staleness." in shown
    words = [t["text"] for t in json.loads(figures(app)[0])["data"] if t.get("mode") == "text"]
    assert words == [["0/1", "1/1", "1/1"] * 2, ["0/1"] * 6]


def test_overview_of_a_region_leads_with_its_map_and_lists_every_run_on_demand(
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
def test_the_screens_of_single_points_lead_to_the_whole_region(
    screen: str, searched: Path, grid: Path, open_screen: Open
) -> None:
    app = open_screen(screen, searched)
    assert not app.exception
    assert 'href="region?experiment=searched"' in html(app)
    assert {arm.partition(" ")[0] for arm in app.multiselect(key="arm").value} == {"ppo", "st-ppo"}
    assert "See all in Region" not in html(open_screen(screen, grid))


LATTICE = (0.1, 0.2, 0.4)
LONG = [2.0**n for n in range(11)]


def draw(arm: str = "ppo", measure: str = "collapsed", along: str = "learn.policy.lr") -> Any:
    points = pd.DataFrame(
        [(0.0, 0.2, 5, 1, 0.7), (0.0, 0.4, 5, 4, 0.2), (16.0, 0.1, 5, 3, math.nan)],
        columns=["y", "x", "runs", "collapsed", "final"],
    )
    columns = pd.DataFrame(
        [(0.0, 0.3, 0.25, 0.35, ""), (16.0, 0.1, None, None, "below")],
        columns=["y", "boundary", "boundary_low", "boundary_high", "beyond"],
    )
    looks, points, columns = styles([(arm, "ppo")], LIGHT), points.assign(series=arm), columns.assign(series=arm)
    return checked(region(points, columns, LATTICE, looks, LIGHT, along, "learn.staleness", measure))


def test_a_cell_is_the_share_of_collapsed_runs_and_what_was_not_run_is_empty() -> None:
    _, cells, words, _ = draw().data
    assert [list(row) for row in cells.z] == [[None, 0.2, 0.8], [0.6, None, None]]
    assert [(round(2**x, 3), round(y), word) for x, y, word in zip(words.x, words.y, words.text, strict=True)] == [
        (0.2, 0, "1/5"), (0.4, 0, "4/5"), (0.1, 1, "3/5"),
    ]  # fmt: skip
    assert (draw().layout.coloraxis.cmin, draw().layout.coloraxis.cmax) == (0, 1)


def test_final_success_is_drawn_where_it_was_measured() -> None:
    _, cells, words, _ = draw(measure="final").data
    assert list(words.text) == [".70", ".20"]
    assert [list(row) for row in cells.z] == [[None, 0.7, 0.2], [None, None, None]]
    assert "mean final success not measured" in cells.customdata[1][0]


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("measure", ["collapsed", "final"])
def test_the_number_of_a_cell_can_be_read_on_its_colour(palette: Palette, measure: str) -> None:
    every = pd.DataFrame(
        [{"series": "ppo", "y": 0.0, "x": x, "runs": 10, "collapsed": n, "final": n / 10} for n, x in enumerate(LONG)]
    )
    none = pd.DataFrame(columns=["series", "y"])
    figure = region(every, none, LONG, styles([("ppo", "ppo")], palette), palette, "a", "b", measure)
    colours = palette.sequential[1:]
    for n, ink in enumerate(figure.data[2].textfont.color):
        at = n / 10 * (len(colours) - 1)
        ground = mixed(colours[min(int(at), 3)], colours[min(int(at), 3) + 1], at - min(int(at), 3))
        assert contrast(ink, ground) > 3.5


def test_a_dot_is_the_boundary_with_its_interval_and_a_triangle_beyond_the_range() -> None:
    edge = draw().data[-1]
    assert list(edge.x) == pytest.approx([math.log2(0.3), math.log2(0.1)])
    assert [round(y) for y in edge.y] == [0, 1]
    assert list(edge.marker.symbol) == ["circle", "triangle-left"]
    assert list(edge.error_x.array) == pytest.approx([math.log2(0.35 / 0.3), 0])
    assert list(edge.error_x.arrayminus) == pytest.approx([math.log2(0.3 / 0.25), 0])


def test_axes_carry_the_conditions_and_the_searched_values() -> None:
    layout = draw().layout
    assert (list(layout.yaxis.ticktext), list(layout.xaxis.ticktext)) == (["0", "16"], ["0.1", "0.4"])
    assert layout.xaxis.title.text == "learn.policy.lr (log scale)"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    assert_literal(draw(arm=text, along=text))
