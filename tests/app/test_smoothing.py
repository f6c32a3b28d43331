"""Smoothed curves: means at true steps, that stop at what is NaN and skip what was not measured."""

import math
from itertools import chain

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.app.smoothing import Smoothing, smooth

NAN = math.nan


def points(*runs: list[float | None]) -> pd.DataFrame:
    """A row a measured step of each run; None was not measured."""
    parts = [pd.DataFrame({"run": run, "bucket": range(len(v)), "mean": v}) for run, v in enumerate(runs)]
    measured = [value is not None for value in chain.from_iterable(runs)]
    return pd.concat(parts, ignore_index=True)[measured].astype({"mean": float})


def smoothed(values: list[float | None], kind: str = "mean", steps: int = 3, bucket: int = 1) -> list[float]:
    return list(smooth(points(values), Smoothing(kind, steps), bucket)["mean"])


def test_a_running_mean_is_centred_and_shorter_at_the_ends() -> None:
    assert smoothed([0.0, 3.0, 6.0, 9.0]) == [1.5, 3.0, 6.0, 7.5]


def test_a_mean_of_an_even_number_of_steps_looks_back_one_step_more() -> None:
    assert smoothed([0.0, 4.0, 8.0], steps=2) == [0.0, 2.0, 6.0]


@pytest.mark.parametrize("kind", ["mean", "ema"])
def test_no_average_reaches_across_a_value_that_is_no_number(kind: str) -> None:
    found = smoothed([1.0, 1.0, NAN, 5.0, 5.0], kind, steps=5)
    np.testing.assert_allclose(found, [1.0, 1.0, NAN, 5.0, 5.0])


def test_a_step_that_was_not_measured_gets_no_point_and_no_weight() -> None:
    assert smoothed([1.0, None, 3.0], steps=3) == [1.0, 3.0]
    assert smoothed([1.0, None, 3.0], steps=5) == [2.0, 2.0]


def test_an_exponential_average_weighs_each_step_back_by_one_factor() -> None:
    factor = 1 - 2 / 4
    wanted = (8.0 + factor * 4.0 + factor**3 * 2.0) / (1 + factor + factor**3)
    assert smoothed([2.0, None, 4.0, 8.0], "ema", steps=3)[-1] == pytest.approx(wanted)


def test_runs_are_smoothed_one_by_one() -> None:
    found = smooth(points([0.0, 0.0], [9.0, 9.0]), Smoothing("mean", 5), 1)
    assert list(found["mean"]) == [0.0, 0.0, 9.0, 9.0]


@pytest.mark.parametrize("steps", [1, 4])
def test_a_width_below_that_of_a_point_changes_nothing(steps: int) -> None:
    assert smoothed([1.0, 5.0, 2.0], steps=steps, bucket=8) == [1.0, 5.0, 2.0]


@given(
    st.lists(st.one_of(st.none(), st.just(NAN), st.floats(-5, 5)), min_size=1, max_size=30),
    st.integers(1, 40),
    st.sampled_from(["mean", "ema"]),
)
def test_a_smoothed_curve_has_the_points_of_the_measured_one_and_stays_within_it(
    values: list[float | None], steps: int, kind: str
) -> None:
    raw = points(values)
    if raw.empty:
        return
    found = smooth(raw, Smoothing(kind, steps), 1)
    assert list(found["bucket"]) == list(raw["bucket"])
    assert list(found["mean"].isna()) == list(raw["mean"].isna())
    finite = raw["mean"].dropna()
    if len(finite):
        known = found["mean"].dropna()
        assert finite.min() - 1e-9 <= known.min()
        assert known.max() <= finite.max() + 1e-9
