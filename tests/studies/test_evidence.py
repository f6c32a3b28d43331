"""The statistics behind a verdict, where the right answer is known: published numbers, enumeration, simulation."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from studies import evidence
from studies.evidence import paired_proportions, power_of_fisher, power_of_t, seeds_for_fisher
from workbench.analysis.stats import fisher_exact


def test_the_interval_of_a_paired_difference_is_the_published_one() -> None:
    found = paired_proportions(36, 12, 2, 0)  # Newcombe 1998, Statistics in Medicine 17:2635, method 10
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-5)
    same = paired_proportions(0, 0, 0, 5)
    assert (same.value, same.low, same.high) == pytest.approx((0, -0.4345, 0.4345), abs=5e-5)


counts = st.integers(0, 12)


@given(counts, counts, counts, counts)
def test_a_paired_difference_mirrors_when_the_arms_are_exchanged(e: int, f: int, g: int, h: int) -> None:
    if e + f + g + h == 0:
        with pytest.raises(ValueError, match="n"):
            paired_proportions(e, f, g, h)
        return
    one, other = paired_proportions(e, f, g, h), paired_proportions(e, g, f, h)
    assert one.low - 1e-12 <= one.value <= one.high + 1e-12  # type: ignore[operator]
    turned = (-other.value, -other.high, -other.low)  # type: ignore[operator]
    assert (one.value, one.low, one.high) == pytest.approx(turned)


def test_the_power_of_fisher_counts_every_table() -> None:
    n, a, b, alpha = 6, 0.8, 0.2, 0.05
    total = sum(
        scipy_stats.binom.pmf(x, n, a) * scipy_stats.binom.pmf(y, n, b)
        for x, y in product(range(n + 1), repeat=2)
        if fisher_exact(x, n, y, n) <= alpha
    )
    assert power_of_fisher(n, a, b, alpha) == pytest.approx(total)


def test_the_fewest_seeds_are_enough_and_one_fewer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    n = seeds_for_fisher(0.75, 0.25, 0.05) or 0
    assert power_of_fisher(n, 0.75, 0.25, 0.05) >= 0.8 > power_of_fisher(n - 1, 0.75, 0.25, 0.05)
    monkeypatch.setattr(evidence, "MOST", 8)
    assert seeds_for_fisher(0.5, 0.45, 0.001) is None


def test_the_power_of_the_t_test_is_what_simulation_finds() -> None:
    n, deviation, effect = 6, 0.3, 0.4
    drawn = np.random.default_rng(0).normal(effect, deviation, (20_000, n))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(n))
    assert power_of_t(n, deviation, effect, 0.05) == pytest.approx(float((t > 2.5706).mean()), abs=0.01)
