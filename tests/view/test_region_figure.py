from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from tests.view.conftest import HOSTILE
from tests.view.hostile_figures import assert_literal
from workbench.view.figures.region import BELOW, region
from workbench.view.theme import LIGHT, styles

LATTICE = (0.1, 0.2, 0.4)


def points(arm: str = "ppo") -> pd.DataFrame:
    rows = [(0.0, 0.2, 5, 1, 0.7), (0.0, 0.4, 5, 4, 0.2), (16.0, 0.1, 5, 3, math.nan)]
    names = ("y", "x", "runs", "collapsed", "final")
    return pd.DataFrame([{"series": arm, "slice": "", **dict(zip(names, row, strict=True))} for row in rows])


def columns(arm: str = "ppo") -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"series": arm, "slice": "", "y": 0.0, "boundary": 0.3, "boundary_low": 0.25, "boundary_high": 0.35,
             "beyond": ""},
            {"series": arm, "slice": "", "y": 16.0, "boundary": 0.1, "boundary_low": None, "boundary_high": None,
             "beyond": "below"},
        ]
    )  # fmt: skip


def draw(arm: str = "ppo", measure: str = "collapsed", along: str = "learn.policy.lr") -> Any:
    looks = styles([(arm, "ppo")], LIGHT)
    return region(points(arm), columns(arm), LATTICE, looks, LIGHT, along, "learn.staleness", measure)


def test_a_cell_is_the_share_of_collapsed_runs_and_what_was_not_run_is_empty() -> None:
    cells = draw().data[0]
    assert [list(row) for row in cells.z] == [[None, 0.2, 0.8], [0.6, None, None]]
    assert [list(row) for row in cells.text] == [["", "1/5", "4/5"], ["3/5", "", ""]]
    assert (draw().layout.coloraxis.cmin, draw().layout.coloraxis.cmax) == (0, 1)


def test_final_success_is_drawn_where_it_was_measured() -> None:
    cells = draw(measure="final").data[0]
    assert [list(row) for row in cells.z] == [[None, 0.7, 0.2], [None, None, None]]
    assert "mean final success not measured" in cells.customdata[1][0]


def test_the_line_is_the_boundary_with_its_interval_and_a_triangle_beyond_the_range() -> None:
    line = draw().data[1]
    assert list(line.x) == pytest.approx([math.log2(0.3), math.log2(0.1)])
    assert list(line.y) == [0 - BELOW, 1 - BELOW]
    assert list(line.marker.symbol) == ["circle", "triangle-left"]
    assert list(line.error_x.array) == pytest.approx([math.log2(0.35 / 0.3), 0])
    assert list(line.error_x.arrayminus) == pytest.approx([math.log2(0.3 / 0.25), 0])


def test_axes_carry_the_conditions_and_the_searched_values() -> None:
    figure = draw()
    assert list(figure.layout.yaxis.ticktext) == ["0", "16"]
    assert list(figure.layout.xaxis.ticktext) == ["0.1", "0.4"]
    assert figure.layout.xaxis.title.text == "learn.policy.lr (log scale)"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    assert_literal(draw(arm=text, along=text))
