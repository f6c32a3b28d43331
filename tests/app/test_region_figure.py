from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from tests.app.conftest import HOSTILE
from tests.app.hostile_figures import assert_literal
from workbench.app.figures.region import region
from workbench.app.theme import DARK, LIGHT, Palette, contrast, mixed, styles

LATTICE = (0.1, 0.2, 0.4)
LONG = [2.0**n for n in range(11)]


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
        [{"series": "ppo", "slice": "", "y": 0.0, "x": x, "runs": 10, "collapsed": n, "final": n / 10}
         for n, x in enumerate(LONG)]
    )  # fmt: skip
    figure = region(every, columns()[:0], LONG, styles([("ppo", "ppo")], palette), palette, "a", "b", measure)
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
    figure = draw()
    assert list(figure.layout.yaxis.ticktext) == ["0", "16"]
    assert list(figure.layout.xaxis.ticktext) == ["0.1", "0.4"]
    assert figure.layout.xaxis.title.text == "learn.policy.lr (log scale)"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    assert_literal(draw(arm=text, along=text))
