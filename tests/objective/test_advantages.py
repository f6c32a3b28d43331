"""What must hold for every advantage estimator, for selection and for rewards."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given

from sorl.algorithms import ALGORITHMS
from sorl.batch import Batch
from sorl.objective import KINDS, Algorithm, policy_loss, prepare, value_loss
from sorl.objective import advantage as adv
from sorl.objective.advantage import BatchZ, Gae, Grpo, MeanOnly, ReinforcePp, Rloo, gae, whiten
from sorl.objective.kl import KL, LossKL, RewardKL, estimate
from sorl.objective.select import ZeroVariance
from tests.objective.batches import F64, PPO, batches, close, plain

GROUPS = [Grpo(), MeanOnly(), Rloo()]


def using(advantage, **slots) -> Algorithm:
    return replace(PPO, advantage=advantage, **slots)


def outcome_batch(scores: list[float], groups: list[int], mask: list[list[int]] | None = None) -> Batch:
    m = torch.tensor(mask or [[1, 1]] * len(scores), dtype=torch.bool)
    zeros = torch.zeros(m.shape, dtype=F64)
    score = torch.tensor(scores, dtype=F64)
    given = {"group": torch.tensor(groups), "score": score, "log_prob_ref": zeros, "values": zeros}
    return plain(zeros, m, **given, advantages=None)


@pytest.mark.parametrize("advantage", [*GROUPS, BatchZ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero_whatever_their_rounding(advantage, dtype):
    batch = outcome_batch([0.1] * 7, [3] * 7)
    made = prepare(
        using(advantage), replace(batch, score=batch.score.to(dtype), log_prob_old=batch.tokens.to(dtype))
    )
    assert torch.all(made.advantages == 0)
    assert made.advantages.dtype == dtype


def test_batch_z_leaves_out_sequences_without_a_policy_token():
    batch = outcome_batch([1.0, 0.0, 0.5, 100.0], [0, 0, 1, 1], [[1], [1], [1], [0]])
    made = prepare(using(BatchZ()), batch).advantages[:, 0]
    assert made.tolist() == close([1.0, -1.0, 0.0, 0.0], rel=1e-5)
    one = prepare(using(BatchZ()), outcome_batch([0.7], [0])).advantages
    assert one.tolist() == [[0.7, 0.7]]


@given(batches(rows=(2, 5), width=(4, 14)))
def test_gae_over_the_whole_response_is_whitened_over_the_mask_that_was_asked_for(drawn):
    batch, _ = drawn
    assume(batch.mask.sum() > 1)
    raw = prepare(using(Gae(skip_obs=False, whiten="none")), batch)
    for mode, over in (("m", batch.mask), ("a", batch.response)):
        made = prepare(using(Gae(skip_obs=False, whiten=mode)), batch)
        white = whiten(raw.returns - batch.values, over)
        assert torch.allclose(made.advantages, torch.where(batch.mask, white, 0))
        assert torch.equal(made.returns, raw.returns)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_lies_beyond_the_end_of_a_stretch_does_not_reach_it(poison):
    steps = torch.tensor([[1, 1, 0, 1, 1]]).bool()
    last = torch.tensor([[0, 0, 1, 0, 0]]).bool()
    rewards = torch.tensor([[0.0, 1.0, 0.0, poison, 1.0]], dtype=F64)
    values = torch.tensor([[0.5, 0.25, poison, poison, 0.5]], dtype=F64)
    made = gae(rewards, values, steps, 0.9, 0.8, last)[0].tolist()
    assert made[:3] == close([0.265, 0.75, 0.0])
    assert not math.isfinite(made[3])
    assert made[4] == 0.5


def test_the_kl_of_the_reward_is_paid_at_policy_tokens_only():
    old, reference = torch.tensor([[[-1.0, -9.0, -2.0]], [[-1.5, -1.0, -1.0]]], dtype=F64)
    batch = replace(outcome_batch([1.0], [0], [[1, 0, 1]]), log_prob_old=old, log_prob_ref=reference)
    returns = prepare(using(Gae(whiten="none"), kl=RewardKL(beta=0.1)), batch).returns[0]
    assert returns.tolist() == close([1 - 0.05 + 0.1, 0, 1 + 0.1])
    assert prepare(using(MeanOnly(), kl=RewardKL(beta=0.1)), batch).advantages[0, 0] == close(1.05)
    without, in_loss = (prepare(using(Gae(), kl=kl), batch).advantages for kl in (KL(), LossKL(beta=9.0)))
    assert torch.equal(without, in_loss)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", 0.5, 1),
        ("k2", 0.125, 0.5),
        ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
        ("abs", 0.5, 1),
        ("k1+", 0.5, 0.5),
        ("k3+", math.exp(-0.5) - 0.5, 0.5),
    ],
)
def test_kl_terms_of_the_loss(estimator, value, slope):
    batch = replace(outcome_batch([0.0], [0], [[1, 0]]), advantages=torch.zeros(1, 2, dtype=F64))
    log_prob = torch.tensor([[0.5, 7.0]], dtype=F64, requires_grad=True)
    out = policy_loss(using(Gae(), kl=LossKL(estimator, 2.0)), batch, log_prob)
    out.loss.backward()
    assert float(out.terms.kl_loss) == close(2 * value)
    assert log_prob.grad.tolist()[0] == close([2 * slope, 0])


def test_k3_is_capped_at_ten_and_every_estimator_clamps_the_log_ratio():
    far = torch.tensor([-5.0, -100.0, 100.0], dtype=F64)
    assert estimate("k3", far).tolist() == close([10.0, 10.0, 10.0])
    assert estimate("k3", far, cap=math.inf).tolist() == close(
        [math.exp(5) - 6, math.exp(20) - 21, 19 + math.exp(-20)]
    )
    assert estimate("k1", far).tolist() == [-5.0, -20.0, 20.0]
    assert estimate("abs", far).tolist() == [5.0, 20.0, 20.0]
    assert estimate("k2", far).tolist() == [12.5, 200.0, 200.0]


def test_zero_variance_groups_are_dropped_and_groups_of_one_stay():
    batch = outcome_batch([1.0, 1.0, 0.1, 0.1, 0.1, 0.0, 1.0, 0.3], [5, 5, 2, 2, 2, 9, 9, 7])
    assert ZeroVariance().keep(batch.score, batch.group).tolist() == [False] * 5 + [True] * 3
    made = prepare(using(ReinforcePp(), select=ZeroVariance()), batch)
    assert made.turn.any(1).tolist() == made.mask.any(1).tolist() == [False] * 5 + [True] * 3
    assert made.advantages[made.mask].mean() == close(0), "dropped groups do not enter the mean"
    assert torch.equal(made.response, batch.response)
    negative = outcome_batch([-1.0, -1.0, -2.0, -1.0], [0, 0, 1, 1])
    assert ZeroVariance().keep(negative.score, negative.group).tolist() == [False, False, True, True]


def test_dapo_keeps_the_groups_whose_rewards_differ_and_its_formula_says_so():
    dapo = ALGORITHMS["dapo"]
    # of F1 rewards, of which none is 1; all 1; of both; all 0.4
    batch = outcome_batch([0.3, 0.6, 1.0, 1.0, 0.0, 1.0, 0.4, 0.4], [0, 0, 1, 1, 2, 2, 3, 3])
    kept = dapo.select.keep(batch.score, batch.group)
    assert kept.tolist() == [True, True, False, False, True, True, False, False]
    assert r"\mathrm{std}_{i \in g} R_i > 0" in dapo.formula
    assert "R_i = 1" not in dapo.formula


@pytest.mark.parametrize("advantage", [kind() for kind in KINDS["advantage"].values()])
def test_a_critic_is_needed_exactly_where_values_are_read(advantage):
    batch = outcome_batch([1.0, 0.0], [0, 0])
    zeros = torch.zeros_like(batch.log_prob_old)
    batch = replace(batch, values=None, turn_reward=zeros, squared_probs=zeros)
    assert using(advantage).critic == advantage.needs_values
    if advantage.needs_values:
        with pytest.raises(ValueError, match=r"Batch\.values"):
            prepare(using(advantage), batch)
    else:
        assert prepare(using(advantage), batch).returns is None


def test_the_critic_is_trained_where_it_has_targets():
    for mask, estimators in (
        ("m", [Gae(), adv.Bilevel(), Grpo()]),
        ("turn", [adv.TurnGae()]),
        ("a", [Gae(skip_obs=False), adv.TurnMeanGae(skip_obs=False)]),
    ):
        assert {advantage.critic_mask for advantage in estimators} == {mask}


@pytest.mark.parametrize(("mask", "chosen"), [("m", [1, 2, 4]), ("a", [1, 2, 3, 4]), ("turn", [1, 4])])
def test_the_value_loss_is_a_mean_over_its_mask(mask, chosen):
    batch = outcome_batch([1.0], [0], [[0, 1, 1, 0, 1, 0]])
    g = torch.Generator().manual_seed(1)
    returns, old, values = torch.randn(3, 1, 6, generator=g, dtype=F64)
    response = torch.tensor([[0, 1, 1, 1, 1, 0]], dtype=torch.bool)
    batch = replace(batch, response=response, returns=returns, values=old)
    there = torch.isin(torch.arange(6), torch.tensor(chosen))
    dirty = torch.where(there, values, math.nan).requires_grad_()
    loss = value_loss(dirty, batch, 0.2, mask)
    clipped = old + (values - old).clamp(-0.2, 0.2)
    worst = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)[0, chosen]
    assert float(loss.detach()) == close(0.5 * float(worst.mean()))
    loss.backward()
    assert torch.all(dirty.grad[:, ~there] == 0)
    halves = value_loss(values, batch, 0.2, mask, count=torch.tensor(2 * len(chosen)))
    assert float(halves) == close(0.25 * float(worst.mean()))
    whole = value_loss(values, batch, None, mask)
    assert float(whole) == close(0.5 * float(((values - returns) ** 2)[0, chosen].mean()))
    empty = replace(batch, mask=batch.mask & False, response=batch.response & False)
    assert (
        value_loss(values, empty, mask=mask)
        == value_loss(values, empty, mask=mask, count=torch.tensor(0))
        == 0
    )


def test_missing_parts_of_the_batch_are_named():
    batch = outcome_batch([1.0], [0])
    full = replace(batch, advantages=batch.values, returns=batch.values, log_prob_ref=None)
    old = batch.log_prob_old
    for missing, call in (
        ("advantages", lambda: policy_loss(using(Gae()), batch, old)),
        ("returns", lambda: value_loss(old, batch)),
        ("values", lambda: value_loss(old, replace(full, values=None))),
        ("log_prob_ref", lambda: prepare(using(Gae(), kl=RewardKL()), full)),
        ("log_prob_ref", lambda: policy_loss(using(Gae(), kl=LossKL()), full, old)),
    ):
        with pytest.raises(ValueError, match=rf"Batch\.{missing} is missing"):
            call()


def test_a_rollout_of_several_rows_counts_once_in_its_group():
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0])
    group = torch.tensor([0, 0, 0, 0])
    rollout = torch.tensor([7, 7, 3, 9])
    centred, deviation, size = adv.compare(rewards, group, rollout)
    assert centred.tolist() == pytest.approx([2 / 3, 2 / 3, -1 / 3, -1 / 3])
    assert deviation.tolist() == pytest.approx([torch.tensor([1.0, 0, 0]).std().item()] * 4)
    assert size.tolist() == [3, 3, 3, 3]


def test_rows_that_are_rollouts_are_compared_as_without_rollouts():
    rewards = torch.tensor([1.0, 0.5, 0.0, 0.25])
    group = torch.tensor([0, 1, 0, 1])
    alike = zip(
        adv.compare(rewards, group), adv.compare(rewards, group, torch.tensor([4, 2, 0, 1])), strict=True
    )
    assert all(torch.equal(one, other) for one, other in alike)
