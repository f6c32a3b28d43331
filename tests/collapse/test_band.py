"""The rule that a run has left the band of a baseline: once, at the step at which it is sure."""

import numpy as np
import pandas as pd
import pytest

from sorl.collapse.band import FEWEST, MARGIN, WINDOW, Band, band_rules, read_bands
from sorl.collapse.events import RuleWatch
from sorl.difference.curves import parting
from sorl.spec import InputError
from sorl.spec.baselines import baseline_file

STEPS = 60


def curve(seed: int, level: float = 0.5, column: str = "entropy") -> pd.Series:
    noise = np.random.default_rng(seed).normal(0.0, 0.01, STEPS)
    return pd.Series(level + noise, index=range(STEPS), name=column)


@pytest.fixture
def band() -> Band:
    found = Band.of("entropy", [curve(seed) for seed in range(3)])
    assert found is not None
    return found


def events_of(band: Band, values: pd.Series) -> list:
    watch = RuleWatch(band_rules([band], "usual"))
    events = []
    for step, value in values.items():
        events += watch.step(int(step), {"entropy": value})
    return events


def test_a_run_like_the_good_ones_raises_nothing(band):
    assert events_of(band, curve(7)) == []


def test_a_run_that_leaves_the_band_raises_one_event(band):
    values = curve(7)
    values[30:] -= 0.3
    (event,) = events_of(band, values)
    assert (event.kind, event.diagnostic, event.severity) == ("baseline", "entropy", "warning")
    assert 30 <= event.step < 30 + WINDOW
    assert event.value == pytest.approx(0.2, abs=0.02)
    assert "below 0." in event.message
    assert "baseline usual" in event.message


@pytest.mark.parametrize("seed", range(20))
def test_the_event_comes_where_the_whole_curve_is_said_to_part(band, seed):
    random = np.random.default_rng(seed)
    values = curve(seed + 100)
    values[int(random.integers(15, 50)) :] += random.choice([-1, 1]) * random.uniform(0.2, 0.5)
    left = parting(band, values)
    (event,) = events_of(band, values)
    assert left is not None
    assert event.step == left.step + WINDOW - 1


def test_nothing_is_said_of_too_few_steps_nor_of_steps_that_no_good_run_had(band):
    assert events_of(band, curve(7, level=0.9).head(FEWEST - 1)) == []
    later = pd.Series([0.9] * 30, index=range(STEPS, STEPS + 30))
    assert events_of(band, later) == []


def test_what_was_not_measured_is_no_value(band):
    values = curve(7)
    values[30:] = None
    assert events_of(band, values) == []


def test_a_noisy_run_has_a_wider_band(band):
    values = curve(7) + np.random.default_rng(1).normal(0.0, 0.3, STEPS)
    assert max(abs(values - 0.5)) > MARGIN * band.unit.max()
    assert events_of(band, values) == []


def test_a_baseline_that_is_not_saved_is_named_with_what_to_type(tmp_path):
    with pytest.raises(
        InputError, match=r"no baseline 'usual'; `sorl baseline save NAME RUN \.\.\.` saves one"
    ):
        baseline_file(tmp_path, "usual")
    (tmp_path / "bad.json").write_text('{"bands": [{"column": "entropy"}]}')
    with pytest.raises(InputError, match="baseline 'usual' cannot be read"):
        read_bands(tmp_path / "bad.json", "usual")
