"""Numbers worked by hand on a batch of two sequences and eleven trained tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.diagnostics.shared_batch import ADVANTAGE, DELTA, MASK, evidence_of, rollouts_of, worked
from workbench.diagnostics import measure, measure_turn_steps, measure_turns, measure_updates
from workbench.diagnostics.evidence import Evidence, StepEvidence

EXACT = {"rel": 0, "abs": 6e-7}  # six decimals are given


def measured(evidence, name):
    return float(measure_updates(evidence)[name][0])


NUMBERS = {
    "approx_kl": 0.043636, "kl_k2": 0.108200, "kl_k3": 0.089607, "ratio_mean": 1.045970, "ratio_std": 0.396946,
    "ratio_max": 2.013753, "ratio_min": 0.272532, "chi2": 0.251620, "ess_frac": 0.874110, "ess_sequence_frac": 0.728371,
    "log_ratio_abs_max": 1.3, "clip_frac": 2 / 11, "clip_low_frac": 1 / 11, "clip_high_frac": 1 / 11,
    "out_of_range_frac": 4 / 11, "turn_ratio_geo_max": 1.284025, "turn_ratio_arith_max": 1.356718,
    "turn_log_ratio_sum_abs_max": 1.1, "clip_bias_proxy": 0.142439, "clip_bias_proxy_range": 0.192383,
    "turn_clip_frac": 0.5, "turn_clip_token_frac": 7 / 11, "sequence_clip_frac": 1.0, "sequence_clip_token_frac": 1.0,
    "tokens": 11, "advantage_abs_max": 1.2, "advantage_positive_frac": 6 / 11, "advantage_negative_frac": 5 / 11,
    "log_ratio_q50": 0.02, "unit_ratio_max": 2.013753,
    "log_ratio_std": (0.2164 - (0.48 / 11) ** 2) ** 0.5,  # mean of delta^2 is 2 kl_k2
    "ratio_positive_q50": (1.020201 + 1.105171) / 2,  # .741 .951 1.020 | 1.105 1.162 2.014
    "chi2_sequence": (2.559981 + 0.149569) / 2 - 1,  # exp(2 x .47), exp(2 x -.95)
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), NUMBERS.items())
def test_update_level_numbers(name, expected):
    assert measured(worked(), name) == pytest.approx(expected, **EXACT)


def test_the_share_of_tokens_in_clipped_trajectories_grows_with_the_unit():
    advantage = ADVANTAGE.clone()
    advantage[1, 4] = 1.2  # its ratio of .27 is now on the side that PPO does not clip
    case = worked(advantage=advantage)
    assert measured(case, "clip_frac") == pytest.approx(1 / 11)
    assert measured(case, "turn_clip_token_frac") == pytest.approx(3 / 11)
    assert measured(case, "sequence_clip_token_frac") == pytest.approx(5 / 11)
    assert measured(case, "sequence_clip_frac") == 0.5


def test_without_a_token_to_reinforce_there_is_no_median_ratio_of_them():
    update = measure_updates(Evidence.stack([worked(), worked(advantage=-ADVANTAGE.abs())]))["ratio_positive_q50"]
    assert np.ma.getmaskarray(update).tolist() == [False, True]


def test_an_outlier_moves_the_proxies_and_not_the_clip_fraction():
    delta = DELTA.clone()
    delta[0, 2] = 3.0
    case = worked(delta)
    lower = (np.exp(-1.3) * 1.2) ** 2
    assert measured(case, "clip_bias_proxy") == pytest.approx((np.exp(6) * 0.36 + lower) / 11)  # 13.21285
    aside = (np.exp(-0.3) * 0.5) ** 2 + (np.exp(0.25) * 0.5) ** 2  # out of range on the side that PPO does not clip
    assert measured(case, "clip_bias_proxy_range") == pytest.approx((np.exp(6) * 0.36 + lower + aside) / 11)  # 13.26279
    assert measured(case, "clip_frac") == pytest.approx(2 / 11)


def test_the_proxy_of_the_bias_takes_the_ratio_of_the_surrogate():
    turns = torch.tensor([[1.284025], [0.759572]]).double().expand(2, 8)
    # Clipped are one token with A = .6 in the first sequence and one with A = -1.2 in the second.
    expected = ((1.284025 * 0.6) ** 2 + (0.759572 * 1.2) ** 2) / 11
    assert measured(worked(ratio=turns[None]), "clip_bias_proxy") == pytest.approx(expected)
    assert measured(worked(ratio=turns[None]), "clip_bias_proxy_range") == pytest.approx(0.192383, **EXACT)


def test_chi2_is_the_variance_of_the_ratios_about_one_and_twice_what_their_mean_is_above_it():
    mean, std, chi2 = (measured(worked(), name) for name in ("ratio_mean", "ratio_std", "chi2"))
    assert chi2 == pytest.approx(std**2 + (mean - 1) ** 2 + 2 * (mean - 1))
    assert chi2 > 1.5 * std**2


def test_positive_advantage_share_is_that_of_bapo_at_the_bounds_of_ppo():
    advantage = torch.tensor([[1.0], [-0.5]]).double().expand(2, 8)  # P = 5.017420, Q = 3.100984
    share = measured(worked(advantage=advantage), "positive_advantage_frac")
    assert share == pytest.approx(5.017420 / (5.017420 + 3.100984), **EXACT)


TURNS = {
    "trajectory": [0, 0, 1, 1], "turn_index": [1, 2, 1, 2], "n_tokens": [3, 2, 2, 4],
    "ratio_geo": [1.284025, 0.869358, 1.077884, 0.759572], "ratio_arith": [1.356718, 0.880510, 1.094431, 0.871409],
    "ratio_prod": [2.117000, 0.755784, 1.161834, 0.332871], "ratio_max": [2.013753, 1.020201, 1.284025, 1.161834],
    "log_ratio_sum": [0.75, -0.28, 0.15, -1.10], "advantage": [0.8, 0.45, -0.6, -0.625],
    "advantage_std": [(0.08 / 3) ** 0.5, 0.05, 0.1, 0.331875**0.5], "clip_frac": [1 / 3, 0, 0, 1 / 4],
    "out_of_range_frac": [1 / 3, 1 / 2, 1 / 2, 1 / 4],
}  # fmt: skip


def test_turn_level_numbers():
    turns = measure_turns(worked())
    for name, expected in TURNS.items():
        assert turns[name] == pytest.approx(expected, **EXACT), name
    second = np.std([0.5, 0.4, -1, -1.2, 0.3, -0.6])
    rolled = measure_turn_steps(turns)["advantage_std"]
    assert rolled == pytest.approx([0.4904**0.5, second])  # 1 .8 .6 -.5 -.7 about .24


def test_gradient_share_of_turns_is_the_share_of_absolute_weights():
    weight = torch.tensor([[0.1, -0.1, 0, 9, 9, 0.2, 0, 9], [0.3, 0, 9, 0, 0, -0.3, 0, 9]]).double()
    turns = measure_turns(worked(gradient_weight=weight[None]))
    assert turns["gradient_share"] == pytest.approx([0.2, 0.2, 0.3, 0.3])


def test_entropy_is_told_apart_by_what_the_policy_was_doing():
    entropy = torch.arange(16).view(1, 2, 8).double()
    span = torch.tensor([[1, 1, 2, 9, 9, 0, 0, 9], [1, 2, 9, 2, 2, 2, 0, 9]])[None]
    update = measure_updates(worked(entropy=entropy, span=span))
    assert update["entropy_think"][0] == pytest.approx((0 + 1 + 8) / 3)
    assert update["entropy_search"][0] == pytest.approx((2 + 9 + 11 + 12 + 13) / 5)
    assert np.ma.getmaskarray(update["entropy_answer"]).tolist() == [True]
    assert measure_updates(worked())["entropy_think"] is None


def test_explained_variance_uses_unbiased_variances_and_the_old_values():
    values = torch.tensor([[0.2, 0.4, 0.6, 0.1]]).double()[None]
    returns = torch.tensor([[0, 1, 1, 0]]).double()[None]
    mask, zero = torch.ones(1, 4).bool(), torch.zeros(1, 4).double()
    case = evidence_of(mask, zero, zero, zero, values=values * 0, values_old=values, returns=returns)
    assert measured(case, "explained_variance") == pytest.approx(0.552513, **EXACT)
    assert measured(case, "value_mae") == pytest.approx((0.2 + 0.6 + 0.4 + 0.1) / 4)
    assert measured(case, "value_bias") == pytest.approx((0.2 - 0.6 - 0.4 + 0.1) / 4)


def test_value_clip_share_counts_tokens_whose_clipped_error_is_larger():
    # V = .9, V_old = .2, G = 1: clipped to .7, error grows; V = .1, V_old = .3, G = 0: not clipped.
    halves = ((0.9, 0.1), (0.2, 0.3), (1.0, 0.0))
    values, old, returns = (torch.where(torch.arange(8) < 4, *x).double().expand(1, 2, 8) for x in halves)
    case = worked(values=values, values_old=old, returns=returns, value_clip=0.5)
    assert measured(case, "vf_clip_frac") == pytest.approx(int(MASK[:, :4].sum()) / 11)
    assert measure_updates(replace(case, value_clip=None))["vf_clip_frac"] is None


def test_likelihood_displacement_separates_good_from_bad_trajectories():
    good = (0.10 - 0.05 + 0.70 - 0.30 + 0.02) / 5
    bad = (0.25 - 0.10 + 0.05 - 1.30 + 0.15 + 0) / 6
    for sign, positive, negative, displaced in ((1, good, bad, 0), (-1, bad, good, 1)):
        update = measure_updates(worked(advantage=sign * ADVANTAGE))
        assert update["displacement_positive"][0] == pytest.approx(positive)
        assert update["displacement_negative"][0] == pytest.approx(negative)
        assert update["displaced_positive_frac"][0] == displaced


def test_mismatch_compares_the_old_policy_with_the_sampler_token_by_token_and_trajectory_by_trajectory():
    def shifted(*by):
        shift = torch.where(MASK, torch.tensor(by).double()[:, None], float("nan"))[None]
        return measure_updates(worked(log_prob_behaviour=worked().log_prob_old + shift))

    update = shifted(0.1, 0.1)
    for name in ("mismatch", "mismatch_max", "mismatch_kl"):
        assert update[name][0] == pytest.approx(0.1), name
    assert update["mismatch_k3"][0] == pytest.approx(np.exp(-0.1) - 1 + 0.1)
    update = shifted(0.1, 0.3)
    assert update["mismatch_log_ppl"][0] == pytest.approx(0.2)  # of the tokens it is 2.3 / 11
    assert update["mismatch_ppl_ratio"][0] == pytest.approx((np.exp(0.1) + np.exp(0.3)) / 2)


def test_the_clipped_share_counts_updates_whose_gradient_became_shorter():
    def step(before, after):
        norms = zip(before, after, strict=True)
        updates = [replace(worked(), scalars={"grad_norm": (b,), "grad_norm_after": (a,)}) for b, a in norms]
        return measure(0, StepEvidence(rollouts_of([1.0, 0.0]), Evidence.stack(updates))).step["grad_clipped_frac"]

    assert step([0.5, 2.0, 1.0, 3.0], [0.5, 1.0, 1.0, 1.0]) == 0.5
    assert step([5.0, 2.0], [5.0, 2.0]) == 0.0


def test_a_turn_is_valued_at_its_first_token():
    values = torch.arange(16).reshape(1, 2, 8).double() / 10
    returns = torch.tensor([[1.0], [0.0]]).double().expand(1, 2, 8)
    turns = measure_turns(worked(values=values, values_old=values, returns=returns))
    assert turns["value"] == pytest.approx([0.0, 0.5, 0.8, 1.1])
    assert turns["value_error"] == pytest.approx([-1.0, -0.5, 0.8, 1.1])
    rolled = measure_turn_steps(turns)
    assert rolled["value_error"] == pytest.approx([-0.1, 0.3])
    assert rolled["value_mae"] == pytest.approx([0.9, 0.8])
    assert rolled["explained_variance"] == pytest.approx([1 - 1.62 / 0.50001, 1 - 1.28 / 0.50001])


def test_one_turn_with_an_index_leaves_its_explained_variance_open_and_no_critic_everything():
    values = torch.zeros(1, 2, 8).double()
    turns = measure_turns(worked(values=values, values_old=values, returns=values))
    alone = {k: v if v is None else v[:3] for k, v in turns.items()}  # the second turn of one trajectory only
    rolled = measure_turn_steps(alone)
    assert np.ma.getmaskarray(rolled["explained_variance"]).tolist() == [False, True]
    assert rolled["value_mae"].tolist() == [0, 0]
    without = measure_turn_steps(measure_turns(worked()))
    assert without["explained_variance"] is None
    assert without["value_mae"] is None


def test_a_trajectory_is_measured_where_the_step_last_trained_on_it_and_the_step_knows_its_age():
    first, last = worked(DELTA * 2), replace(worked(), epoch=torch.tensor([1]))
    stacked = replace(Evidence.stack([first, last]), rollout_step=torch.tensor([3, 3]))
    got = measure(8, StepEvidence(rollouts_of([1.0, 0.0, 1.0]), stacked))
    assert np.ma.filled(got.trajectory["log_ratio_sum"], -9).tolist() == pytest.approx([0.47, -0.95, -9])
    assert got.trajectory["likelihood_displacement"][0] == pytest.approx(0.47 / 5)
    assert got.trajectory["ratio_max"][0] == pytest.approx(np.exp(1.4))  # over all epochs
    assert np.ma.filled(got.trajectory["gradient_share"], -9)[:2].sum() == pytest.approx(1)
    assert got.step["staleness"] == 5
    assert got.step["updates"] == 2
