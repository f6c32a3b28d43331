"""Worked numbers: every value was computed outside this package with plain numpy, gradients by central differences."""

from dataclasses import replace
from math import log

import pytest
import torch

from tests.objective.worked_example import (
    DELTA,
    F64,
    MASK,
    OLD,
    PPO,
    A,
    R,
    batch,
    gradient,
    loss,
    outlier,
    run,
    turn_means,
)
from workbench.batch import pool
from workbench.objective import Algorithm, Pool, clipped_loss, entropy, policy_loss, prepare, value_loss
from workbench.objective.advantage import Gae, Grpo, MeanOnly, Reward, Rloo, TurnGae
from workbench.objective.aggregate import (
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
    TurnMean,
    TurnMeanGlobal,
)
from workbench.objective.clip import LogClip, NoClip, Ppo, Recip
from workbench.objective.kl import estimate
from workbench.objective.rollout_correction import IcePop, Tis
from workbench.objective.stabilise import CNorm, KlClipFrac, RmsBatch, RmsSeq, RmsTurn, Subtract

TURN = replace(PPO, ratio=Pool("turn"))
ARITHMETIC = replace(PPO, ratio=Pool("turn", mean="arithmetic"))
UNIT = replace(TURN, clip=Ppo(gate="unit"))
GSPO = replace(PPO, ratio=Pool("sequence"), aggregate=SeqMeanTokenMean())


def near(expected):
    return pytest.approx(expected, abs=6e-7)  # six printed digits


# --- token PPO


def test_token_ratios_and_losses_of_ppo():
    terms = run(PPO).terms
    assert terms.ratio[MASK].tolist() == near(
        [1.105171, 0.951229, 2.013753, 0.740818, 1.020201, 1.284025, 0.904837, 1.051271, 0.272532, 1.161834, 1.0]
    )
    assert terms.token_loss[MASK].tolist() == near(
        [-1.105171, -0.760984, -0.72, -0.370409, -0.408081, 0.642013, 0.633386, 1.051271, 0.96, -0.348550, 0.6]
    )
    assert torch.equal(terms.log_ratio, torch.where(MASK, (OLD + DELTA) - OLD, 0))


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (TokenMean(), 0.015771),
        (TokenSum(), 0.173476),
        (SeqMeanTokenSum(), 0.086738),
        (SeqMeanTokenSumNorm(horizon=8.0), 0.010842),
        (SeqMeanTokenSumNorm(horizon=16.0), 0.005421),
        (SeqMeanTokenMean(), -0.041621),
    ],
)
def test_aggregations_of_ppo(aggregate, expected):
    assert loss(replace(PPO, aggregate=aggregate)) == near(expected)


def test_gradient_of_ppo_is_zero_at_clipped_tokens():
    assert gradient(PPO) == near(
        [-0.100470, -0.069180, 0, -0.033674, -0.037098, 0.058365, 0.057581, 0.095570, 0, -0.031686, 0.054545]
    )


def test_clip_flags_of_ppo():
    terms = run(PPO).terms
    low, high = terms.active_low[MASK].tolist(), terms.active_high[MASK].tolist()
    assert [i for i, x in enumerate(high) if x] == [2]
    assert [i for i, x in enumerate(low) if x] == [8]
    assert [i for i, x in enumerate(terms.out_of_range[MASK].tolist()) if x] == [2, 3, 5, 8]
    assert not terms.active_low[~MASK].any()
    assert not terms.out_of_range[~MASK].any()
    assert not terms.dual.any()


def test_dual_clip_bounds_the_loss_of_negative_advantages():
    delta = DELTA.clone()
    delta[1, 0] = log(5)
    assert loss(PPO, delta=delta) == near(0.184678)
    dual = run(replace(PPO, clip=Ppo(dual=3.0)), delta=delta)
    assert float(dual.loss) == near(0.093769)
    assert float(dual.terms.token_loss[1, 0]) == near(1.5)
    assert dual.terms.dual.nonzero().tolist() == [[1, 0]]


# --- turn ratios


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        ("geometric", [1.284025, 0.869358, 1.077884, 0.759572]),
        ("arithmetic", [1.356718, 0.880510, 1.094431, 0.871409]),
        ("product", [2.117, 0.755784, 1.161834, 0.332871]),
    ],
)
@pytest.mark.parametrize("grad", ["shared", "token"])
def test_turn_ratios(mean, grad, expected):
    ratio = run(replace(PPO, ratio=Pool("turn", mean=mean, grad=grad))).terms.ratio
    assert ratio[[0, 0, 1, 1], [0, 5, 0, 3]].tolist() == near(expected)
    assert torch.equal(ratio[0, :3], ratio[0, :1].expand(3))
    assert torch.equal(ratio[1, 3:7], ratio[1, 3:4].expand(4))
    assert torch.all(ratio[~MASK] == 1)


def test_turn_means_of_the_advantages():
    means = pool(A, batch().turn).mean
    assert means[0, 1:].tolist() == near([0.8, 0.45])
    assert means[1, 1:].tolist() == near([-0.6, -0.625])


def test_turn_ppo_with_a_token_gate():
    out = run(TURN)
    assert float(out.loss) == near(-0.032439)
    assert (out.terms.active_low | out.terms.active_high).sum() == 6
    assert loss(replace(TURN, aggregate=SeqMeanTokenMean())) == near(-0.090776)
    tail = [-0.005179] * 4
    assert gradient(TURN) == near([0, 0, 0, -0.035565, -0.035565, 0.058794, 0.058794, *tail])


@pytest.mark.parametrize("advantages", [A, turn_means(A)], ids=["token", "turn mean"])
def test_turn_ppo_with_a_unit_gate_needs_only_the_turns_mean_advantage(advantages):
    out = run(UNIT, advantages)
    closed = out.terms.active_low | out.terms.active_high
    assert float(out.loss) == near(-0.033542)
    assert closed.sum() == 7
    assert [bool(closed[i, t]) for i, t in ((0, 0), (0, 5), (1, 0), (1, 3))] == [True, False, False, True]
    assert gradient(UNIT, advantages) == near([0, 0, 0, -0.035565, -0.035565, 0.058794, 0.058794, 0, 0, 0, 0])
    assert loss(replace(UNIT, aggregate=TurnMean()), advantages) == near(-0.051120)
    assert loss(replace(UNIT, aggregate=TurnMeanGlobal()), advantages) == near(-0.051120)


@pytest.mark.parametrize("gate", ["token", "unit"])
def test_turn_ppo_with_arithmetic_ratios(gate):
    out = run(replace(ARITHMETIC, clip=Ppo(gate=gate)))
    assert float(out.loss) == near(-0.016420)
    assert (out.terms.active_low | out.terms.active_high).sum() == 3
    if gate == "unit":
        algorithm = replace(ARITHMETIC, clip=Ppo(gate=gate), aggregate=TurnMean())
        assert loss(algorithm) == near(-0.038735)


# --- group advantages and sequence ratios


def group_advantages(advantage, rewards=(1.0, 0.0, 0.5, 0.0)):
    n = len(rewards)
    total = torch.tensor(rewards, dtype=F64)
    made = batch()
    rows = replace(made.rows(torch.zeros(n, dtype=torch.int64)), group=torch.full((n,), 7), score=total)
    return advantage.estimate(Reward(torch.zeros(n, 8, dtype=F64), total), rows).advantages[:, 0].tolist()


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (Grpo(), [1.305580, -0.783348, 0.261116, -0.783348]),
        (Grpo(eps=1e-4), [1.305310, -0.783186, 0.261062, -0.783186]),
        (MeanOnly(), [0.625, -0.375, 0.125, -0.375]),
        (Rloo(), [0.833333, -0.5, 0.166667, -0.5]),
    ],
)
def test_group_advantages(advantage, expected):
    assert group_advantages(advantage) == near(expected)
    assert group_advantages(advantage, (0.1, 0.1, 0.1)) == [0.0, 0.0, 0.0]


def test_grpo_losses():
    assert loss(PPO, R) == near(-0.174221)
    assert loss(replace(PPO, aggregate=SeqMeanTokenMean()), R) == near(-0.243327)
    assert loss(replace(PPO, aggregate=SeqMeanTokenSumNorm(horizon=8)), R) == near(-0.119777)
    terms = run(PPO, R).terms
    assert (terms.active_low | terms.active_high).sum() == 2


def test_sequence_ratios_of_gspo():
    out = run(GSPO, R)
    assert out.terms.ratio[:, 0].tolist() == near([1.098560, 0.853565])
    assert float(out.loss) == near(-0.335889)
    assert not (out.terms.active_low | out.terms.active_high).any()
    assert gradient(GSPO, R) == near([-0.109856] * 5 + [0.035565] * 6)
    product = run(replace(GSPO, ratio=Pool("sequence", mean="product")), R).terms.ratio
    assert product[:, 0].tolist() == near([1.599994, 0.386741])
    narrow = run(replace(GSPO, clip=Ppo(low=3e-4, high=4e-4)), R)
    assert narrow.terms.token_loss[:, 0].tolist() == near([-1.0004, 0.499850])
    assert float(narrow.loss) == near(-0.250275)
    assert torch.equal(narrow.terms.active_low | narrow.terms.active_high, MASK)


# --- stabilisers


def test_the_stabiliser_is_idle_without_an_outlier():
    terms = run(replace(PPO, stabilise=RmsBatch())).terms
    assert [terms.clipped_rms, terms.unclipped_rms, terms.stabiliser_ratio] == near([0.727360, 0.751652, 0.967682])
    assert terms.stabiliser_factor == 1.0
    assert terms.energy[[0, 2]].tolist() == [4, 7]
    assert loss(replace(PPO, stabilise=RmsBatch())) == near(0.015771)


@pytest.mark.parametrize("tau", [3.0, 5.0])
def test_the_stabiliser_fires_on_an_outlier(tau):
    out = run(replace(PPO, stabilise=RmsBatch(tau=tau)), delta=outlier())
    terms = out.terms
    assert [terms.clipped_rms, terms.unclipped_rms, terms.stabiliser_ratio] == near([6.039261, 0.751652, 8.034651])
    assert terms.stabiliser_factor == near(0.124461)
    assert float(out.loss) == near(0.001963)
    assert loss(PPO, delta=outlier()) == near(0.015771)
    smooth = run(replace(PPO, stabilise=RmsBatch(tau=tau, smooth=True)), delta=outlier())
    assert smooth.terms.stabiliser_factor == near(tau / 8.034651)


def test_st_ppo_takes_the_ratio_of_its_trigger_from_tokens():
    out = run(replace(TURN, stabilise=RmsBatch()), delta=outlier())
    assert out.terms.ratio[[0, 0, 1, 1], [0, 5, 0, 3]].tolist() == near([2.763966, 0.869358, 1.077884, 0.759572])
    assert out.terms.stabiliser_ratio == near(8.034651)
    assert float(out.loss) == near(-0.004037)


def test_the_stabiliser_per_turn():
    out = run(replace(PPO, stabilise=RmsTurn(tau=5.0)), delta=outlier())
    assert out.terms.stabiliser_factor == near(0.748745)
    assert torch.all(out.terms.factor == out.terms.factor[0, 0])  # one scalar, the mean of the turns' factors
    assert float(out.loss) == near(0.011808)
    assert run(replace(PPO, stabilise=RmsTurn(tau=13.0)), delta=outlier()).terms.stabiliser_factor == 1.0
    at_the_ratio = run(replace(PPO, stabilise=RmsTurn(tau=12.7)), delta=outlier()).terms.stabiliser_factor
    assert at_the_ratio == near((3 / 12.701449 + 8) / 11)


def test_the_stabiliser_per_sequence():
    out = run(replace(PPO, stabilise=RmsSeq()), R, outlier())
    assert out.terms.factor[:, 0].tolist() == near([0.072294, 1.0])
    assert float(out.loss) == near(0.248932)
    assert loss(PPO, R, outlier()) == near(-0.174221)
    smooth = run(replace(PPO, stabilise=RmsSeq(smooth=True)), R, outlier())
    assert smooth.terms.factor[:, 0].tolist() == near([3 / 13.832375, 1.0])
    second = run(replace(PPO, stabilise=RmsSeq(tau=1.0)), R[:1].expand(2, 8), outlier())
    assert second.terms.factor[:, 0].tolist() == near([0.072294, 1.0])  # the second sequence's 0.897949 stays below


def toy_gradients(algorithm: Algorithm, delta):
    """Gradients of J along two directions in which token j (0..10) has the score vector (1, 0.1 j)."""
    theta = torch.zeros(2, dtype=F64, requires_grad=True)
    score = torch.zeros(2, 8, 2, dtype=F64)
    score[MASK] = torch.stack([torch.ones(11), torch.arange(11) / 10], dim=1).to(F64)
    log_prob = OLD + delta + score @ theta
    (clipped,) = torch.autograd.grad(clipped_loss(algorithm, batch(), log_prob), theta, retain_graph=True)
    (kept,) = torch.autograd.grad(policy_loss(algorithm, batch(), log_prob).loss, theta)
    return -kept, -clipped


def test_the_clipping_bias():
    kept, bias = toy_gradients(PPO, DELTA)
    assert bias.tolist() == near([0.080110, -0.001816])
    assert kept.tolist() == near([0.006048, -0.124798])
    assert (kept + bias).tolist() == near([0.086158, -0.126614])
    assert float(bias.norm()) == near(0.080131)
    assert float(torch.cosine_similarity(kept + bias, bias, dim=0)) == near(0.581174)
    whole, _ = toy_gradients(replace(PPO, clip=NoClip()), DELTA)
    assert whole.tolist() == near([0.086158, -0.126614])


def test_the_clipping_bias_grows_with_an_outlier_that_ppo_does_not_see():
    kept, bias = toy_gradients(PPO, outlier())
    assert kept.tolist() == near([0.006048, -0.124798])
    assert bias.tolist() == near([1.065844, 0.195330])
    assert (kept + bias).tolist() == near([1.071892, 0.070532])
    (scaled,), factor = CNorm().on_gradient([-kept], [-bias])
    assert (-scaled).tolist() == near([0.005581, -0.115170])
    assert 1 / factor == near(1.083595)


def test_cnorm_without_its_guard_amplifies_a_small_bias():
    kept, bias = toy_gradients(PPO, DELTA)
    (scaled,), factor = CNorm().on_gradient([-kept], [-bias])
    assert factor == 1.0
    assert (-scaled).tolist() == near([0.006048, -0.124798])
    (scaled,), _ = CNorm(guard=0.01).on_gradient([-kept], [-bias])
    assert (-scaled).tolist() == near([0.075472, -1.557428])


def test_cnorm_takes_the_norm_over_all_parameters():
    gradients = [torch.tensor([8.0]), torch.tensor([[1.0, 2.0]])]
    bias = [torch.tensor([3.0]), torch.tensor([[0.0, -4.0]])]
    scaled, factor = CNorm().on_gradient(gradients, bias)
    assert factor == pytest.approx(0.2)
    assert scaled[0].tolist() == pytest.approx([1.6])
    assert scaled[1][0].tolist() == pytest.approx([0.2, 0.4])


def test_subtract_with_alpha_minus_one_restores_the_unclipped_gradient():
    kept, bias = toy_gradients(PPO, outlier())
    (restored,), factor = Subtract(alpha=-1.0).on_gradient([-kept], [-bias])
    assert (-restored).tolist() == near([1.071892, 0.070532])
    assert factor is None
    (halved,), _ = Subtract(alpha=0.5).on_gradient([-kept], [-bias])
    assert halved.tolist() == pytest.approx((-kept + 0.5 * bias).tolist())


# --- the penalty form


SO = replace(ARITHMETIC, aggregate=TurnMean())


def test_kl_times_clip_fraction_per_sequence():
    surrogate = run(SO, turn_means(A)).terms.token_loss
    by_sequence = [(surrogate[i] * turn_weights).sum().item() for i, turn_weights in enumerate(per_turn_weights())]
    assert by_sequence == near([-0.678115, 0.600645])
    out = run(replace(SO, stabilise=KlClipFrac()), turn_means(A))
    assert float(out.terms.penalty) == near(0.031794)
    assert float(out.loss) == near(-0.006941)
    assert float(out.terms.policy_loss) == near(-0.038735)


def per_turn_weights():
    first = torch.tensor([1 / 6, 1 / 6, 1 / 6, 0, 0, 1 / 4, 1 / 4, 0], dtype=F64)
    second = torch.tensor([1 / 4, 1 / 4, 0, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 0], dtype=F64)
    return first, second


def test_kl_times_clip_fraction_of_the_batch():
    out = run(replace(SO, stabilise=KlClipFrac(form="batch")), turn_means(A))
    assert float(out.terms.penalty) == near(0.032584)
    assert float(out.loss) == near(-0.006151)
    k2 = run(replace(SO, stabilise=KlClipFrac(form="batch", estimator="k2", weight=2.0)), turn_means(A))
    assert float(k2.terms.penalty) == near(2 * 4 / 11 * 0.108200)


# --- GAE


def one_sequence(values, mask):
    made = batch().rows(torch.tensor([0]))
    m = torch.tensor([mask], dtype=torch.bool)
    v = torch.tensor([values], dtype=F64)
    z = torch.zeros_like(v)
    return replace(
        made, tokens=z.long(), mask=m, response=torch.ones_like(m), length=torch.tensor([len(mask)]), values=v,
        log_prob_old=z, log_prob_behaviour=z, advantages=None, score=torch.tensor([1.0], dtype=F64),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (Gae(whiten="none"), [0.8, 0.5, 0.7, 0.6]),
        (Gae(skip_obs=False, whiten="none"), [0.8, 0.5, 0.7, 0.6]),
        (Gae(lam=0.95, whiten="none"), [0.714675, 0.4365, 0.67, 0.6]),
        (Gae(lam=0.95), [0.896382, -1.383268, 0.530269, -0.043382]),
        (Gae(lam=0.95, skip_obs=False, whiten="none"), [0.712941, 0.434675, 0.67, 0.6]),
    ],
)
def test_token_gae(advantage, expected):
    made = prepare(replace(PPO, advantage=advantage), one_sequence([0.2, 0.5, 0.9, 0.3, 0.4], [1, 1, 0, 1, 1]))
    assert made.advantages[0, [0, 1, 3, 4]].tolist() == near(expected)
    assert made.advantages[0, 2] == 0
    if advantage.lam == 1:
        assert made.returns[0, [0, 1, 3, 4]].tolist() == near([1.0] * 4)


@pytest.mark.parametrize(("lam", "expected"), [(1.0, 0.1), (0.95, 0.0365)])
def test_gae_without_skipping_gives_the_critic_a_target_at_observations(lam, expected):
    advantage = Gae(lam=lam, skip_obs=False, whiten="none")
    made = prepare(replace(PPO, advantage=advantage), one_sequence([0.2, 0.5, 0.9, 0.3, 0.4], [1, 1, 0, 1, 1]))
    assert float(made.returns[0, 2]) - 0.9 == near(expected)


def test_turn_gae():
    # V(s_k) is the value at a turn's first token; values elsewhere are garbage, the outcome falls on the last token
    values, mask = [9, 0.3, 7, 9, 0.5, 9, 0.7, 9], [0, 1, 1, 0, 1, 0, 1, 1]
    made = prepare(replace(PPO, advantage=TurnGae()), one_sequence(values, mask))
    assert made.advantages[0].tolist() == near([0, 0.605127, 0.605127, 0, 0.4603, 0, 0.3, 0.3])
    assert made.returns[0].tolist() == near([0, 0.905127, 0.905127, 0, 0.9603, 0, 1, 1])


# --- other clips and corrections


def test_gmpo_clips_each_log_ratio_before_the_mean():
    out = run(replace(GSPO, clip=LogClip(epsilon=0.4)), R)
    assert out.terms.ratio[:, 0].tolist() == near([1.034585, 0.991701])
    assert float(out.loss) == near(-0.269367)
    assert out.terms.active_high.nonzero().tolist() == [[0, 2]]
    assert out.terms.active_low.nonzero().tolist() == [[1, 4]]


def test_loop_clips_reciprocally():
    assert loss(replace(PPO, clip=Recip(epsilon=0.1), aggregate=SeqMeanTokenMean()), R) == near(-0.228087)


BEHAVIOUR = OLD - torch.tensor([[0, 0.1, -0.2, 50, 50, 1, 0.05, 0], [0, 0.3, 50, -0.1, 0, 0.9, -0.4, 0]], dtype=F64)


def test_truncated_and_masked_importance_sampling():
    made = batch(log_prob_behaviour=BEHAVIOUR)
    tis = Tis(cap=2.0).weights(made)
    assert float(tis[MASK].mean()) == near(1.172744)
    assert (tis[MASK] == 2.0).nonzero().flatten().tolist() == [3, 9]
    pop = IcePop(low=0.5, high=2.0).weights(made)
    assert (pop[MASK] == 0).nonzero().flatten().tolist() == [3, 9]
    kept = pop[MASK] > 0
    assert torch.equal(pop[MASK][kept], tis[MASK][kept])


# --- KL, critic, entropy


def test_kl_estimators_of_the_drift():
    x = -DELTA[MASK]  # log p - log q with p the old policy, which sampled
    assert float(estimate("k1", x).mean()) == near(0.043636)
    assert float(estimate("k2", x).mean()) == near(0.108200)
    assert float(estimate("k3", x).mean()) == near(0.089607)
    assert float(estimate("abs", x).mean()) == near(DELTA[MASK].abs().mean().item())


def test_clipped_value_loss():
    v = torch.tensor([[0.9, 0.1]], dtype=F64)
    made = replace(
        one_sequence([0.2, 0.3], [1, 1]),
        values=torch.tensor([[0.2, 0.3]], dtype=F64),
        returns=torch.tensor([[1.0, 0.0]], dtype=F64),
    )
    assert float(value_loss(v, made, 0.5)) == near(0.025)
    assert float(value_loss(v, made, None)) == near(0.005)


def test_entropy_of_a_softmax():
    assert float(entropy(torch.tensor([2.0, 1.0, 0.0], dtype=F64))) == near(0.832396)
    excluded = torch.tensor([2.0, 1.0, 0.0, -torch.inf], dtype=F64, requires_grad=True)
    surprise = entropy(excluded)
    assert float(surprise.detach()) == near(0.832396)
    surprise.backward()
    assert excluded.grad.isfinite().all()
