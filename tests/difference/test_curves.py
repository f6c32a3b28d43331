"""Where a curve leaves the band of good runs."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sorl.collapse.band import FEWEST, WINDOW, Band
from sorl.difference.curves import parting

STEPS = 60


def curve(seed: int, *, since: int | None = None, jump: float = 0.0, noise: float = 0.05) -> pd.Series:
    draw = np.random.default_rng(seed)
    values = 0.5 + draw.normal(0, noise, STEPS)
    if since is not None:
        values[since:] += jump
    return pd.Series(values, range(STEPS))


def band(runs: int, **more: float) -> Band:
    found = Band.of("entropy", [curve(seed, **more) for seed in range(runs)])
    assert found is not None
    return found


@pytest.mark.parametrize("runs", [1, 2, 3, 5])
@pytest.mark.parametrize("jump", [-2.0, 2.0])
def test_a_curve_that_jumps_leaves_at_the_jump(runs, jump):
    left = parting(band(runs), curve(99, since=30, jump=jump))
    assert left is not None
    # The median of a window moves as soon as most of it has.
    assert 30 - WINDOW // 2 <= left.step <= 30
    assert (left.value > left.high) if jump > 0 else (left.value < left.low)


@pytest.mark.parametrize("runs", [1, 3])
def test_another_seed_of_the_same_recipe_stays(runs):
    assert [seed for seed in range(100, 200) if parting(band(runs), curve(seed)) is not None] == []


def test_a_single_spike_is_no_parting():
    spiked = curve(99)
    spiked.iloc[30:32] = 100.0
    assert parting(band(3), spiked) is None


def test_points_that_are_no_numbers_are_left_out():
    broken = curve(99, since=30, jump=2.0)
    broken.iloc[::7] = np.nan
    left = parting(band(1), broken)
    assert left is not None
    assert abs(left.step - 30) <= WINDOW


def test_too_few_common_steps_say_nothing():
    short = curve(99, since=2, jump=9.0).iloc[: FEWEST - 1]
    assert parting(band(1), short) is None
    assert Band.of("entropy", [short]) is None


def test_a_fraction_has_a_band_between_nothing_and_all():
    found = Band.of("clip_frac", [curve(0, noise=0.01) * 0.02])
    assert found is not None
    left = parting(found, curve(1, since=20, jump=0.9, noise=0.01).clip(0, 1))
    assert left is not None
    assert left.low == 0.0


def test_a_band_is_what_was_saved_of_it():
    first = band(3)
    second = Band.from_dict(first.as_dict())
    assert parting(second, curve(99, since=30, jump=2.0)) == parting(first, curve(99, since=30, jump=2.0))


@settings(max_examples=50)
@given(st.floats(0.001, 1000.0), st.floats(-5.0, 5.0))
def test_unit_and_order_do_not_matter(scale, shift):
    curves = [curve(seed) + shift for seed in range(3)]
    bad = curve(99, since=30, jump=3.0) + shift
    here = Band.of("x", curves)
    there = Band.of("x", [one.sample(frac=1.0, random_state=0) * scale for one in reversed(curves)])
    assert here is not None
    assert there is not None
    one = parting(here, bad)
    other = parting(there, bad.sample(frac=1.0, random_state=1) * scale)
    assert (one and one.step) == (other and other.step)
