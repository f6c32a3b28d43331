"""What the columns of the gap say of made log-probs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sorl.measures import measure_updates
from sorl.measures.evidence import Evidence
from tests.measures.shared_batch import evidence_of

ROWS = 6
LENGTH = 40


def columns(gap: np.ndarray, log_prob: np.ndarray, **changes):
    """Columns of an update with the trainer's log-probs and this gap, (ROWS, LENGTH) each."""
    old = torch.from_numpy(log_prob)
    behaviour = torch.from_numpy(log_prob - gap)[None]
    zero = torch.zeros_like(old)
    mask = torch.ones_like(old, dtype=torch.bool)
    return measure_updates(evidence_of(mask, old, zero, zero, log_prob_behaviour=behaviour, **changes))


@pytest.fixture
def log_prob() -> np.ndarray:
    return np.log(np.random.default_rng(0).uniform(0.05, 0.98, (ROWS, LENGTH)))


def noise(size: float) -> np.ndarray:
    return np.random.default_rng(1).normal(0, size, (ROWS, LENGTH))


def test_the_gap_is_the_mean_size_of_the_difference(log_prob):
    found = columns(noise(0.01), log_prob)
    assert found["gap"][0] == pytest.approx(np.abs(noise(0.01)).mean())
    assert found["gap"][0] == pytest.approx(found["mismatch"][0])


def test_a_temperature_of_two_outcomes_is_one_sided_and_has_its_slope(log_prob):
    p = np.exp(log_prob)
    hot = p**0.5 / (p**0.5 + (1 - p) ** 0.5)
    found = columns(log_prob - np.log(hot), log_prob)
    assert found["gap_sharper_frac"][0] == 0.0
    assert found["gap_slope"][0] < 0.8
    assert columns(noise(0.01), log_prob)["gap_slope"][0] == pytest.approx(1.0, abs=0.01)


def test_a_truncated_sampler_finds_every_token_likelier(log_prob):
    assert columns(np.full((ROWS, LENGTH), -0.05), log_prob)["gap_likelier_frac"][0] == 1.0


def test_rows_that_agree_up_to_a_token_are_broken_and_others_are_not(log_prob):
    gap = noise(1e-6)
    gap[:2, 15:] = noise(0.5)[:2, 15:]
    assert columns(gap, log_prob)["gap_broken_frac"][0] == pytest.approx(2 / ROWS)
    assert columns(noise(0.5), log_prob)["gap_broken_frac"][0] == 0.0


def test_a_few_tokens_that_change_much_show_in_the_kurtosis(log_prob):
    rare = np.where(np.random.default_rng(2).random((ROWS, LENGTH)) < 0.03, 1.0, 0.0) * noise(1.0)
    spread = (1.001 - np.exp(log_prob)) * noise(0.1)
    assert columns(spread, log_prob)["gap_kurtosis"][0] == pytest.approx(3.0, abs=1.0)
    assert columns(spread + rare, log_prob)["gap_kurtosis"][0] > 10


def test_shares_of_few_tokens_are_not_measured(log_prob):
    gap = np.zeros((ROWS, LENGTH))
    gap[0, :3] = -0.1
    assert np.ma.getmaskarray(columns(gap, log_prob)["gap_likelier_frac"])[0]


def test_where_the_sampler_is_the_old_policy_the_first_update_tells_the_gap(log_prob):
    """As prime-rl trains: old log-probs are the sampler's, and later updates have moved."""
    old = torch.from_numpy(log_prob)
    mask = torch.ones_like(old, dtype=torch.bool)
    first = evidence_of(mask, old, torch.full_like(old, 0.02), old)
    second = replace(first, log_prob=first.log_prob + 1.0, epoch=torch.tensor([1]))
    found = measure_updates(Evidence.stack([first, second]))
    assert found["mismatch"][0] == 0.0
    assert found["gap"][0] == pytest.approx(0.02)
    assert np.ma.getmaskarray(found["gap"]).tolist() == [False, True]
