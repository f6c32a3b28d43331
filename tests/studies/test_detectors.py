"""Detectors: what they may know, what they do not depend on, and what a missing value means to them."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from studies.early_warning.detectors import BASELINE, DETECTORS, SIGNALS, WORST, Side, score
from workbench.analysis.results import CURVES as KEPT

CURVES = arrays(float, st.integers(1, 40), elements=st.floats(-50, 50).map(lambda x: round(x, 3)))
SHARES = arrays(float, st.integers(1, 40), elements=st.floats(0, 1).map(lambda x: round(x, 3)))
SIDES = st.sampled_from(("above", "below"))
AFFINE, SCALED = ("baseline", "cusum", "departure"), ("start", "peak", "slump")


@pytest.mark.parametrize("name", DETECTORS)
@given(CURVES, SIDES, st.data())
@settings(max_examples=40)
def test_a_score_depends_on_no_later_step(name: str, curve: np.ndarray, side: Side, data: Any) -> None:
    cut = data.draw(st.integers(0, len(curve)))
    known = np.array(data.draw(st.lists(st.booleans(), min_size=len(curve), max_size=len(curve))), bool)
    other = curve.copy()
    other[cut:] = data.draw(arrays(float, len(curve) - cut, elements=st.sampled_from((0.0, 1e9, np.nan, -np.inf))))
    changed = known.copy()
    changed[cut:] = ~known[cut:]
    whole, short = score(name, curve, side, known), score(name, curve[:cut], side, known[:cut])
    assert np.array_equal(whole[:cut], short, equal_nan=True)
    assert np.array_equal(whole[:cut], score(name, other, side, changed)[:cut], equal_nan=True)


@pytest.mark.parametrize("name", [*AFFINE, *SCALED])
@given(st.data(), SIDES, st.sampled_from((0.25, 2.0, 64.0)), st.sampled_from((-8.0, 0.0, 16.0)))
@settings(max_examples=40)
def test_no_score_depends_on_the_unit_and_some_not_on_the_origin(name, data, side, a, b):
    curve = data.draw(CURVES if name in AFFINE else SHARES)
    same, moved = score(name, curve, side), score(name, a * curve + (b if name in AFFINE else 0), side)
    big = np.abs(same) > 1e4  # a spread of rounding alone
    assert np.allclose(same[~big], moved[~big], rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", DETECTORS)
@given(CURVES, SIDES)
@settings(max_examples=20)
def test_what_was_not_measured_has_no_score_and_changes_none(name: str, curve: np.ndarray, side: Side) -> None:
    never = score(name, curve, side, np.zeros(len(curve), bool))
    assert np.isnan(never).all()
    gaps = np.repeat(curve, 2)
    known = np.tile([True, False], len(curve))
    gaps[~known] = np.nan
    found = score(name, gaps, side, known)
    assert np.isnan(found[~known]).all()
    assert np.array_equal(found[known], score(name, curve, side), equal_nan=True)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_measured_value_that_is_no_number_is_the_worst_there_is(name: str) -> None:
    for broken, side in product((np.nan, np.inf, -np.inf), ("above", "below")):
        assert score(name, np.array([1.0] * 7 + [broken] + [1.0] * 4), side)[7] == WORST


def test_scores_by_hand() -> None:
    curve = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 4.0])  # median 1, median step 1
    assert score("baseline", curve, "above")[BASELINE:].tolist() == [0.0, 3.0]
    assert score("cusum", curve, "above")[BASELINE:].tolist() == [0.0, 2.0]
    assert score("start", curve, "above")[1:].tolist() == curve[1:].tolist()
    assert score("peak", np.array([0.2, 0.8, 0.4]), "below").tolist() == [0.0, 0.0, 0.5]
    assert score("slump", np.array([0.2, 0.8, 0.4, 0.0, 0.0]), "below").tolist() == pytest.approx([0, 0, 0.2, 0.2, 1.0])
    assert score("level", curve, "below").tolist() == (-curve).tolist()


def test_every_signal_is_a_curve_that_is_kept_with_results() -> None:
    assert set(SIGNALS) <= set(KEPT)
