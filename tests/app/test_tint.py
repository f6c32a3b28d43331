from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.app.theme import DARK, LIGHT, Palette
from workbench.app.tint import MARKS, contrast, gradient, position, tint


def test_the_scale_is_odd_rising_and_ends_at_ten_nats() -> None:
    places = [position(mark) for mark in MARKS]
    assert places == sorted(places)
    assert (places[0], places[len(MARKS) // 2], places[-1]) == (-1.0, 0.0, 1.0)
    assert position(1e6) == 1.0
    assert position(0.2) == pytest.approx(math.asinh(2) / math.asinh(100))


@given(st.floats(-20, 20))
def test_a_token_and_its_opposite_stand_opposite(log_ratio: float) -> None:
    assert position(-log_ratio) == -position(log_ratio)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_every_tint(palette: Palette) -> None:
    for step in range(-1000, 1001):
        if (pair := tint(step / 100, palette)) is not None:
            assert contrast(*pair) >= 4.5, (step / 100, pair)


def test_what_did_not_move_was_not_measured_or_is_no_number_has_no_tint() -> None:
    assert [tint(value, LIGHT) for value in (None, math.nan, 0.0, 0.001)] == [None] * 4
    assert tint(math.inf, LIGHT) == tint(10.0, LIGHT)


def test_the_legend_has_the_colours_of_the_tokens() -> None:
    colours = gradient(LIGHT)
    assert (colours[0], colours[-1]) == (LIGHT.diverging[0], LIGHT.diverging[-1])
    assert tint(-10.0, LIGHT) is not None
    assert tint(-10.0, LIGHT)[0] == colours[0]
