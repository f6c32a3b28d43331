"""Numbers worked by hand on a batch of two sequences and eleven trained tokens."""

import numpy as np
import pytest
import torch

from sorl.measures import measure_turn_steps, measure_turns, measure_updates
from tests.measures.shared_batch import evidence_of, worked

EXACT = {"rel": 0, "abs": 6e-7}  # six decimals are given


def measured(evidence, name):
    return float(measure_updates(evidence)[name][0])


NUMBERS = {
    "approx_kl": 0.043636,
    "kl_k2": 0.108200,
    "kl_k3": 0.089607,
    "ratio_mean": 1.045970,
    "ratio_std": 0.396946,
    "ratio_max": 2.013753,
    "ratio_min": 0.272532,
    "chi2": 0.251620,
    "ess_frac": 0.874110,
    "ess_sequence_frac": 0.728371,
    "log_ratio_abs_max": 1.3,
    "clip_frac": 2 / 11,
    "clip_low_frac": 1 / 11,
    "clip_high_frac": 1 / 11,
    "out_of_range_frac": 4 / 11,
    "turn_ratio_geo_max": 1.284025,
    "turn_ratio_arith_max": 1.356718,
    "turn_log_ratio_sum_abs_max": 1.1,
    "clip_bias_proxy": 0.142439,
    "clip_bias_proxy_range": 0.192383,
    "turn_clip_frac": 0.5,
    "turn_clip_token_frac": 7 / 11,
    "sequence_clip_frac": 1.0,
    "sequence_clip_token_frac": 1.0,
    "tokens": 11,
    "advantage_abs_max": 1.2,
    "advantage_positive_frac": 6 / 11,
    "advantage_negative_frac": 5 / 11,
    "log_ratio_q50": 0.02,
    "unit_ratio_max": 2.013753,
    "log_ratio_std": (0.2164 - (0.48 / 11) ** 2) ** 0.5,  # mean of delta^2 is 2 kl_k2
    "ratio_positive_q50": (1.020201 + 1.105171) / 2,  # .741 .951 1.020 | 1.105 1.162 2.014
    "chi2_sequence": (2.559981 + 0.149569) / 2 - 1,  # exp(2 x .47), exp(2 x -.95)
}


@pytest.mark.parametrize(("name", "expected"), NUMBERS.items())
def test_update_level_numbers(name, expected):
    assert measured(worked(), name) == pytest.approx(expected, **EXACT)


def test_positive_advantage_share_is_that_of_bapo_at_the_bounds_of_ppo():
    advantage = torch.tensor([[1.0], [-0.5]]).double().expand(2, 8)  # P = 5.017420, Q = 3.100984
    share = measured(worked(advantage=advantage), "positive_advantage_frac")
    assert share == pytest.approx(5.017420 / (5.017420 + 3.100984), **EXACT)


TURNS = {
    "trajectory": [0, 0, 1, 1],
    "turn_index": [1, 2, 1, 2],
    "n_tokens": [3, 2, 2, 4],
    "ratio_geo": [1.284025, 0.869358, 1.077884, 0.759572],
    "ratio_arith": [1.356718, 0.880510, 1.094431, 0.871409],
    "ratio_prod": [2.117000, 0.755784, 1.161834, 0.332871],
    "ratio_max": [2.013753, 1.020201, 1.284025, 1.161834],
    "log_ratio_sum": [0.75, -0.28, 0.15, -1.10],
    "advantage": [0.8, 0.45, -0.6, -0.625],
    "advantage_std": [(0.08 / 3) ** 0.5, 0.05, 0.1, 0.331875**0.5],
    "clip_frac": [1 / 3, 0, 0, 1 / 4],
    "out_of_range_frac": [1 / 3, 1 / 2, 1 / 2, 1 / 4],
}


def test_turn_level_numbers():
    turns = measure_turns(worked())
    for name, expected in TURNS.items():
        assert turns[name] == pytest.approx(expected, **EXACT), name
    second = np.std([0.5, 0.4, -1, -1.2, 0.3, -0.6])
    rolled = measure_turn_steps(turns)["advantage_std"]
    assert rolled == pytest.approx([0.4904**0.5, second])  # 1 .8 .6 -.5 -.7 about .24


def test_explained_variance_uses_unbiased_variances_and_the_old_values():
    values = torch.tensor([[0.2, 0.4, 0.6, 0.1]]).double()[None]
    returns = torch.tensor([[0, 1, 1, 0]]).double()[None]
    mask = torch.ones(1, 4).bool()
    zero = torch.zeros(1, 4).double()
    case = evidence_of(mask, zero, zero, zero, values=values * 0, values_old=values, returns=returns)
    assert measured(case, "explained_variance") == pytest.approx(0.552513, **EXACT)
    assert measured(case, "value_mae") == pytest.approx((0.2 + 0.6 + 0.4 + 0.1) / 4)
    assert measured(case, "value_bias") == pytest.approx((0.2 - 0.6 - 0.4 + 0.1) / 4)
