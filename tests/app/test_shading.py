from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.app.shading import shading
from workbench.app.theme import LIGHT


def of(unit: str, *values: float) -> object:
    return shading(unit, pd.Series(values, dtype=float))


def test_a_ratio_is_centred_at_one_on_a_log_scale() -> None:
    shade = shading("ratio", pd.Series([0.9, 1.0, 1.4]))
    assert (shade.kind, shade.limit) == ("ratio", 1.5)
    places = shade.place(pd.Series([1.0, 1.5, 1 / 1.5]))
    assert places.tolist() == pytest.approx([0.0, shade.ends[1], shade.ends[0]])
    assert shade.colours(LIGHT) == LIGHT.diverging


def test_what_carries_a_sign_is_centred_at_zero() -> None:
    shade = shading("reward", pd.Series([-0.3, 0.1]))
    assert (shade.kind, shade.ends) == ("signed", (-0.5, 0.5))
    assert shade.colours(LIGHT) == LIGHT.diverging


def test_a_fraction_begins_at_zero_and_never_ends_above_one() -> None:
    shade = shading("fraction", pd.Series([0.2, 0.97]))
    assert (shade.kind, shade.ends, shade.colours(LIGHT)) == ("size", (0.0, 1.0), LIGHT.sequential)


def test_a_dead_run_does_not_bleach_the_living() -> None:
    shade = shading("ratio", pd.Series([0.97, 1.02, 0.98, 1.01, 2e-9]))
    assert shade.limit <= 1.5
    assert shade.below
    assert not shade.above
    assert shade.ticks()[1][0].startswith("≤ ")
    assert not shade.ticks()[1][-1].startswith("≥ ")


def test_the_colour_bar_of_a_ratio_says_the_ratio() -> None:
    _, words = shading("ratio", pd.Series([0.5, 2.0])).ticks()
    assert words == ["0.5", "0.71", "1", "1.4", "2"]
    _, words = shading("ratio", pd.Series([0.991, 1.009])).ticks()
    assert words == ["0.99", "0.995", "1", "1.005", "1.01"]


def test_a_ratio_of_nothing_is_placed_where_trainers_clamp() -> None:
    shade = shading("ratio", pd.Series([0.0, 1.0]))
    assert shade.place(pd.Series([0.0]))[0] == pytest.approx(-20)


def test_nothing_measured_still_has_a_scale() -> None:
    for unit in ("ratio", "fraction", "nats"):
        low, high = shading(unit, pd.Series([], dtype=float)).ends
        assert high > low


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30),
    st.sampled_from(["ratio", "nats", "fraction"]),
)
def test_any_values_give_a_scale_with_rising_ticks(values: list[float], unit: str) -> None:
    shade = shading(unit, pd.Series(values, dtype=float))
    places, words = shade.ticks()
    assert all(math.isfinite(place) for place in places)
    assert places == sorted(set(places))
    assert len(words) == len(places)
