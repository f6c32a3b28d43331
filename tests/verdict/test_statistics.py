from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.verdict.statistics import (
    clopper_pearson,
    fisher_exact,
    interquartile_mean,
    median_onset,
    median_survival,
)


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [
        (0, 3, 0.0, 1 - 0.025 ** (1 / 3)),  # closed forms: no success, only successes
        (3, 3, 0.025 ** (1 / 3), 1.0),
        (1, 2, 1 - math.sqrt(0.975), math.sqrt(0.975)),  # P(X >= 1) = 1 - (1 - p)^2 = 0.025
        (5, 10, 0.187086, 0.812914),  # Clopper and Pearson's chart
    ],
)
def test_clopper_pearson_agrees_with_hand_computed_bounds(count: int, n: int, low: float, high: float) -> None:
    assert clopper_pearson(count, n) == pytest.approx((low, high), abs=1e-6)


@given(st.integers(1, 60), st.data())
def test_clopper_pearson_bounds_are_where_the_tails_hold_half_of_alpha(n: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, n))
    low, high = clopper_pearson(count, n)
    assert 0 <= low <= count / n <= high <= 1
    if count > 0:
        assert sum(math.comb(n, i) * low**i * (1 - low) ** (n - i) for i in range(count, n + 1)) == pytest.approx(0.025)
    if count < n:
        assert sum(math.comb(n, i) * high**i * (1 - high) ** (n - i) for i in range(count + 1)) == pytest.approx(0.025)


@pytest.mark.parametrize(("count", "n"), [(-1, 3), (4, 3), (0, 0)])
def test_clopper_pearson_refuses_what_is_no_proportion(count: int, n: int) -> None:
    with pytest.raises(ValueError, match="is no proportion"):
        clopper_pearson(count, n)


def test_fisher_exact_counts_the_tables_at_least_as_extreme() -> None:
    assert fisher_exact(3, 3, 0, 3) == pytest.approx(2 / math.comb(6, 3))  # the two most extreme of twenty tables
    assert fisher_exact(1, 3, 1, 3) == pytest.approx(1.0)
    assert fisher_exact(5, 5, 0, 5) == pytest.approx(fisher_exact(0, 5, 5, 5))
    with pytest.raises(ValueError, match="are no counts"):
        fisher_exact(4, 3, 0, 3)


def test_median_onset_is_over_the_collapsed_runs_only() -> None:
    assert median_onset([40, None, 50, 70]) == 50
    assert median_onset([40, 50]) == 45
    assert median_onset([None, None]) is None


def test_median_survival_counts_the_runs_that_stayed_up() -> None:
    assert median_survival([40, 50, 70], [80, 80, 80]) == 50  # S: 2/3, 1/3
    assert median_survival([40, None, None], [80, 80, 80]) is None  # S never falls below 2/3
    assert median_survival([40, None, 60, None], [80, 50, 80, 80]) == 60  # S: 3/4, then 1 - 1/2 of it
    assert median_survival([], []) is None


def test_interquartile_mean_of_four_is_the_mean_of_the_middle_two() -> None:
    assert interquartile_mean([9.0, 1.0, 2.0, -50.0]) == 1.5


def test_interquartile_mean_weights_the_edges() -> None:
    # n = 3: the middle half is [0.75, 2.25], so weights 0.25, 1, 0.25.
    assert interquartile_mean([0.0, 4.0, 100.0]) == pytest.approx((0.25 * 0 + 4 + 0.25 * 100) / 1.5)
    assert interquartile_mean([7.0]) == 7.0


def test_interquartile_mean_leaves_out_the_unmeasured_and_shows_nan() -> None:
    assert interquartile_mean([None, 3.0]) == 3.0
    assert interquartile_mean([None]) is None
    assert math.isnan(interquartile_mean([1.0, float("nan"), 2.0]) or 0.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.randoms())
def test_interquartile_mean_ignores_order_and_lies_in_the_range(values: list[float], random: object) -> None:
    mixed = list(values)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    result = interquartile_mean(values)
    assert result is not None
    assert result == pytest.approx(interquartile_mean(mixed))
    assert min(values) - 1e-6 <= result <= max(values) + 1e-6
