from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.analysis.statistics import (
    clopper_pearson,
    fisher_exact,
    holm,
    interquartile_mean,
    interquartile_mean_interval,
    median_onset,
    smallest_p,
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


def test_interquartile_mean_of_four_is_the_mean_of_the_middle_two() -> None:
    assert interquartile_mean([9.0, 1.0, 2.0, -50.0]) == 1.5


def test_interquartile_mean_trims_whole_values_as_rliable_does() -> None:
    assert interquartile_mean([0.0, 4.0, 100.0]) == pytest.approx(104 / 3)  # below four there is nothing to trim
    assert interquartile_mean([-9.0, 1.0, 2.0, 3.0, 99.0]) == 2.0
    assert interquartile_mean([float(v) for v in range(9)] + [1e6]) == pytest.approx((2 + 3 + 4 + 5 + 6 + 7) / 6)
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


def test_the_interval_of_two_values_is_that_of_the_four_samples_that_they_have() -> None:
    # {a, a}, {a, b}, {b, a}, {b, b}: the 2.5 % and 97.5 % points are a and b.
    assert interquartile_mean_interval([[0.2, 0.6]]) == pytest.approx((0.2, 0.6))


def test_strata_are_resampled_one_by_one() -> None:
    apart = interquartile_mean_interval([[0.1, 0.1], [0.9, 0.9]])
    assert apart == pytest.approx((0.5, 0.5)), "seeds of a condition never stand in for those of another"
    low, high = interquartile_mean_interval([[0.1, 0.1, 0.9, 0.9]])
    assert low is not None
    assert high is not None
    assert low < 0.4 < 0.6 < high


def test_one_value_says_nothing_of_its_spread() -> None:
    assert interquartile_mean_interval([[0.5]]) == (None, None)
    assert interquartile_mean_interval([[0.5, 0.6], [0.7]]) == (None, None)
    assert interquartile_mean_interval([[None, 0.6]]) == (None, None)
    assert interquartile_mean_interval([]) == (None, None)
    assert interquartile_mean_interval([[0.5, float("nan")]]) == (None, None)


@settings(max_examples=20)
@example([0.28624317273277283, 0.28624317273277283], Random(0))  # interpolation rounds its ends past each other
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.randoms())
def test_the_interval_is_the_same_each_time_and_for_each_order(values: list[float], random: Random) -> None:
    mixed = list(values)
    random.shuffle(mixed)
    low, high = interquartile_mean_interval([values])
    assert (low, high) == interquartile_mean_interval([mixed])
    assert low is not None
    assert high is not None
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_holm_multiplies_the_smallest_by_all_the_next_by_one_less() -> None:
    # The worked example of Holm's method: 0.01, 0.04, 0.03, 0.005 of four.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.02, None, 0.5]) == [0.04, None, 0.5]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_corrected_p_value_lies_between_its_own_and_bonferronis(p_values: list[float]) -> None:
    corrected = [p for p in holm(list(p_values)) if p is not None]
    assert len(corrected) == len(p_values)
    for own, new in zip(p_values, corrected, strict=True):
        assert own <= new <= min(1.0, len(p_values) * own)
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [corrected[i] for i in order] == sorted(corrected)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 2), (3, 3), (4, 4), (2, 5), (3, 4)])
def test_the_smallest_p_is_that_of_all_against_none(a: int, b: int) -> None:
    assert smallest_p(a, b) == pytest.approx(fisher_exact(a, a, 0, b))
