from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.power import collapses_expected, collapses_needed, detectable, power_of, seeds_needed


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
