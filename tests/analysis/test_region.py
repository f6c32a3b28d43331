"""The stability region, where the right answer is known: boundary, area, and what the fit makes of seeds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.analysis import region as analysis
from sorl.analysis.region import (
    Boundary,
    Landscape,
    boundary,
    by_column,
    by_series,
)
from sorl.analysis.region_words import answer, edge, headline
from sorl.analysis.runs import KEPT, NOT_DEAD
from sorl.spec import RegionSettings

SETTINGS = RegionSettings(low=1.0, high=8.0, points=4)


@pytest.mark.parametrize(
    ("points", "at"),
    [
        ([(0, 0, 5), (1, 5, 5)], 0.5),
        ([(0, 0, 5), (1, 4, 5)], 0.625),  # 1/2 on the line from 0 to .8
        ([(0, 1, 5), (1, 4, 5)], 0.5),
        ([(0, 0, 5), (1, 1, 2), (2, 5, 5)], 1.0),  # the middle of a stretch at 1/2
        ([(0, 0, 5), (1, 1, 2), (2, 1, 2), (3, 2, 2)], 1.5),
        ([(0, 0, 5), (1, 2, 2), (2, 0, 5), (3, 5, 5)], 2.3),  # (1, 2) pool to 2/7
        ([(0, 0, 5), (1, 0, 0), (2, 5, 5)], 1.0),  # a point without a run is no point
        ([(0, 0, 5), (1, 2, 5)], Boundary(1, "above", low=1)),  # outside what was tried
        ([(0, 3, 5), (1, 5, 5)], Boundary(0, "below", high=0)),
        ([(0, 1, 2), (1, 2, 2)], Boundary(0, "below", high=0)),
        ([], None),
        ([(0, 0, 0)], None),
    ],
)
def test_the_boundary_is_where_the_isotonic_share_crosses_a_half(
    points: list, at: float | Boundary | None
) -> None:
    found = boundary({x: (k, n) for x, k, n in points})
    assert found == at if not isinstance(at, float) else (found.at, found.beyond) == (pytest.approx(at), "")


@given(st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1))
def test_the_boundary_lies_between_the_tried_values_next_to_it_and_more_collapses_never_move_it_up(
    drawn,
) -> None:
    points = {float(x): (min(k, n), n) for x, (k, n) in drawn.items()}
    found = boundary(points)
    for x, (_, n) in points.items():
        assert boundary(points | {x: (n, n)}).at <= found.at + 1e-9  # type: ignore[union-attr]
    assert min(drawn) <= found.at <= max(drawn)
    if not found.beyond:
        assert found.low < found.high  # type: ignore[operator]
        assert {found.low, found.high} <= set(map(float, drawn))


def test_the_area_is_that_of_the_trapezoids_over_the_conditions() -> None:
    assert analysis.heights([0, 1, 3, 15]) == [0, 1, 2, 4]
    assert analysis.heights([2, 8]) == [1, 3]
    flat = {0.0: np.array([2.0]), 3.0: np.array([2.0])}
    assert analysis.areas(flat, SETTINGS) == pytest.approx([2 * 2])  # two doublings of 1 + y, two of x
    # cut off at what was searched
    falling = {0.0: np.array([9.0]), 3.0: np.array([2.0]), 15.0: np.array([-1.0])}
    assert analysis.areas(falling, SETTINGS) == pytest.approx([2 * (3 + 2) / 2 + 2 * (2 + 0) / 2])
    assert analysis.areas({0.0: np.array([2.0])}, SETTINGS) is None


def region(**most: list[float]) -> Landscape:
    """Arms at staleness 0 and 3 whose seed i collapses above the i-th value given; 4 values, a factor of 2
    apart.
    """
    rows = [
        {
            "run_id": "r",
            "series": arm,
            "algorithm": "ppo",
            "slice": "",
            "y": y,
            "x": x,
            "seed": seed,
            "final": 0.5,
            "outcome": "collapsed" if x > limit else "healthy",
            "collapsed": x > limit,
            "seconds": 60.0,
        }
        for arm, limits in most.items()
        for y in (0.0, 3.0)
        for x in (1.0, 2.0, 4.0, 8.0)
        for seed, limit in enumerate(limits)
    ]
    return Landscape(pd.DataFrame(rows), SETTINGS, "learn.staleness", 5)


def test_seeds_that_agree_leave_the_gap_between_two_values_open_and_seeds_that_differ_widen_it() -> None:
    agreed = by_column(region(ppo=[2.0] * 5)).iloc[0]
    assert agreed.equals(by_column(region(ppo=[2.0] * 5)).iloc[0]), "the fit is the same every time"
    assert pd.isna(by_series(region(ppo=[2.0] * 2)).iloc[0]["area_low"]), "two seeds have no interval"
    assert 1.7 < agreed["boundary_low"] < 2.4 < agreed["boundary"] < 3.4 < agreed["boundary_high"] < 4.8
    mixed = by_column(region(ppo=[1.0, 1.0, 2.0, 4.0, 4.0])).iloc[0]
    assert (
        mixed["boundary_high"] / mixed["boundary_low"]
        > 1.5 * agreed["boundary_high"] / agreed["boundary_low"]
    )


def test_what_a_seed_does_in_all_arms_cancels_where_arms_are_compared() -> None:
    found = by_series(region(ppo=[1.0, 1.0, 2.0, 4.0, 4.0], grpo=[1.0, 1.0, 2.0, 4.0, 4.0])).iloc[1]
    assert found["difference"] == pytest.approx(0, abs=0.15)
    assert found["difference_high"] - found["difference_low"] < 0.9 * (found["area_high"] - found["area_low"])


def test_beyond_what_was_tried_the_interval_is_open_to_that_side() -> None:
    above, below = (by_column(region(ppo=[most] * 5)).iloc[0] for most in (8.0, 0.5))
    assert (above["beyond"], above["boundary"]) == ("above", 8.0)
    assert 5 < above["boundary_low"] <= 8
    assert edge(above.to_dict()).startswith("> 8 [")
    assert pd.isna(above["boundary_high"])
    assert edge(below.to_dict()).startswith("< 1 [-, 1")


def test_a_run_that_never_learned_is_not_dead_and_kept_nothing() -> None:
    found = region(ppo=[2.0] * 5)
    idle = found.runs.assign(outcome=found.runs["outcome"].mask(found.runs["x"] == 2.0, "no_learning"))
    by = {
        survival: by_column(Landscape(idle, SETTINGS, "learn.staleness", 5).read_as(survival)).iloc[0]
        for survival in (NOT_DEAD, KEPT)
    }
    assert 2 < by[NOT_DEAD]["boundary"] < 4
    assert 1 < by[KEPT]["boundary"] < 2


def test_a_region_of_one_condition_answers_with_its_boundary_where_there_is_no_area_to_rank() -> None:
    found = region(ppo=[2.0] * 5)
    for one in (found, found.read_as(KEPT)):
        alone = replace(one, runs=one.runs[one.runs["y"] == 0.0])
        columns = by_column(alone)
        assert answer(alone, by_series(alone), columns)[0] == headline(alone, columns)
        assert headline(alone, columns).startswith("At staleness 0, half of the runs ")


def test_the_headline_names_the_ends_at_the_highest_condition_and_what_lies_outside_as_the_table_has_it() -> (
    None
):
    found = region(ppo=[1.0, 2.0, 2.0, 2.0, 4.0], grpo=[4.0] * 5, st=[2.0] * 5, high=[8.0] * 5, low=[0.5] * 5)
    columns = by_column(found)
    rows = columns[columns["y"] == 3].set_index("series")
    lowest, highest = (
        edge(rows.loc[arm].to_dict()) for arm in (rows.loc[["ppo", "st"], "boundary"].idxmin(), "grpo")
    )
    factor = rows.loc["grpo", "boundary"] / rows.loc[["ppo", "st"], "boundary"].min()
    said = headline(found, columns)
    assert said.startswith(
        f"At staleness 3, half of the runs collapse at policy learning rate {lowest} with "
    )
    assert f", at {highest} with grpo, {factor:.1f} x higher" in said
    assert said.endswith(
        "; below the lowest value tried with low (1); above the highest value tried with high (8)."
    )
    assert "but their intervals overlap" in headline(found, columns.assign(boundary_high=9.0))
    assert headline(found, columns[columns["series"] == "low"]).endswith(
        "collapse below the lowest value tried with low (1)."
    )
    kept = headline(found.read_as(KEPT), columns)
    assert "half of the runs do not learn and keep it at" in kept
    two = by_column(region(ppo=[1.0, 4.0]))
    assert pd.isna(two["boundary_low"]).all(), "no interval from two seeds"
