"""What must hold for every advantage estimator, for selection and for rewards."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from tests.objective.random_batches import F64, batches, per_token, poisoned
from tests.objective.worked_example import PPO
from workbench.batch import Batch, pool
from workbench.objective import KINDS, Algorithm, policy_loss, prepare, value_loss
from workbench.objective.advantage import (
    BatchMean,
    BatchZ,
    Bilevel,
    Gae,
    GroupBatchZ,
    Grpo,
    MeanOnly,
    ReinforcePp,
    Rloo,
    TurnGae,
    TurnMeanGae,
    gae,
    whiten,
)
from workbench.objective.kl import LossKL, NoKL, RewardKL, estimate
from workbench.objective.select import ZeroVariance

SKIPPING = [
    Gae(), Gae(gamma=0.9, lam=0.8, whiten="none"), TurnMeanGae(lam=0.7), TurnGae(), TurnGae(whiten="m"), Bilevel(),
    Bilevel(gamma=0.9, lam=0.8, whiten="none"), Grpo(), MeanOnly(), Rloo(), BatchMean(), BatchZ(), GroupBatchZ(),
    ReinforcePp(gamma=0.9),
]  # fmt: skip
GROUPS = [Grpo(), MeanOnly(), Rloo()]


def using(advantage, **slots) -> Algorithm:
    return replace(PPO, advantage=advantage, **slots)


def close(expected, rel: float = 1e-9, abs_: float = 1e-10):
    return pytest.approx(expected, rel=rel, abs=abs_)


def outcome_batch(scores: list[float], groups: list[int], mask: list[list[int]] | None = None) -> Batch:
    m = torch.tensor(mask or [[1, 1]] * len(scores), dtype=torch.bool)
    zeros = torch.zeros(m.shape, dtype=F64)
    return Batch(
        m.long(), m, m, m.sum(1), torch.tensor(groups), torch.arange(len(m)), torch.tensor(scores, dtype=F64),
        zeros, zeros, zeros, zeros,
    )  # fmt: skip


# --- all of them


@given(st.sampled_from(SKIPPING), batches(), st.sampled_from([math.nan, 1e30]))
def test_advantages_are_finite_and_nothing_off_the_mask_matters(advantage, drawn, garbage):
    batch, _ = drawn
    dirty = replace(batch, **{name: poisoned(x, batch.mask, garbage) for name, x in per_token(batch).items()})
    for kl in (NoKL(), RewardKL(beta=0.1)):
        a, b = prepare(using(advantage, kl=kl), batch), prepare(using(advantage, kl=kl), dirty)
        assert torch.equal(a.advantages, b.advantages)
        assert torch.all(a.advantages[~batch.mask] == 0)
        assert torch.isfinite(a.advantages).all()
        assert torch.equal(a.need("turn_id"), batch.turn)
        if advantage.needs_values:
            assert torch.equal(a.returns, b.returns)
        else:
            assert a.returns is None


@given(st.sampled_from([*SKIPPING, Gae(skip_obs=False, whiten="a")]), batches(rows=(2, 5)), st.randoms())
def test_padding_and_order_change_nothing(advantage, drawn, random):
    batch, _ = drawn
    index = torch.tensor(random.sample(range(len(batch.mask)), len(batch.mask)))
    tensors = vars(batch.rows(index)).items()
    wide = replace(batch, **{k: pad(x, (0, 2)) if x is not None and x.dim() == 2 else x for k, x in tensors})
    a, b = prepare(using(advantage), batch).advantages, prepare(using(advantage), wide).advantages
    assert torch.allclose(b[:, :-2], a[index], rtol=1e-8, atol=1e-10)
    assert torch.all(b[:, -2:] == 0)


def insert_observations(batch: Batch, positions: list[int]) -> Batch:
    """Put an observation column before each given position; policy tokens keep their order and turns may split."""
    t = batch.mask.shape[1]
    source = sorted([*range(t), *positions])
    fresh = torch.tensor([i > 0 and source[i] == source[i - 1] for i in range(len(source))])
    index = torch.tensor(source)
    tensors = {k: x[:, index] for k, x in vars(batch).items() if isinstance(x, Tensor) and x.dim() == 2}
    tensors["mask"] = tensors["mask"] & ~fresh
    return replace(batch, **tensors)


@given(
    st.sampled_from([Gae(lam=0.9, gamma=0.8), Gae(lam=0.9, whiten="none"), ReinforcePp(gamma=0.9)]),
    batches(), st.lists(st.integers(0, 13), max_size=4),
)  # fmt: skip
def test_skipping_gae_does_not_see_inserted_observations(advantage, drawn, positions):
    batch, _ = drawn
    wide = insert_observations(batch, [p for p in positions if p < batch.mask.shape[1]])
    a, b = prepare(using(advantage), batch), prepare(using(advantage), wide)
    assert torch.allclose(a.advantages[batch.mask], b.advantages[wide.mask], rtol=1e-9, atol=1e-12)
    if a.returns is not None:
        assert torch.allclose(a.returns[batch.mask], b.returns[wide.mask], rtol=1e-9)


# --- groups


@given(st.sampled_from(GROUPS), batches(rows=(2, 8)))
def test_group_advantages_sum_to_zero_unless_the_group_has_one_member(advantage, drawn):
    batch = replace(drawn[0], mask=torch.ones_like(drawn[0].mask))
    made = prepare(using(advantage), batch).advantages[:, 0]
    for g in batch.group.unique():
        members = batch.group == g
        if members.sum() == 1:
            assert torch.equal(made[members], batch.score[members])
        else:
            assert float(made[members].sum()) == close(0)
            if len(batch.score[members].unique()) == 1:
                assert torch.all(made[members] == 0)


@pytest.mark.parametrize("advantage", [*GROUPS, BatchZ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero_whatever_their_rounding(advantage, dtype):
    batch = outcome_batch([0.1] * 7, [3] * 7)
    made = prepare(using(advantage), replace(batch, score=batch.score.to(dtype), log_prob_old=batch.tokens.to(dtype)))
    assert torch.all(made.advantages == 0)
    assert made.advantages.dtype == dtype


@given(batches(rows=(2, 8)), st.floats(0.5, 4), st.floats(-3, 3))
def test_affine_maps_of_the_reward(drawn, a, b):
    batch = replace(drawn[0], mask=torch.ones_like(drawn[0].mask), group=torch.zeros_like(drawn[0].group))
    mapped = replace(batch, score=a * batch.score + b)
    for advantage, scale in ((Grpo(eps=1e-12), 1), (MeanOnly(), a), (Rloo(), a), (BatchZ(eps=1e-12), 1)):
        made, other = prepare(using(advantage), batch).advantages, prepare(using(advantage), mapped).advantages
        assert torch.allclose(other, scale * made, rtol=1e-6, atol=1e-6)


@given(batches(rows=(2, 8)))
def test_leave_one_out_is_the_mean_of_the_others(drawn):
    batch = replace(drawn[0], mask=torch.ones_like(drawn[0].mask), group=torch.zeros_like(drawn[0].group))
    made, n = prepare(using(Rloo()), batch).advantages[:, 0], len(batch.score)
    for i in range(n):
        others = (batch.score.sum() - batch.score[i]) / (n - 1)
        assert float(made[i]) == close(float(batch.score[i] - others))


def test_batch_z_leaves_out_sequences_without_a_policy_token():
    batch = outcome_batch([1.0, 0.0, 0.5, 100.0], [0, 0, 1, 1], [[1], [1], [1], [0]])
    made = prepare(using(BatchZ()), batch).advantages[:, 0]
    assert made.tolist() == close([1.0, -1.0, 0.0, 0.0], abs_=1e-5)
    one = prepare(using(BatchZ()), outcome_batch([0.7], [0])).advantages
    assert one.tolist() == [[0.7, 0.7]]


# --- whitening


@given(batches(rows=(1, 5), width=(2, 14)))
def test_whitened_entries_have_mean_zero_and_unbiased_variance_one(drawn):
    batch, _ = drawn
    white = whiten(batch.advantages, batch.mask)
    chosen = white[batch.mask]
    if len(chosen) < 2:
        assert not white.any(), "one entry has no variance"
        return
    assert float(chosen.mean()) == close(0)
    assert float(chosen.var(unbiased=True)) == close(1, rel=1e-4)
    assert torch.all(white[~batch.mask] == 0)


@given(batches(rows=(2, 5), width=(4, 14)))
def test_gae_is_whitened_over_the_mask_that_was_asked_for(drawn):
    batch, _ = drawn
    assume(batch.mask.sum() > 1)
    for kind in (Gae, TurnGae, Bilevel):
        raw, white = (prepare(using(kind(whiten=mode)), batch) for mode in ("none", "m"))
        assert torch.allclose(white.advantages, whiten(raw.advantages, batch.mask))
        assert torch.equal(white.returns, raw.returns)
    everywhere = prepare(using(Gae(skip_obs=False, whiten="none")), batch)
    over_all = whiten(everywhere.returns - batch.values, batch.response)
    made = prepare(using(Gae(skip_obs=False, whiten="a")), batch)
    assert torch.allclose(made.advantages, torch.where(batch.mask, over_all, 0))
    over_mask = prepare(using(Gae(skip_obs=False, whiten="m")), batch).advantages
    assert torch.allclose(over_mask, whiten(everywhere.advantages, batch.mask))
    assert torch.equal(made.returns, everywhere.returns)


# --- GAE


def loop_gae(rewards, values, gamma, lam):
    """The recursion of one sequence in plain Python."""
    out, running, following = [], 0.0, 0.0
    for r, v in zip(reversed(rewards), reversed(values), strict=True):
        running = r + gamma * following - v + gamma * lam * running
        following = v
        out.insert(0, running)
    return out


@given(batches(), st.sampled_from([(1.0, 0.0), (0.9, 0.0), (0.9, 0.7), (1.0, 1.0)]))
def test_gae_is_the_recursion_over_policy_tokens(drawn, discounts):
    gamma, lam = discounts
    batch, _ = drawn
    made = prepare(using(Gae(gamma=gamma, lam=lam, whiten="none")), batch)
    for i, mask in enumerate(batch.mask):
        values, n = batch.values[i][mask].tolist(), int(mask.sum())
        rewards = [0.0] * (n - 1) + [float(batch.score[i])] * (n > 0)
        assert made.advantages[i][mask].tolist() == close(loop_gae(rewards, values, gamma, lam))
        if lam == 0 and n > 1:  # one-step temporal differences
            assert float(made.advantages[i][mask][0]) == close(gamma * values[1] - values[0])


@given(batches())
def test_turn_gae_is_the_recursion_over_turns(drawn):
    batch, _ = drawn
    made = prepare(using(TurnGae(gamma=0.9, lam=0.7)), batch)
    full = prepare(using(TurnGae(gamma=1.0, lam=1.0)), batch)
    for i in range(len(batch.mask)):
        turns = int(batch.turn[i].max())
        first = [int((batch.turn[i] == k).nonzero()[0]) for k in range(1, turns + 1)]
        values = batch.values[i, first].tolist()
        rewards = [0.0] * (turns - 1) + [float(batch.score[i])] * (turns > 0)
        expected = loop_gae(rewards, values, 0.9, 0.7)
        assert made.advantages[i, first].tolist() == close(expected)
        assert made.returns[i, first].tolist() == close([a + v for a, v in zip(expected, values, strict=True)])
        assert full.advantages[i, first].tolist() == close([float(batch.score[i]) - v for v in values])
    means = pool(made.advantages, batch.turn)
    assert torch.allclose(made.advantages[batch.mask], means.mean.gather(1, batch.turn)[batch.mask])


@given(batches(), st.sampled_from(["none", "m"]))
def test_turn_mean_averages_token_gae_inside_each_turn(drawn, mode):
    batch, _ = drawn
    token = prepare(using(Gae(lam=0.8, whiten=mode)), batch)
    made = prepare(using(TurnMeanGae(lam=0.8, whiten=mode)), batch)
    for i, t in batch.mask.nonzero().tolist():
        assert float(made.advantages[i, t]) == close(
            float(token.advantages[i][batch.turn[i] == batch.turn[i, t]].mean())
        )
    assert torch.equal(made.returns, token.returns)


def loop_bilevel(rewards, values, ends, gamma, lam, gamma_turn):
    """Both levels of RAGEN's estimator for the policy tokens of one sequence, in numpy; `ends` marks last tokens."""
    rewards, values = np.array(rewards, dtype=float), np.array(values, dtype=float)
    last = np.flatnonzero(ends)
    between = loop_gae(rewards[last].tolist(), values[last].tolist(), gamma_turn, lam)
    rewards[last] = np.array(between) + values[last]
    out, start = [], 0
    for end in last:
        out += loop_gae(rewards[start : end + 1].tolist(), values[start : end + 1].tolist(), gamma, lam)
        start = end + 1
    return out


@given(batches(), st.sampled_from([0.0, 0.3]))
def test_bilevel_gae_is_turns_first_and_then_tokens(drawn, beta):
    batch, _ = drawn
    kl = RewardKL(beta=beta)
    made = prepare(using(Bilevel(gamma=0.9, lam=0.8, gamma_turn=0.7, whiten="none"), kl=kl), batch)
    penalty = beta * (batch.log_prob_old - batch.log_prob_ref).clamp(-20, 20)
    for i, mask in enumerate(batch.mask):
        turns, values = batch.turn[i][mask].tolist(), batch.values[i][mask].tolist()
        rewards = (-penalty[i][mask]).tolist()
        if rewards:
            rewards[-1] += float(batch.score[i])
        ends = [k == len(turns) - 1 or turns[k] != turns[k + 1] for k in range(len(turns))]
        expected = loop_bilevel(rewards, values, ends, 0.9, 0.8, 0.7) if turns else []
        assert made.advantages[i][mask].tolist() == close(expected)
        assert made.returns[i][mask].tolist() == close([a + v for a, v in zip(expected, values, strict=True)])
    assert torch.all(made.returns[~batch.mask] == 0)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_lies_beyond_the_end_of_a_stretch_does_not_reach_it(poison):
    steps, last = torch.tensor([[1, 1, 0, 1, 1]]).bool(), torch.tensor([[0, 0, 1, 0, 0]]).bool()
    rewards = torch.tensor([[0.0, 1.0, 0.0, poison, 1.0]], dtype=F64)
    values = torch.tensor([[0.5, 0.25, poison, poison, 0.5]], dtype=F64)
    made = gae(rewards, values, steps, 0.9, 0.8, last)[0].tolist()
    assert made[:3] == close([*loop_gae([0.0, 1.0], [0.5, 0.25], 0.9, 0.8), 0.0])
    assert not math.isfinite(made[3])
    assert made[4] == 0.5


def test_reinforce_pp_discounts_and_whitens_the_return():
    batch = outcome_batch([1.0, 0.0], [0, 1], [[1, 0, 1, 1], [1, 1, 0, 0]])
    made = prepare(using(ReinforcePp(gamma=0.5)), batch)
    raw = torch.tensor([[0.25, 0, 0.5, 1.0], [0, 0, 0, 0]], dtype=F64)
    assert torch.allclose(made.advantages, whiten(raw, batch.mask))


# --- rewards, KL, selection


def test_the_kl_of_the_reward_is_paid_at_policy_tokens_only():
    old, reference = torch.tensor([[[-1.0, -9.0, -2.0]], [[-1.5, -1.0, -1.0]]], dtype=F64)
    batch = replace(outcome_batch([1.0], [0], [[1, 0, 1]]), log_prob_old=old, log_prob_ref=reference)
    returns = prepare(using(Gae(whiten="none"), kl=RewardKL(beta=0.1)), batch).returns[0]
    assert returns.tolist() == close([1 - 0.05 + 0.1, 0, 1 + 0.1])
    assert prepare(using(MeanOnly(), kl=RewardKL(beta=0.1)), batch).advantages[0, 0] == close(1.05)
    without, in_loss = (prepare(using(Gae(), kl=kl), batch).advantages for kl in (NoKL(), LossKL(beta=9.0)))
    assert torch.equal(without, in_loss)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k1", 0.5, 1), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)), ("abs", 0.5, 1),
     ("k1+", 0.5, 0.5), ("k3+", math.exp(-0.5) - 0.5, 0.5)],
)  # fmt: skip
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
    assert estimate("k3", far, cap=math.inf).tolist() == close([math.exp(5) - 6, math.exp(20) - 21, 19 + math.exp(-20)])
    assert estimate("k1", far).tolist() == [-5.0, -20.0, 20.0]
    assert estimate("abs", far).tolist() == [5.0, 20.0, 20.0]
    assert estimate("k2", far).tolist() == [12.5, 200.0, 200.0]


def test_zero_variance_groups_are_dropped_and_groups_of_one_stay():
    batch = outcome_batch([1.0, 1.0, 0.1, 0.1, 0.1, 0.0, 1.0, 0.3], [5, 5, 2, 2, 2, 9, 9, 7])
    assert ZeroVariance().keep(batch.score, batch.group).tolist() == [False] * 5 + [True] * 3
    made = prepare(using(Grpo(), select=ZeroVariance()), batch)
    assert made.mask.any(1).tolist() == [False] * 5 + [True] * 3
    assert made.turn.any(1).tolist() == [False] * 5 + [True] * 3
    assert made.advantages[:5].abs().sum() == 0
    whitened = prepare(using(ReinforcePp(), select=ZeroVariance()), batch)
    assert whitened.advantages[whitened.mask].mean() == close(0), "dropped groups do not enter the mean"
    assert torch.equal(made.response, batch.response)
    negative = outcome_batch([-1.0, -1.0, -2.0, -1.0], [0, 0, 1, 1])
    assert ZeroVariance().keep(negative.score, negative.group).tolist() == [False, False, True, True]


# --- critic


@pytest.mark.parametrize("advantage", [kind() for kind in KINDS["advantage"].values()])
def test_a_critic_is_needed_exactly_where_values_are_read(advantage):
    batch = replace(outcome_batch([1.0, 0.0], [0, 0]), values=None)
    assert using(advantage).critic == advantage.needs_values
    if advantage.needs_values:
        with pytest.raises(ValueError, match=r"Batch\.values"):
            prepare(using(advantage), batch)
    else:
        assert prepare(using(advantage), batch).returns is None


def test_the_critic_is_trained_where_it_has_targets():
    assert Gae().critic_mask == "m"
    assert Gae(skip_obs=False).critic_mask == "a"
    assert TurnMeanGae(skip_obs=False).critic_mask == "a"
    assert TurnGae().critic_mask == "turn"
    assert Bilevel().critic_mask == Grpo().critic_mask == "m"


@pytest.mark.parametrize(("mask", "chosen"), [("m", [1, 2, 4]), ("a", [1, 2, 3, 4]), ("turn", [1, 4])])
def test_the_value_loss_is_a_mean_over_its_mask(mask, chosen):
    batch = outcome_batch([1.0], [0], [[0, 1, 1, 0, 1, 0]])
    g = torch.Generator().manual_seed(1)
    returns, old, values = torch.randn(3, 1, 6, generator=g, dtype=F64)
    response = torch.tensor([[0, 1, 1, 1, 1, 0]], dtype=torch.bool)
    batch = replace(batch, response=response, returns=returns, values=old)
    elsewhere = torch.ones(6, dtype=torch.bool)
    elsewhere[chosen] = False
    dirty = values.clone()
    dirty[:, elsewhere] = math.nan
    dirty.requires_grad_()
    loss = value_loss(dirty, batch, 0.2, mask)
    clipped = old + (values - old).clamp(-0.2, 0.2)
    worst = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)[0, chosen]
    assert float(loss.detach()) == close(0.5 * float(worst.mean()))
    loss.backward()
    assert torch.all(dirty.grad[:, elsewhere] == 0)
    halves = value_loss(values, batch, 0.2, mask, count=torch.tensor(2 * len(chosen)))
    assert float(halves) == close(0.25 * float(worst.mean()))
    whole = value_loss(values, batch, None, mask)
    assert float(whole) == close(0.5 * float(((values - returns) ** 2)[0, chosen].mean()))


def test_the_value_loss_of_an_empty_batch_is_zero():
    batch = replace(outcome_batch([1.0], [0], [[0, 0]]), returns=torch.zeros(1, 2, dtype=F64))
    assert float(value_loss(torch.ones(1, 2, dtype=F64), batch)) == 0
    assert float(value_loss(torch.ones(1, 2, dtype=F64), batch, count=torch.tensor(0))) == 0


def test_missing_parts_of_the_batch_are_named():
    batch = outcome_batch([1.0], [0])
    full, old = replace(batch, advantages=batch.values, returns=batch.values, log_prob_ref=None), batch.log_prob_old
    for missing, call in (
        ("advantages", lambda: policy_loss(using(Gae()), batch, old)),
        ("returns", lambda: value_loss(old, batch)),
        ("values", lambda: value_loss(old, replace(full, values=None))),
        ("log_prob_ref", lambda: prepare(using(Gae(), kl=RewardKL()), full)),
        ("log_prob_ref", lambda: policy_loss(using(Gae(), kl=LossKL()), full, old)),
    ):
        with pytest.raises(ValueError, match=rf"Batch\.{missing} is missing"):
            call()
