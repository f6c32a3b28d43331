from __future__ import annotations

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.band import bands
from workbench.analysis.statistics import interquartile_mean


def seeds(*values: float, arm: str = "ppo", bucket: int = 0) -> pd.DataFrame:
    mean = list(values)
    return pd.DataFrame({"arm": arm, "bucket": bucket, "mean": mean, "low": mean, "high": mean})


def test_the_middle_is_the_interquartile_mean_of_the_seeds() -> None:
    row = bands(seeds(0.0, 1.0, 2.0, 9.0, 30.0)).iloc[0]
    assert row["middle"] == pytest.approx(interquartile_mean([0.0, 1.0, 2.0, 9.0, 30.0]))
    assert (row["n"], row["low"], row["high"]) == (5, 0.0, 30.0)


def test_the_interval_of_three_seeds_is_that_of_all_27_resamples() -> None:
    values = [0.0, 1.0, 5.0]
    drawn = sorted(float(interquartile_mean(pick) or 0.0) for pick in product(values, repeat=3))
    row = bands(seeds(*values)).iloc[0]
    # The smallest value with at least 2.5 % (97.5 %) of the 27 resamples at or below it: the 1st and the 27th.
    assert (row["lower"], row["upper"]) == (drawn[0], drawn[26])


def test_one_seed_has_no_interval() -> None:
    row = bands(seeds(0.4)).iloc[0]
    assert row["middle"] == 0.4
    assert math.isnan(row["lower"])
    assert math.isnan(row["upper"])


def test_a_seed_that_ended_early_leaves_the_later_points_to_the_others() -> None:
    whole, short = seeds(1.0, 3.0), seeds(5.0, bucket=1)
    found = bands(pd.concat([whole, short], ignore_index=True))
    assert list(found["n"]) == [2, 1]
    assert list(found["middle"]) == [2.0, 5.0]


def test_arms_keep_their_order_and_do_not_mix() -> None:
    found = bands(pd.concat([seeds(1.0, arm="st-ppo"), seeds(9.0, arm="ppo")], ignore_index=True))
    assert list(zip(found["arm"], found["middle"], strict=True)) == [("st-ppo", 1.0), ("ppo", 9.0)]


def test_nothing_measured_is_an_empty_table() -> None:
    assert bands(seeds(math.nan)).empty


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
def test_the_interval_lies_inside_the_extremes_and_around_the_middle(values: list[float]) -> None:
    row = bands(seeds(*values)).iloc[0]
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert row["low"] - slack <= row["lower"] <= row["middle"] + slack
    assert row["middle"] - slack <= row["upper"] <= row["high"] + slack


def test_many_seeds_give_nearly_the_interval_of_the_normal_approximation() -> None:
    values = np.random.default_rng(1).normal(0, 1, 400)
    row = bands(seeds(*values)).iloc[0]
    # The interquartile mean of a normal sample has a standard error of about 1.08 / sqrt(n).
    assert (row["upper"] - row["lower"]) == pytest.approx(2 * 1.96 * 1.08 / 20, rel=0.2)
