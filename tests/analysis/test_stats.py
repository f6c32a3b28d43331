"""Statistics where the right answer is known: published tables, scipy's own, and simulation."""

import math
from itertools import product
from random import Random

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from sorl.analysis import stats
from sorl.analysis.stats import Estimate


@given(st.integers(1, 60), st.data())
def test_clopper_pearson_bounds_are_where_the_tails_hold_half_of_alpha(n: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, n))
    low, high = stats.clopper_pearson(count, n)
    assert 0 <= low <= count / n <= high <= 1
    if count > 0:
        assert scipy_stats.binom.sf(count - 1, n, low) == pytest.approx(0.025)
    if count < n:
        assert scipy_stats.binom.cdf(count, n, high) == pytest.approx(0.025)


def test_fisher_exact_counts_the_tables_at_least_as_extreme() -> None:
    # the two most extreme of twenty tables
    assert stats.fisher_exact(3, 3, 0, 3) == pytest.approx(2 / math.comb(6, 3))
    assert stats.fisher_exact(1, 3, 1, 3) == pytest.approx(1.0)
    assert stats.fisher_exact(5, 5, 0, 5) == pytest.approx(stats.fisher_exact(0, 5, 5, 5))
    for a, b in ((1, 1), (2, 2), (3, 3), (4, 4), (2, 5), (3, 4)):
        assert stats.smallest_p(a, b) == pytest.approx(stats.fisher_exact(a, a, 0, b))
    for function, counts in (
        (stats.clopper_pearson, (4, 3)),
        (stats.clopper_pearson, (-1, 3)),
        (stats.clopper_pearson, (0, 0)),
        (stats.fisher_exact, (4, 3, 0, 3)),
    ):
        with pytest.raises(ValueError, match="must"):
            function(*counts)


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([9.0, 1.0, 2.0, -50.0], 1.5),  # the middle two of four
        ([0.0, 4.0, 100.0], 104 / 3),  # below four there is nothing to trim
        ([-9.0, 1.0, 2.0, 3.0, 99.0], 2.0),
        ([*map(float, range(9)), 1e6], (2 + 3 + 4 + 5 + 6 + 7) / 6),  # whole values, as rliable does
        ([7.0], 7.0),
        ([], None),
        ([1.0, math.nan, 2.0], math.nan),
    ],
)
def test_the_interquartile_mean_trims_a_quarter_rounded_down_at_either_end(
    values: list[float], mean: float
) -> None:
    assert stats.interquartile_mean([values]).value == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize(
    ("strata", "low", "high"),
    [
        ([[0.2, 0.6]], 0.2, 0.6),  # {a, a}, {a, b}, {b, a}, {b, b}: the 2.5 % and 97.5 % points are a and b
        ([[0.1, 0.1], [0.9, 0.9]], 0.5, 0.5),  # seeds of a condition never stand in for those of another
        ([[0.5]], None, None),  # one value says nothing of its spread
        ([[0.5, 0.6], [0.7]], None, None),
        ([], None, None),
        ([[0.5, math.nan]], None, None),
    ],
)
def test_strata_are_resampled_one_by_one(
    strata: list[list[float]], low: float | None, high: float | None
) -> None:
    found = stats.interquartile_mean(strata)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


@settings(max_examples=20)
# interpolation rounds its ends past each other
@example([0.28624317273277283, 0.28624317273277283], Random(0))
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.randoms())
def test_the_interval_is_the_same_each_time_and_for_each_order(values: list[float], random: Random) -> None:
    mixed = random.sample(values, len(values))
    found = stats.interquartile_mean([values])
    again = stats.interquartile_mean([mixed])
    assert (found.low, found.high) == (again.low, again.high)
    assert found.value == pytest.approx(again.value)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9  # type: ignore[operator]
    assert min(values) - 1e-9 <= found.value <= max(values) + 1e-9  # type: ignore[operator]


def test_holm_multiplies_the_smallest_by_all_the_next_by_one_less() -> None:
    # The worked example of Holm's method: 0.01, 0.04, 0.03, 0.005 of four.
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.02, None, 0.5]) == [0.04, None, 0.5]
    assert stats.holm([]) == []


def test_a_t_interval_over_three_seeds_is_the_one_of_the_textbook() -> None:
    # mean 0.6, s = 0.1, standard error 0.1 / sqrt(3) = 0.057735, t(0.975, 2) = 4.302653: half width 0.248414
    found = stats.mean_interval([0.5, 0.6, 0.7])
    assert (found.value, found.low, found.high) == pytest.approx((0.6, 0.351586, 0.848414), abs=1e-6)
    assert stats.mean_interval([0.5]) == Estimate(0.5)
    assert stats.mean_interval([]) == Estimate(None)
    assert stats.mean_interval([0.9, 1.0]).cut(0, 1).high == 1.0, "a fraction's interval ends at 1"
    # Of differences within seeds it is the paired t-test.
    a = np.array([1.0, 2.5, 3.1, 4.2, 5.9])
    b = np.array([0.4, 2.9, 2.0, 3.0, 5.1])
    found = stats.mean_interval((a - b).tolist())
    theirs = scipy_stats.ttest_rel(a, b)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert stats.mean_interval([0.5, 0.5, 0.5]).p is None, "differences that do not vary have no p-value"
    # It reads with a dash for an end that is not known.
    for ends, text in (((1.0, 2.0), " [1.00, 2.00]"), ((1.0, math.nan), " [1.00, -]"), ((None, None), "")):
        assert stats.spanned(Estimate(1.5, *ends).columns("x"), "x") == f"1.50{text}"
        assert stats.spanned(Estimate(None, *ends).columns("x"), "x") == "-"


def test_schoenfelds_number_of_collapses_and_the_seeds_for_it_by_hand() -> None:
    # (1.959964 + 0.841621)^2 / (1/4 log(0.5)^2) = 7.848880 / 0.120113
    assert stats.collapses_needed(0.5) == pytest.approx(65.3455, abs=1e-3)
    assert [stats.collapses_needed(ratio) for ratio in (0.2, 5.0)] == pytest.approx([12.1205] * 2, abs=1e-3)
    # 0.8 of the reference arm, 1 - 0.2^0.2 = 0.275220 of the other: 12.1205 / 1.075220 = 11.27
    assert stats.collapses_expected(0.2, 0.8) == pytest.approx(1.075220, abs=1e-6)
    assert stats.seeds_needed(0.2, 0.8) == 12
    # (2.575829 + 0.841621)^2 / (1/4 log(0.2)^2) = 18.0351
    assert stats.seeds_needed(0.2, 0.8, alpha=0.01) == 17


def test_the_promised_power_is_the_one_of_simulated_grids() -> None:
    from scipy.stats import CensoredData, logrank

    stream = np.random.default_rng(0)
    seeds = stats.seeds_needed(0.4, 0.9)
    ratio = 0.4
    incidence = 0.9
    hazard = -math.log(1 - incidence)  # over a run of length 1

    def arm(scale: float) -> CensoredData:
        times = stream.exponential(1 / (hazard * scale), seeds)
        return CensoredData(uncensored=times[times <= 1], right=np.ones(int((times > 1).sum())))

    found = np.mean([logrank(arm(1.0), arm(ratio)).pvalue <= 0.05 for _ in range(600)])
    assert found == pytest.approx(0.8, abs=0.07)  # three standard errors and what Schoenfeld leaves out


@given(st.floats(0.05, 0.9), st.floats(0.1, 0.99), st.floats(0.1, 0.95), st.integers(1, 60))
def test_seeds_needed_power_and_detectable_ratio_agree(
    ratio: float, incidence: float, power: float, n: int
) -> None:
    seeds = stats.seeds_needed(ratio, incidence, power)
    assert stats.power_of(seeds, ratio, incidence) >= power - 1e-9
    assert seeds == 1 or stats.power_of(seeds - 1, ratio, incidence) < power + 1e-9
    found = stats.detectable(n, incidence, power)
    assert 0 < found < 1
    assert stats.power_of(n, found, incidence) == pytest.approx(power, abs=1e-6)


def seeds(*values: float, arm: str = "ppo", bucket: int = 0) -> pd.DataFrame:
    mean = list(values)
    return pd.DataFrame({"arm": arm, "bucket": bucket, "mean": mean, "low": mean, "high": mean})


def test_a_band_is_the_interquartile_mean_with_the_ends_of_all_resamples() -> None:
    row = stats.bands(seeds(0.0, 1.0, 2.0, 9.0, 30.0)).iloc[0]
    assert row["middle"] == pytest.approx(stats.interquartile_mean([[0.0, 1.0, 2.0, 9.0, 30.0]]).value)
    assert (row["n"], row["low"], row["high"]) == (5, 0.0, 30.0)
    for few in ((0.4,), (0.2, 0.6)):
        row = stats.bands(seeds(*few)).iloc[0]
        assert (row["middle"], row["n"]) == (pytest.approx(0.4), len(few))
        assert row[["lower", "upper"]].isna().all(), "the interval of two seeds would be the two"
    assert stats.bands(seeds(math.nan)).empty
    drawn = sorted(float(np.mean(pick)) for pick in product([0.0, 1.0, 5.0], repeat=3))
    row = stats.bands(seeds(0.0, 1.0, 5.0)).iloc[0]
    # The smallest value with at least 2.5 % (97.5 %) of the 27 resamples at or below it: the 1st and the
    # 27th.
    assert (row["lower"], row["upper"]) == (drawn[0], drawn[26])
    # Arms keep their order, and a seed that ended early leaves the later points to the others.
    found = stats.bands(
        pd.concat([seeds(1.0, 3.0, arm="st-ppo"), seeds(5.0, bucket=1, arm="st-ppo"), seeds(9.0)])
    )
    assert list(zip(found["arm"], found["n"], found["middle"], strict=True)) == [
        ("st-ppo", 2, 2.0),
        ("st-ppo", 1, 5.0),
        ("ppo", 1, 9.0),
    ]


@given(st.lists(st.floats(-100, 100), min_size=stats.SPREAD, max_size=12))
def test_the_band_lies_inside_the_extremes_and_around_the_middle(values: list[float]) -> None:
    row = stats.bands(seeds(*values)).iloc[0]
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert row["low"] - slack <= row["lower"] <= row["middle"] + slack
    assert row["middle"] - slack <= row["upper"] <= row["high"] + slack
