from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact, ttest_rel

from workbench.analysis import paired
from workbench.analysis.paired import (
    paired_mean,
    paired_proportions,
    power_of_fisher,
    power_of_t,
    seeds_for_fisher,
)

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
            if fisher_exact([[x, n - x], [y, n - y]]).pvalue <= alpha:
                total += math.comb(n, x) * a**x * (1 - a) ** (n - x) * math.comb(n, y) * b**y * (1 - b) ** (n - y)
    assert power_of_fisher(n, a, b, alpha) == pytest.approx(total)


def test_the_fewest_seeds_are_enough_and_one_fewer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    n = seeds_for_fisher(0.75, 0.25, 0.05)
    assert n is not None
    assert power_of_fisher(n, 0.75, 0.25, 0.05) >= 0.8 > power_of_fisher(n - 1, 0.75, 0.25, 0.05)
    monkeypatch.setattr(paired, "MOST", 8)
    assert seeds_for_fisher(0.5, 0.45, 0.001) is None


def test_the_power_of_the_t_test_is_what_simulation_finds() -> None:
    stream = np.random.default_rng(0)
    n, deviation, effect = 6, 0.3, 0.4
    drawn = stream.normal(effect, deviation, (20_000, n))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(n))
    assert power_of_t(n, deviation, effect, 0.05) == pytest.approx(float((t > 2.5706).mean()), abs=0.01)
