"""Worked numbers: every value was computed outside this package with plain numpy, gradients by central
differences.
"""

import math
from dataclasses import replace
from math import log

import pytest
import torch
from torch.nn.functional import pad

from sorl.algorithms import ALGORITHMS, resolve
from sorl.batch import pool
from sorl.objective import Algorithm, Pool, policy_loss, prepare, value_loss
from sorl.objective import aggregate as agg
from sorl.objective import stabilise as stab
from sorl.objective.advantage import Gae, Grpo, MeanOnly, Reward, Rloo, TurnGae
from sorl.objective.clip import Bapo, Gamma, LogClip, NoClip, Ppo, SgClip, TvMask
from sorl.objective.kl import Lld, PositiveLow, estimate
from sorl.objective.ratio import Guard, IcePop, Tis
from sorl.objective.select import EarlyStop, MeanKL, ReverseTurns, TrajectoryKL, Uncertain
from tests.objective.batches import (
    DELTA,
    F64,
    MASK,
    OLD,
    PPO,
    A,
    R,
    gradient,
    loss,
    plain,
    ragged,
    run,
    worked,
)

TURN = replace(PPO, ratio=Pool("turn"))
ARITHMETIC = replace(PPO, ratio=Pool("turn", mean="arithmetic"))
UNIT = replace(TURN, clip=Ppo(gate="unit"))
GSPO = replace(PPO, ratio=Pool("sequence"), aggregate=agg.SeqMeanTokenMean())
SO = replace(ARITHMETIC, aggregate=agg.TurnMean())
B = DELTA.clone()
DUAL = DELTA.clone()
TURNS = A.clone()
B[0, 2] = 3.0  # one token's ratio is e^3
DUAL[1, 0] = log(5)
for row, columns in ((0, [0, 1, 2]), (0, [5, 6]), (1, [0, 1]), (1, [3, 4, 5, 6])):
    TURNS[row, columns] = A[row, columns].mean()
BEHAVIOUR = OLD - torch.tensor(
    [[0, 0.1, -0.2, 50, 50, 1, 0.05, 0], [0, 0.3, 50, -0.1, 0, 0.9, -0.4, 0]], dtype=F64
)
NAMED = {
    "cispo": 0.181882,
    "sapo": -0.611459,
    "gmpo": -0.269367,
    "vespo": 0.131203,
    "loop": -0.228087,
    "minirl": 0.878348,
    "gspo": -0.250275,
}


def near(expected):
    return pytest.approx(expected, abs=6e-7)  # six printed digits


def summed(aggregate) -> Algorithm:
    return replace(PPO, aggregate=aggregate)


def stabilised(stabilise, algorithm: Algorithm = PPO) -> Algorithm:
    return replace(algorithm, stabilise=stabilise)


@pytest.mark.parametrize(
    ("algorithm", "advantages", "delta", "expected"),
    [
        (PPO, A, DELTA, 0.015771),
        (summed(agg.TokenSum()), A, DELTA, 0.173476),
        (summed(agg.SeqMeanTokenSum()), A, DELTA, 0.086738),
        (summed(agg.SeqMeanTokenSumNorm(horizon=8.0)), A, DELTA, 0.010842),
        (summed(agg.SeqMeanTokenSumNorm(horizon=16.0)), A, DELTA, 0.005421),
        (summed(agg.SeqMeanTokenMean()), A, DELTA, -0.041621),
        (PPO, A, DUAL, 0.184678),
        (replace(PPO, clip=Ppo(dual=3.0)), A, DUAL, 0.093769),
        (TURN, A, DELTA, -0.032439),
        (replace(TURN, aggregate=agg.SeqMeanTokenMean()), A, DELTA, -0.090776),
        (UNIT, A, DELTA, -0.033542),
        (UNIT, TURNS, DELTA, -0.033542),  # a unit gate needs only the turn's mean advantage
        (replace(UNIT, aggregate=agg.TurnMean()), A, DELTA, -0.051120),
        (replace(UNIT, aggregate=agg.TurnMean()), TURNS, DELTA, -0.051120),
        (replace(UNIT, aggregate=agg.TurnMeanGlobal()), A, DELTA, -0.051120),
        (replace(UNIT, aggregate=agg.TurnMeanGlobal()), TURNS, DELTA, -0.051120),
        (ARITHMETIC, A, DELTA, -0.016420),
        (replace(ARITHMETIC, clip=Ppo(gate="unit")), A, DELTA, -0.016420),
        (replace(SO, clip=Ppo(gate="unit")), A, DELTA, -0.038735),
        (PPO, R, DELTA, -0.174221),
        (summed(agg.SeqMeanTokenMean()), R, DELTA, -0.243327),
        (summed(agg.SeqMeanTokenSumNorm(horizon=8)), R, DELTA, -0.119777),
        (stabilised(stab.RmsBatch()), A, DELTA, 0.015771),
        (PPO, A, B, 0.015771),
        (stabilised(stab.RmsBatch()), A, B, 0.001963),
        (stabilised(stab.RmsBatch(tau=5.0)), A, B, 0.001963),
        (stabilised(stab.RmsBatch(), TURN), A, B, -0.004037),
        (stabilised(stab.RmsTurn(tau=5.0)), A, B, 0.011808),
        (PPO, R, B, -0.174221),
        (stabilised(stab.RmsSeq()), R, B, 0.248932),
        *((ALGORITHMS[name], R, DELTA, number) for name, number in NAMED.items()),
        (GSPO, R, DELTA, -0.335889),
        (stabilised(stab.KlClipFrac(), SO), TURNS, DELTA, -0.006941),
        (stabilised(stab.KlClipFrac(form="batch"), SO), TURNS, DELTA, -0.006151),
    ],
)
def test_losses(algorithm, advantages, delta, expected):
    assert loss(algorithm, advantages, delta) == near(expected)


@pytest.mark.parametrize(
    ("algorithm", "advantages", "expected"),
    [
        (
            PPO,
            A,
            [
                -0.100470,
                -0.069180,
                0,
                -0.033674,
                -0.037098,
                0.058365,
                0.057581,
                0.095570,
                0,
                -0.031686,
                0.054545,
            ],
        ),
        (TURN, A, [0, 0, 0, -0.035565, -0.035565, 0.058794, 0.058794, *[-0.005179] * 4]),
        (UNIT, A, [0, 0, 0, -0.035565, -0.035565, 0.058794, 0.058794, 0, 0, 0, 0]),
        (UNIT, TURNS, [0, 0, 0, -0.035565, -0.035565, 0.058794, 0.058794, 0, 0, 0, 0]),
    ],
)
def test_gradients_are_zero_where_the_clip_is_active(algorithm, advantages, expected):
    assert gradient(algorithm, advantages) == near(expected)


@pytest.mark.parametrize(
    ("algorithm", "advantages", "low", "high"),
    [
        (PPO, A, [8], [2]),
        (PPO, R, [8], [2]),
        (ALGORITHMS["minirl"], R, [8], [2]),
        (TURN, A, [7, 8, 10], [0, 1, 2]),
        (UNIT, A, [7, 8, 9, 10], [0, 1, 2]),
        (UNIT, TURNS, [7, 8, 9, 10], [0, 1, 2]),
        (ARITHMETIC, A, [], [0, 1, 2]),
        (replace(ARITHMETIC, clip=Ppo(gate="unit")), A, [], [0, 1, 2]),
        (GSPO, R, [], []),
        (replace(GSPO, clip=LogClip(epsilon=0.4)), R, [8], [2]),
        (replace(GSPO, clip=Ppo(low=3e-4, high=4e-4)), R, [5, 6, 7, 8, 9, 10], [0, 1, 2, 3, 4]),
    ],
)
def test_tokens_that_the_clip_stopped(algorithm, advantages, low, high):
    terms = run(algorithm, advantages).terms
    assert terms.active_low[MASK].nonzero().flatten().tolist() == low
    assert terms.active_high[MASK].nonzero().flatten().tolist() == high
    assert not (terms.active_low | terms.active_high | terms.out_of_range)[~MASK].any()
    assert not terms.dual.any()


def test_token_ratios_and_losses_of_ppo():
    terms = run(PPO).terms
    ratios = [
        1.105171,
        0.951229,
        2.013753,
        0.740818,
        1.020201,
        1.284025,
        0.904837,
        1.051271,
        0.272532,
        1.161834,
        1.0,
    ]
    losses = [
        -1.105171,
        -0.760984,
        -0.72,
        -0.370409,
        -0.408081,
        0.642013,
        0.633386,
        1.051271,
        0.96,
        -0.348550,
        0.6,
    ]
    assert (terms.ratio[MASK].tolist(), terms.token_loss[MASK].tolist()) == (near(ratios), near(losses))
    assert torch.equal(terms.log_ratio, torch.where(MASK, (OLD + DELTA) - OLD, 0))
    assert terms.out_of_range[MASK].nonzero().flatten().tolist() == [2, 3, 5, 8]


def test_dual_clip_bounds_the_loss_of_negative_advantages():
    terms = run(replace(PPO, clip=Ppo(dual=3.0)), delta=DUAL).terms
    assert float(terms.token_loss[1, 0]) == near(1.5)
    assert terms.dual.nonzero().tolist() == [[1, 0]]


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


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (GSPO, [1.098560, 0.853565]),
        (replace(GSPO, ratio=Pool("sequence", mean="product")), [1.599994, 0.386741]),
        # each log-ratio is clipped before the mean
        (replace(GSPO, clip=LogClip(epsilon=0.4)), [1.034585, 0.991701]),
    ],
)
def test_sequence_ratios(algorithm, expected):
    assert run(algorithm, R).terms.ratio[:, 0].tolist() == near(expected)


def test_a_narrow_clip_of_sequences_and_the_means_of_turns():
    narrow = run(replace(GSPO, clip=Ppo(low=3e-4, high=4e-4)), R).terms
    assert narrow.token_loss[:, 0].tolist() == near([-1.0004, 0.499850])
    means = pool(A, worked().turn).mean
    assert means[:, 1:].flatten().tolist() == near([0.8, 0.45, -0.6, -0.625])


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
    for rewards, wanted in (((1.0, 0.0, 0.5, 0.0), near(expected)), ((0.1, 0.1, 0.1), [0.0, 0.0, 0.0])):
        n = len(rewards)
        total = torch.tensor(rewards, dtype=F64)
        rows = replace(
            worked().rows(torch.zeros(n, dtype=torch.int64)), group=torch.full((n,), 7), score=total
        )
        made = advantage.estimate(Reward(torch.zeros(n, 8, dtype=F64), total), rows)
        assert made.advantages[:, 0].tolist() == wanted


@pytest.mark.parametrize(
    ("stabilise", "advantages", "delta", "factors"),  # of the two sequences
    [
        (stab.RmsBatch(), A, DELTA, 1.0),
        (stab.RmsBatch(), A, B, 0.124461),
        (stab.RmsBatch(tau=5.0), A, B, 0.124461),
        (stab.RmsBatch(smooth=True), A, B, 3 / 8.034651),
        (stab.RmsBatch(tau=5.0, smooth=True), A, B, 5 / 8.034651),
        (stab.RmsTurn(tau=5.0), A, B, 0.748745),  # one scalar, the mean of the turns' factors
        (stab.RmsTurn(tau=13.0), A, B, 1.0),
        (stab.RmsTurn(tau=12.7), A, B, (3 / 12.701449 + 8) / 11),
        (stab.RmsSeq(), R, B, (0.072294, 1.0)),
        (stab.RmsSeq(smooth=True), R, B, (3 / 13.832375, 1.0)),
        (stab.RmsSeq(tau=1.0), R[:1].expand(2, 8), B, (0.072294, 1.0)),  # the second's 0.897949 stays below
    ],
)
def test_factors_of_the_batch_or_of_each_sequence(stabilise, advantages, delta, factors):
    terms = run(stabilised(stabilise), advantages, delta).terms
    per_row = factors if isinstance(factors, tuple) else (factors, factors)
    assert terms.factor[:, 0].tolist() == near(per_row)
    assert torch.equal(terms.factor, terms.factor[:, :1].expand_as(MASK))
    assert isinstance(factors, tuple) or terms.stabiliser_factor == near(factors)


def test_what_the_stabiliser_compares():
    for algorithm, delta, expected in (
        (PPO, DELTA, [0.727360, 0.751652, 0.967682]),
        (PPO, B, [6.039261, 0.751652, 8.034651]),
        (TURN, B, [6.039261, 0.751652, 8.034651]),  # ST-PPO takes the ratio of its trigger from tokens
    ):
        terms = run(stabilised(stab.RmsBatch(), algorithm), delta=delta).terms
        assert [terms.clipped_rms, terms.unclipped_rms, terms.stabiliser_ratio] == near(expected)
        assert terms.energy[[0, 2]].tolist() == [4, 7]
    assert terms.ratio[[0, 0, 1, 1], [0, 5, 0, 3]].tolist() == near([2.763966, 0.869358, 1.077884, 0.759572])


def toy_gradients(algorithm: Algorithm, delta):
    """Gradients of J along two directions in which token j (0..10) has the score vector (1, 0.1 j)."""
    theta = torch.zeros(2, dtype=F64, requires_grad=True)
    score = torch.zeros(2, 8, 2, dtype=F64)
    score[MASK] = torch.stack([torch.ones(11), torch.arange(11) / 10], dim=1).to(F64)
    log_prob = OLD + delta + score @ theta
    (clipped,) = torch.autograd.grad(
        policy_loss(algorithm, worked(), log_prob).taken, theta, retain_graph=True
    )
    (kept,) = torch.autograd.grad(policy_loss(algorithm, worked(), log_prob).loss, theta)
    return -kept, -clipped


def test_the_clipping_bias_and_how_it_grows_with_an_outlier_that_ppo_does_not_see():
    kept, bias = toy_gradients(PPO, DELTA)
    assert bias.tolist() == near([0.080110, -0.001816])
    assert kept.tolist() == near([0.006048, -0.124798])
    assert (kept + bias).tolist() == near([0.086158, -0.126614])
    assert float(bias.norm()) == near(0.080131)
    assert float(torch.cosine_similarity(kept + bias, bias, dim=0)) == near(0.581174)
    whole, _ = toy_gradients(replace(PPO, clip=NoClip()), DELTA)
    assert whole.tolist() == near([0.086158, -0.126614])
    unmoved, grown = toy_gradients(PPO, B)
    assert unmoved.tolist() == near([0.006048, -0.124798])
    assert grown.tolist() == near([1.065844, 0.195330])


@pytest.mark.parametrize(
    ("rule", "delta", "scaled", "factor"),
    [
        (stab.CNorm(), B, [0.005581, -0.115170], 1 / 1.083595),
        (stab.CNorm(), DELTA, [0.006048, -0.124798], 1.0),
        # without its guard it amplifies
        (stab.CNorm(guard=0.01), DELTA, [0.075472, -1.557428], 1 / 0.080131),
        (stab.Subtract(alpha=-1.0), B, [1.071892, 0.070532], None),  # the unclipped gradient
        (stab.Subtract(alpha=0.5), B, [0.006048 - 0.5 * 1.065844, -0.124798 - 0.5 * 0.195330], None),
    ],
)
def test_rules_on_the_gradient(rule, delta, scaled, factor):
    kept, bias = toy_gradients(PPO, delta)
    (made,), by = rule.on_gradient([-kept], [-bias])
    assert (-made).tolist() == near(scaled)
    assert by == (factor and pytest.approx(factor, rel=1e-5))


def test_cnorm_takes_the_norm_over_all_parameters():
    gradients = [torch.tensor([8.0]), torch.tensor([[1.0, 2.0]])]
    bias = [torch.tensor([3.0]), torch.tensor([[0.0, -4.0]])]
    scaled, factor = stab.CNorm().on_gradient(gradients, bias)
    assert factor == pytest.approx(0.2)
    assert torch.cat([g.flatten() for g in scaled]).tolist() == pytest.approx([1.6, 0.2, 0.4])


@pytest.mark.parametrize(
    ("stabilise", "penalty"),
    [
        (stab.KlClipFrac(), 0.031794),
        (stab.KlClipFrac(form="batch"), 0.032584),
        (stab.KlClipFrac(form="batch", estimator="k2", weight=2.0), 2 * 4 / 11 * 0.108200),
    ],
)
def test_kl_times_clip_fraction(stabilise, penalty):
    terms = run(stabilised(stabilise, SO), TURNS).terms
    assert float(terms.penalty) == near(penalty)
    assert float(terms.policy_loss) == near(-0.038735)
    by_turn = torch.tensor([[2, 2, 2, 0, 0, 3, 3, 0], [3, 3, 0, 1.5, 1.5, 1.5, 1.5, 0]], dtype=F64) / 12
    assert (terms.token_loss * by_turn).sum(1).tolist() == near([-0.678115, 0.600645])


def one_sequence(values, mask):
    m = torch.tensor([mask], dtype=torch.bool)
    v = torch.tensor([values], dtype=F64)
    given = {"response": torch.ones_like(m), "values": v, "score": torch.ones(1, dtype=F64)}
    return plain(torch.zeros_like(v), m, **given, advantages=None)


@pytest.mark.parametrize(
    ("advantage", "expected", "observation"),
    [
        (Gae(whiten="none"), [0.8, 0.5, 0.7, 0.6], None),
        (Gae(skip_obs=False, whiten="none"), [0.8, 0.5, 0.7, 0.6], 0.1),
        (Gae(lam=0.95, whiten="none"), [0.714675, 0.4365, 0.67, 0.6], None),
        (Gae(lam=0.95), [0.896382, -1.383268, 0.530269, -0.043382], None),
        (Gae(lam=0.95, skip_obs=False, whiten="none"), [0.712941, 0.434675, 0.67, 0.6], 0.0365),
    ],
)
def test_token_gae_and_the_critics_target_at_the_observation(advantage, expected, observation):
    made = prepare(
        replace(PPO, advantage=advantage), one_sequence([0.2, 0.5, 0.9, 0.3, 0.4], [1, 1, 0, 1, 1])
    )
    assert made.advantages[0, [0, 1, 3, 4]].tolist() == near(expected)
    assert made.advantages[0, 2] == 0
    assert float(made.returns[0, 2]) == near(0 if observation is None else 0.9 + observation)
    if advantage.lam == 1:
        assert made.returns[0, [0, 1, 3, 4]].tolist() == near([1.0] * 4)


def test_turn_gae():
    # V(s_k) is the value at a turn's first token; values elsewhere are garbage, the outcome falls on the last
    # token
    values = [9, 0.3, 7, 9, 0.5, 9, 0.7, 9]
    mask = [0, 1, 1, 0, 1, 0, 1, 1]
    made = prepare(replace(PPO, advantage=TurnGae()), one_sequence(values, mask))
    assert made.advantages[0].tolist() == near([0, 0.605127, 0.605127, 0, 0.4603, 0, 0.3, 0.3])
    assert made.returns[0].tolist() == near([0, 0.905127, 0.905127, 0, 0.9603, 0, 1, 1])


def test_kl_estimators_of_the_drift():
    x = -DELTA[MASK]  # log p - log q with p the old policy, which sampled
    found = [float(estimate(name, x).mean()) for name in ("k1", "k2", "k3", "abs")]
    assert found == near([0.043636, 0.108200, 0.089607, DELTA[MASK].abs().mean().item()])


def test_clipped_value_loss():
    v = torch.tensor([[0.9, 0.1]], dtype=F64)
    returns = torch.tensor([[1.0, 0.0]], dtype=F64)
    made = replace(one_sequence([0.2, 0.3], [1, 1]), returns=returns)
    assert [float(value_loss(v, made, clip)) for clip in (0.5, None)] == near([0.025, 0.005])


def test_gspo_token_differs_from_gspo_only_where_advantages_vary():
    wide, token = (replace(ALGORITHMS[name], clip=ALGORITHMS["grpo"].clip) for name in ("gspo", "gspo-token"))
    assert gradient(wide, R) == near([-0.109856] * 5 + [0.035565] * 6)
    assert gradient(token, R) == near(gradient(wide, R))
    assert loss(wide, A) == near(loss(token, A))
    assert gradient(wide, A) != near(gradient(token, A))


def test_vespo_weights_and_its_fold_of_the_sampler():
    weights = run(ALGORITHMS["vespo"], R).terms.token_loss / (-R * (OLD + DELTA))
    assert weights[0, 0].item() == near(0.423169)
    assert weights[1, 0].item() == near(0.197211)
    folded = loss(ALGORITHMS["vespo"], R, log_prob_behaviour=BEHAVIOUR)
    assert folded != near(0.131203)
    unfolded = replace(ALGORITHMS["vespo"], clip=Gamma(against="old"))
    assert loss(unfolded, R, log_prob_behaviour=BEHAVIOUR) == near(0.131203)


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (Lld(weight=1.0), 0),
        (Lld(weight=1.0, gate="turn"), 0.027273),
        (Lld(gate="turn"), 0.2 * 0.027273),
        (PositiveLow(weight=1.0), 0.07),
        (PositiveLow(weight=1.0, threshold=0.8), 0.06),
    ],
)
def test_the_terms_of_llds_and_sapo_search(term, expected):
    assert float(run(replace(ALGORITHMS["grpo"], kl=term), R).terms.kl_loss) == near(expected)


def test_sapo_search_pushes_on_the_first_update_only_with_threshold_one():
    zero = torch.zeros_like(A)
    for threshold, expected in ((1.0, -0.1 / 5), (0.8, 0.0)):
        term = replace(ALGORITHMS["sapo-search"], kl=PositiveLow(weight=0.1, threshold=threshold))
        assert gradient(term, zero + torch.tensor([[0.0], [-1e-12]], dtype=F64), zero)[:5] == near(
            [expected] * 5
        )


def test_bapo_share_is_met_at_the_start():
    ratio = torch.where(MASK, DELTA.exp(), 0)
    advantages = torch.where(MASK, R, 0)
    clip = Bapo(low=0.8, high=1.2)
    sums = clip.weights(ratio, advantages)
    assert clip.search(sums) == (0.8, 1.2)
    good = (ratio[0][MASK[0]].clamp(max=1.2)).sum()
    bad = 0.5 * ratio[1][MASK[1]].clamp(min=0.8).sum()
    assert (float(good), float(bad)) == (near(5.017420), near(3.100984))
    lowest_bound = len(sums) - 3  # 0.8, 0.85 and 0.9 come after the upper bounds
    assert (float(sums[0]), float(sums[lowest_bound])) == (near(float(good)), near(float(bad)))


def test_bapo_raises_the_lower_bound_first_and_then_the_upper_one():
    advantages = torch.tensor([1.0, -1.0], dtype=F64)
    for clip, ratio, bounds in (
        (Bapo(share=0.5), 5.0, (0.6, 1.2)),  # 1.2 against 0.6
        # raising the floor makes the bad side heavier, so the search ends at the upper bound's end
        (Bapo(share=0.7), 1.7, (0.9, 3.0)),
        (Bapo(share=0.65, low_max=0.6), 9.0, (0.6, 1.2)),
        (Bapo(share=0.72, low_max=0.6), 9.0, (0.6, 1.55)),
    ):
        sums = clip.weights(torch.tensor([ratio, 0.1], dtype=F64), advantages)
        assert clip.search(sums) == pytest.approx(bounds)
    nothing = torch.zeros(0, dtype=F64)
    assert Bapo().search(Bapo().weights(nothing, nothing)) == (0.6, 1.2)


def test_tis_and_icepop_on_the_sampler_of_the_example():
    made = worked(R, log_prob_behaviour=BEHAVIOUR)
    assert float(Tis().weights(made)[MASK].mean()) == near(1.172744)
    for correction, hit in ((Tis(), 2.0), (IcePop(low=0.5, high=2.0), 0.0)):
        terms = policy_loss(replace(ALGORITHMS["tis"], correction=correction), made, OLD + DELTA).terms
        assert torch.equal(
            terms.correction[MASK], torch.where(terms.corrected, hit, (OLD - BEHAVIOUR).exp())[MASK]
        )
        assert terms.corrected is not None
        assert terms.corrected[MASK].nonzero().flatten().tolist() == [3, 9]
        assert terms.correction[MASK][[3, 9]].tolist() == [hit, hit]
    raw = Tis(cap=None)
    assert float(raw.weights(made)[MASK].max()) == near(math.e)
    assert not raw.acts(made).any()


def test_dppo_takes_mask_and_ratio_against_the_sampler():
    new, old, mu = torch.tensor([[[0.75, 0.5]], [[0.5, 0.4]], [[0.6, 0.8]]], dtype=F64).log()
    made = plain(old, log_prob_behaviour=mu, advantages=torch.tensor([[1.0, -1.0]], dtype=F64))

    def weights(**options):
        """d loss / d log-prob, two tokens averaged, and which tokens lost it."""
        leaf = new.clone().requires_grad_()
        out = policy_loss(replace(ALGORITHMS["dppo"], clip=TvMask(**options)), made, leaf)
        (found,) = torch.autograd.grad(out.loss, leaf)
        return (-2 * found[0] * made.advantages[0]).tolist(), out.terms.ratio[0].tolist()

    # p_theta - mu = .15 and -.3, p_theta - p_old = .25 and .1, theta / mu = 1.25 and .625, theta / old = 1.5
    # and 1.25
    assert weights() == (near([1.25, 0]), near([1.25, 0.625]))
    assert weights(against="recompute") == (near([0, 0.625]), near([1.25, 0.625]))
    assert weights(against="old") == (near([0, 1.25]), near([1.5, 1.25]))
    assert weights(cap=1.2) == (near([1.2, 0]), near([1.25, 0.625]))
    assert ALGORITHMS["dppo"].clip == TvMask()


FAR = [
    # l - log pi_old, log pi_old - log mu, and the ratio to the sampler: exp of their sum within +-20
    (-50.0, 30.0, math.exp(-20)),
    (-50.0, 45.0, math.exp(-5)),
    (50.0, -49.0, math.e),
    (-25.0, 0.0, math.exp(-20)),
    (30.0, 30.0, math.exp(20)),
    (0.5, 0.25, math.exp(0.75)),
]


@pytest.mark.parametrize(("moved", "gap", "ratio"), FAR)
def test_dppos_ratio_against_the_sampler_is_clamped_once_and_as_a_whole(
    moved: float, gap: float, ratio: float
):
    old = torch.full((1, 1), -60.0, dtype=F64)
    advantages = torch.ones_like(old)
    batch = plain(old, log_prob_behaviour=old - gap, advantages=advantages)
    for against in ("behaviour", "recompute"):
        # nothing is masked: the probabilities, from about 0 to above 1, are no subject here
        clip = TvMask(low=1.0, high=1.0, against=against)
        leaf = (old + moved).requires_grad_()
        out = policy_loss(replace(ALGORITHMS["dppo"], clip=clip), batch, leaf)
        (gradient,) = torch.autograd.grad(out.loss, leaf)
        assert float(out.terms.ratio) == pytest.approx(ratio, rel=1e-9)
        assert float(-gradient) == pytest.approx(min(ratio, 20.0), rel=1e-9)


@pytest.mark.parametrize(("moved", "gap"), [case[:2] for case in FAR])
def test_vespo_clamps_both_parts_of_its_weight_as_its_authors_do(moved: float, gap: float):
    old = torch.full((1, 1), -60.0, dtype=F64)
    batch = plain(old, log_prob_behaviour=old - gap, advantages=torch.ones_like(old))
    leaf = (old + moved).requires_grad_()
    (gradient,) = torch.autograd.grad(policy_loss(ALGORITHMS["vespo"], batch, leaf).loss, leaf)
    log_weight = min(max(moved, -20.0), 20.0) + min(max(gap, -20.0), 20.0)
    weight = math.exp(min(max(log_weight, math.log(1e-8)), 20.0))
    assert float(-gradient) == pytest.approx(math.exp(3) * weight**2 * math.exp(-3 * weight), rel=1e-9)


def test_cispo_bounds_as_trl_has_them():
    trl = replace(ALGORITHMS["cispo"], clip=SgClip(low=1.0, high=4.0))
    terms = run(trl, R, torch.where(MASK, 3.0, DELTA)).terms
    assert terms.out_of_range[MASK].all(), "every weight is clamped"
    assert not terms.active_high.any(), "and no gradient stopped"
    low = run(trl, R, torch.where(MASK, -3.0, DELTA)).terms
    assert not low.out_of_range.any()


def test_a_guard_by_position_centres_the_tokens_of_an_eighth_and_leaves_one_alone():
    entering = Guard(bins="position").entering(torch.where(MASK, DELTA, 0), worked(R))[MASK]
    place = torch.tensor([0, 1, 3, 4, 6, 0, 1, 2, 4, 5, 6])  # 5 and 6 policy tokens
    for eighth in place.unique():
        there = place == eighth
        alone = eighth in (2, 3, 5)
        assert float(entering[there].mean()) == near(float(DELTA[MASK][there]) if alone else 0)


@pytest.mark.parametrize("moved", [0.0, 39.0])
def test_reinforce_has_the_gradient_of_the_log_prob_whatever_the_ratio(moved):
    assert gradient(ALGORITHMS["reinforce"], A, DELTA + moved) == near((-A[MASK] / 11).tolist())


def test_dr_grpo_divides_by_the_tokens_that_an_episode_may_have_and_never_by_the_width_of_a_worked():
    by_sixteen = ALGORITHMS["dr-grpo"].within(8)
    assert loss(by_sixteen, R) == near(-0.119777)
    made = worked(R)
    wide = replace(
        made, **{n: pad(x, (0, 20)) for n, x in vars(made).items() if x is not None and x.dim() == 2}
    )
    assert float(policy_loss(by_sixteen, wide, pad(OLD + DELTA, (0, 20))).loss) == near(-0.119777)
    assert loss(ALGORITHMS["dr-grpo"].within(84), R) == near(-0.119777 * 8 / 84)
    given = resolve("dr-grpo", {"aggregate": {"horizon": 4.0}}).within(84)
    assert loss(given, R) == near(-0.119777 * 2)
    with pytest.raises(ValueError, match="needs a horizon"):
        loss(ALGORITHMS["dr-grpo"], R)


def test_the_uncertainty_filter_keeps_the_groups_that_disagree_most():
    def kept(scores: list[list[int]], *options) -> list[int]:
        group = torch.tensor([g for g, each in enumerate(scores) for _ in each])
        keep = Uncertain(*options).keep(torch.tensor([s for each in scores for s in each], dtype=F64), group)
        return group[keep].unique().tolist()

    scores = [[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
    for options, groups in (
        ((), [0]),
        (("top_k", 0.5), [0, 2]),
        (("top_k", 1.0), [0, 2]),
        (("top_p", 0.5), [0]),
        (("top_p", 0.9), [0, 2]),
    ):
        assert kept(scores, *options) == groups, "groups without spread are never kept"
    assert kept([[1, 1], [0, 0]]) == kept([[1], [0]]) == []


def test_early_stops():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    moved = torch.tensor([[-1.0, -2.0, 99.0], [-3.0, 99.0, 99.0]])
    epoch = [(moved, mask)]
    assert not EarlyStop().reached(epoch)
    assert MeanKL(1.3).reached(epoch)  # the mean is 2
    assert not MeanKL(1.34).reached(epoch)
    assert not MeanKL(1.3).skips(moved, mask)
    assert TrajectoryKL(2.9).skips(moved, mask)  # 3 and 3
    assert TrajectoryKL(2.9).skips(-moved, mask), "whichever way the policy moved"
    assert not TrajectoryKL(3.0).skips(moved, mask)
    assert not TrajectoryKL(0.1).skips(moved * torch.tensor([[1.0], [-1.0]]), mask), (
        "the signs of trajectories cancel"
    )
    assert not TrajectoryKL(2.9).reached(epoch)


# Turns updated one after the other, the last first.


def test_the_mean_of_a_group_and_the_whitening_are_those_of_the_sequences_that_have_the_turn():
    """Two groups of three; rewards 1, 0, 0 and 1, 1, 0; turn 2 exists in the first two sequences of each
    group.

    Turn 1: 2/3, -1/3, -1/3, 1/3, 1/3, -2/3 over their std sqrt(4/15). Turn 2: 1/2, -1/2, 0, 0 over sqrt(1/6).
    Turn 3 exists once: it is its own mean.
    """
    three = [1, 0, 1, 0, 1]
    two = [1, 0, 1, 0, 0]
    one = [1, 0, 0, 0, 0]
    mask = torch.tensor([three, two, one, two, two, one]).bool()
    made = plain(
        torch.zeros(6, 5, dtype=torch.float64),
        mask,
        group=torch.tensor([0, 0, 0, 1, 1, 1]),
        score=torch.tensor([1.0, 0, 0, 1, 1, 0]),
    )
    found = prepare(ALGORITHMS["seeupo"], made).advantages
    assert found is not None
    thirds = torch.tensor([2, -1, -1, 1, 1, -2]) / 3 / (4 / 15) ** 0.5
    assert found[:, 0].tolist() == pytest.approx(thirds.tolist())
    assert found[:, 2].tolist() == pytest.approx([0.5 * 6**0.5, -0.5 * 6**0.5, 0, 0, 0, 0])
    assert found[:, 4].tolist() == [0] * 6


def test_the_weight_of_the_turns_before_is_clamped_by_the_mean_of_a_turn_and_not_by_its_tokens():
    """Turn 2: d = -50, 13, 13, 13 and 10.8. Their mean is -0.04; of d clamped to +-10 it would be 6."""
    old = torch.full((1, 7), -60.0, dtype=F64)
    mask = torch.tensor([[True, False, True, True, True, True, True]])
    moved = torch.tensor([[0.0, 0, -50, 13, 13, 13, 10.8]], dtype=F64)
    batch = plain(old, mask, advantages=torch.ones_like(old))
    passes = iter([old, old + moved])
    parts = ReverseTurns().parts(batch, lambda part: next(passes))
    last = next(parts)
    assert last.need("advantages")[0, 2:].tolist() == [1.0] * 5
    first = next(parts)
    assert float(first.need("advantages")[0, 0]) == pytest.approx(math.exp(-0.04), rel=1e-9)


@pytest.mark.parametrize("aggregate", [agg.TurnMean(), agg.TurnMeanGlobal()])
def test_a_part_counts_the_turns_that_it_has_and_not_their_index(aggregate):
    made, new = ragged(3)
    made = prepare(ALGORITHMS["seeupo"], made)
    part = next(ReverseTurns().parts(made, lambda part: part.log_prob_old))
    algorithm = replace(ALGORITHMS["turn-ppo"], aggregate=aggregate)
    renumbered = replace(part, turn_id=part.mask.long())
    a, b = (policy_loss(algorithm, x, new[part.trajectory]).loss for x in (part, renumbered))
    assert torch.allclose(a, b)
