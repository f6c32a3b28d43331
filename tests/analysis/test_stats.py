"""Statistics where the right answer is known: published tables, scipy's own, and simulation."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from scipy.stats import ttest_rel

from workbench.analysis import stats
from workbench.analysis.stats import (
    bands,
    clopper_pearson,
    collapses_expected,
    collapses_needed,
    detectable,
    fisher_exact,
    holm,
    interquartile_mean,
    interquartile_mean_interval,
    paired_mean,
    paired_proportions,
    power_of,
    power_of_fisher,
    power_of_t,
    seeds_for_fisher,
    seeds_needed,
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


counts = st.integers(0, 12)


def test_the_interval_of_a_paired_difference_is_the_published_one() -> None:
    found = paired_proportions(36, 12, 2, 0)  # Newcombe 1998, Statistics in Medicine 17:2635, method 10
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == (pytest.approx(0.0569, abs=5e-5), pytest.approx(0.3404, abs=5e-5))
    same = paired_proportions(0, 0, 0, 5)
    assert (same.value, same.low, same.high) == (0, pytest.approx(-0.4345, abs=5e-5), pytest.approx(0.4345, abs=5e-5))


@given(counts, counts, counts, counts)
def test_a_paired_difference_mirrors_when_the_arms_are_exchanged(e: int, f: int, g: int, h: int) -> None:
    if e + f + g + h == 0:
        with pytest.raises(ValueError, match="no counts of pairs"):
            paired_proportions(e, f, g, h)
        return
    one, other = paired_proportions(e, f, g, h), paired_proportions(e, g, f, h)
    assert one.low <= one.value + 1e-12
    assert one.value <= one.high + 1e-12
    assert (one.value, one.low, one.high) == (
        pytest.approx(-other.value), pytest.approx(-other.high), pytest.approx(-other.low),
    )  # fmt: skip


def test_the_paired_mean_is_the_paired_t_test() -> None:
    a, b = np.array([1.0, 2.5, 3.1, 4.2, 5.9]), np.array([0.4, 2.9, 2.0, 3.0, 5.1])
    found, theirs = paired_mean((a - b).tolist()), ttest_rel(a, b)
    assert found.p == pytest.approx(theirs.pvalue)
    interval = theirs.confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_differences_that_do_not_vary_have_no_p_value() -> None:
    assert paired_mean([0.5, 0.5, 0.5]).p is None
    with pytest.raises(ValueError, match="1 differences have no interval"):
        paired_mean([0.5])


def test_the_power_of_fisher_counts_every_table() -> None:
    n, a, b, alpha = 6, 0.8, 0.2, 0.05
    total = 0.0
    for x in range(n + 1):
        for y in range(n + 1):
            if scipy_stats.fisher_exact([[x, n - x], [y, n - y]]).pvalue <= alpha:
                total += math.comb(n, x) * a**x * (1 - a) ** (n - x) * math.comb(n, y) * b**y * (1 - b) ** (n - y)
    assert power_of_fisher(n, a, b, alpha) == pytest.approx(total)


def test_the_fewest_seeds_are_enough_and_one_fewer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    n = seeds_for_fisher(0.75, 0.25, 0.05)
    assert n is not None
    assert power_of_fisher(n, 0.75, 0.25, 0.05) >= 0.8 > power_of_fisher(n - 1, 0.75, 0.25, 0.05)
    monkeypatch.setattr(stats, "MOST", 8)
    assert seeds_for_fisher(0.5, 0.45, 0.001) is None


def test_the_power_of_the_t_test_is_what_simulation_finds() -> None:
    stream = np.random.default_rng(0)
    n, deviation, effect = 6, 0.3, 0.4
    drawn = stream.normal(effect, deviation, (20_000, n))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(n))
    assert power_of_t(n, deviation, effect, 0.05) == pytest.approx(float((t > 2.5706).mean()), abs=0.01)


def test_schoenfelds_number_of_collapses_by_hand() -> None:
    # (1.959964 + 0.841621)^2 / (1/4 log(0.5)^2) = 7.848880 / 0.120113
    assert collapses_needed(0.5) == pytest.approx(65.3455, abs=1e-3)
    assert collapses_needed(0.2) == pytest.approx(12.1205, abs=1e-3)
    assert collapses_needed(5.0) == pytest.approx(collapses_needed(0.2)), (
        "five times as often is a fifth, turned around"
    )


def test_collapses_become_seeds_through_how_many_runs_collapse() -> None:
    # 0.8 of the reference arm, 1 - 0.2^0.2 = 0.275220 of the other: 12.1205 / 1.075220 = 11.27
    assert collapses_expected(0.2, 0.8) == pytest.approx(1.075220, abs=1e-6)
    assert seeds_needed(0.2, 0.8) == 12
    assert seeds_needed(0.2, 0.8, alpha=0.01) == 17  # (2.575829 + 0.841621)^2 / (1/4 log(0.2)^2) = 18.0351


def test_the_promised_power_is_the_one_of_simulated_grids() -> None:
    from scipy.stats import CensoredData, logrank

    stream = np.random.default_rng(0)
    seeds, ratio, incidence = seeds_needed(0.4, 0.9), 0.4, 0.9
    hazard = -math.log(1 - incidence)  # over a run of length 1

    def arm(scale: float) -> CensoredData:
        times = stream.exponential(1 / (hazard * scale), seeds)
        return CensoredData(uncensored=times[times <= 1], right=np.ones(int((times > 1).sum())))

    found = np.mean([logrank(arm(1.0), arm(ratio)).pvalue <= 0.05 for _ in range(600)])
    assert found == pytest.approx(0.8, abs=0.07)  # three standard errors and what Schoenfeld leaves out


@pytest.mark.parametrize("arguments", [(1.0,), (0.0,), (-2.0,), (0.5, 1.0), (0.5, 0.8, 0.0)])
def test_what_is_no_effect_has_no_number_of_collapses(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="no number of collapses"):
        collapses_needed(*arguments)


@given(st.floats(0.05, 0.9), st.floats(0.1, 0.99), st.floats(0.1, 0.95))
def test_the_seeds_that_are_needed_have_the_power_and_one_fewer_has_not(
    ratio: float, incidence: float, power: float
) -> None:
    seeds = seeds_needed(ratio, incidence, power)
    assert power_of(seeds, ratio, incidence) >= power - 1e-9
    if seeds > 1:
        assert power_of(seeds - 1, ratio, incidence) < power + 1e-9


@given(st.integers(1, 60), st.floats(0.1, 0.99), st.floats(0.1, 0.95))
def test_what_is_detectable_is_found_with_just_that_power(seeds: int, incidence: float, power: float) -> None:
    ratio = detectable(seeds, incidence, power)
    assert 0 < ratio < 1
    assert power_of(seeds, ratio, incidence) == pytest.approx(power, abs=1e-6)


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
