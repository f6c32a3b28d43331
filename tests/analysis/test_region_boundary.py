"""Boundary and area where the right answer is known."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.region.bootstrap import Draws, areas, edges, interval, positions
from workbench.analysis.region.boundary import Boundary, Counts, area, boundary, heights


def counts(*pairs: tuple[float, float, float]) -> dict[float, Counts]:
    return {x: Counts(k, n) for x, k, n in pairs}


@pytest.mark.parametrize(
    ("points", "at"),
    [
        (counts((0, 0, 5), (1, 5, 5)), 0.5),
        (counts((0, 0, 5), (1, 4, 5)), 0.625),  # 1/2 on the line from 0 to .8
        (counts((0, 1, 5), (1, 4, 5)), 0.5),
        (counts((0, 0, 5), (1, 1, 2), (2, 5, 5)), 1.0),  # the middle of a stretch at 1/2
        (counts((0, 0, 5), (1, 1, 2), (2, 1, 2), (3, 2, 2)), 1.5),
        (counts((0, 0, 5), (1, 2, 2), (2, 0, 5), (3, 5, 5)), 2.3),  # (1, 2) pool to 2/7
        (counts((0, 0, 5), (1, 0, 0), (2, 5, 5)), 1.0),  # a point without a run is no point
    ],
)
def test_the_boundary_is_where_the_isotonic_share_crosses_a_half(points: dict[float, Counts], at: float) -> None:
    found = boundary(points)
    assert found is not None
    assert (found.at, found.beyond) == (pytest.approx(at), "")


def test_a_boundary_outside_what_was_tried_says_so() -> None:
    assert boundary(counts((0, 0, 5), (1, 2, 5))) == Boundary(1, "above", low=1)
    assert boundary(counts((0, 3, 5), (1, 5, 5))) == Boundary(0, "below", high=0)
    assert boundary(counts((0, 1, 2), (1, 2, 2))) == Boundary(0, "below", high=0)
    assert boundary({}) is None
    assert boundary(counts((0, 0, 0))) is None


@given(st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1))
def test_the_boundary_lies_between_the_tried_values_beside_it(drawn) -> None:
    found = boundary({float(x): Counts(min(k, n), n) for x, (k, n) in drawn.items()})
    assert found is not None
    assert min(drawn) <= found.at <= max(drawn)
    if not found.beyond:
        assert found.low is not None
        assert found.high is not None
        assert found.low < found.high
        assert {found.low, found.high} <= set(map(float, drawn))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=2, max_size=6), st.integers(0, 5))
def test_more_collapses_never_move_the_boundary_up(drawn, where) -> None:
    points = {float(i): Counts(min(k, n), n) for i, (k, n) in enumerate(drawn)}
    x = float(where % len(drawn))
    worse = {**points, x: Counts(points[x].judged, points[x].judged)}
    a, b = boundary(points), boundary(worse)
    assert a is not None
    assert b is not None
    assert b.at <= a.at + 1e-9


def test_conditions_with_a_zero_are_shifted_by_one() -> None:
    assert heights([0, 1, 3, 15]) == [0, 1, 2, 4]
    assert heights([2, 8]) == [1, 3]


def test_the_area_is_that_of_the_trapezoids_and_says_where_it_is_only_a_bound() -> None:
    flat = area({0: Boundary(3), 3: Boundary(3)}, low=1, high=5)
    assert flat is not None
    assert (flat.value, flat.share) == (2 * 2, 0.5)  # two doublings of 1 + y, two of x, of 2 x 4
    falling = area({0: Boundary(5, "above"), 3: Boundary(3), 15: Boundary(1, "below")}, low=1, high=5)
    assert falling is not None
    assert falling.value == 2 * (4 + 2) / 2 + 2 * (2 + 0) / 2
    assert (falling.at_least, falling.at_most) == (True, True)
    assert area({0: Boundary(3)}, 1, 5) is None


def runs(collapsed: dict[tuple[float, float], list[bool]]) -> pd.DataFrame:
    """(y, x) -> whether the run of seed 0, 1, ... collapsed."""
    return pd.DataFrame(
        [
            {"y": y, "x": x, "seed": s, "collapsed": fell}
            for (y, x), all_ in collapsed.items()
            for s, fell in enumerate(all_)
        ]
    )


AGREED = runs({(y, x): [x > 2] * 5 for y in (0.0, 3.0) for x in (1.0, 2.0, 4.0, 8.0)})


def test_seeds_that_agree_leave_the_gap_between_two_values_open() -> None:
    draws = Draws.of(range(5))
    placed = positions(edges(AGREED, draws), draws, "a")
    assert interval(placed[0.0], draws) == pytest.approx((1 + 0.025, 2 - 0.025), abs=0.02)
    drawn = areas(placed, 1.0, 8.0)
    low, high = interval(drawn, draws) or (math.nan, math.nan)
    assert 2 * 1 < low < 2 * 1.5 < high < 2 * 2, "the gaps of two columns are not open to the same side at once"


def test_a_seed_that_differs_widens_the_interval() -> None:
    mixed = runs({(0.0, x): [x > (1 if s == 0 else 4) for s in range(5)] for x in (1.0, 2.0, 4.0, 8.0)})
    draws = Draws.of(range(5))
    sure = interval(positions(edges(AGREED[AGREED["y"] == 0], draws), draws, "a")[0.0], draws)
    unsure = interval(positions(edges(mixed, draws), draws, "a")[0.0], draws)
    assert sure is not None
    assert unsure is not None
    assert unsure[1] - unsure[0] > sure[1] - sure[0]


def test_the_draws_are_the_same_every_time_and_one_seed_has_no_interval() -> None:
    draws = Draws.of(range(5))
    a, b = (positions(edges(AGREED, d), d, "a") for d in (draws, Draws.of(range(5))))
    assert all(np.array_equal(a[y], b[y]) for y in a)
    assert not np.array_equal(a[0.0], positions(edges(AGREED, draws), draws, "b")[0.0])
    alone = Draws.of([3])
    assert interval(np.array([1.0] * len(alone.way)), alone) is None
    assert interval(None, draws) is None
