"""Worked numbers: every value was computed outside this package with plain numpy, gradients by central differences."""

from dataclasses import replace
from math import log

import pytest
import torch

from tests.objective.worked_example import DELTA, F64, MASK, OLD, PPO, A, R, batch, gradient, loss, outlier, run
from tests.objective.worked_example import turn_means as means_of_turns
from workbench.algorithms import ALGORITHMS
from workbench.batch import pool
from workbench.objective import Algorithm, Pool, policy_loss, prepare, value_loss
from workbench.objective import aggregate as agg
from workbench.objective import stabilise as stab
from workbench.objective.advantage import Gae, Grpo, MeanOnly, Reward, Rloo, TurnGae
from workbench.objective.clip import LogClip, NoClip, Ppo
from workbench.objective.kl import estimate

TURN = replace(PPO, ratio=Pool("turn"))
ARITHMETIC = replace(PPO, ratio=Pool("turn", mean="arithmetic"))
UNIT = replace(TURN, clip=Ppo(gate="unit"))
GSPO = replace(PPO, ratio=Pool("sequence"), aggregate=agg.SeqMeanTokenMean())
SO = replace(ARITHMETIC, aggregate=agg.TurnMean())
B = outlier()
DUAL = DELTA.clone()
DUAL[1, 0] = log(5)
TURNS = means_of_turns(A)
NAMED = {
    "cispo": 0.181882, "sapo": -0.611459, "gmpo": -0.269367, "vespo": 0.131203, "loop": -0.228087, "minirl": 0.878348,
    "gspo": -0.250275,
}  # fmt: skip


def near(expected):
    return pytest.approx(expected, abs=6e-7)  # six printed digits


def summed(aggregate) -> Algorithm:
    return replace(PPO, aggregate=aggregate)


def stabilised(stabilise, algorithm: Algorithm = PPO) -> Algorithm:
    return replace(algorithm, stabilise=stabilise)


def closed(terms) -> torch.Tensor:
    return terms.active_low | terms.active_high


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
        (PPO, A, [-0.100470, -0.069180, 0, -0.033674, -0.037098, 0.058365, 0.057581, 0.095570, 0, -0.031686, 0.054545]),
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
        (TURN, A, [7, 8, 10], [0, 1, 2]),
        (UNIT, A, [7, 8, 9, 10], [0, 1, 2]),
        (UNIT, TURNS, [7, 8, 9, 10], [0, 1, 2]),
        (ARITHMETIC, A, [], [0, 1, 2]),
        (replace(ARITHMETIC, clip=Ppo(gate="unit")), A, [], [0, 1, 2]),
        (PPO, R, [8], [2]),
        (GSPO, R, [], []),
        (replace(GSPO, clip=Ppo(low=3e-4, high=4e-4)), R, [5, 6, 7, 8, 9, 10], [0, 1, 2, 3, 4]),
        (replace(GSPO, clip=LogClip(epsilon=0.4)), R, [8], [2]),
        (ALGORITHMS["minirl"], R, [8], [2]),
    ],
)
def test_tokens_that_the_clip_stopped(algorithm, advantages, low, high):
    terms = run(algorithm, advantages).terms
    assert terms.active_low[MASK].nonzero().flatten().tolist() == low
    assert terms.active_high[MASK].nonzero().flatten().tolist() == high
    assert not (closed(terms) | terms.out_of_range)[~MASK].any()
    assert not terms.dual.any()


def test_token_ratios_and_losses_of_ppo():
    terms = run(PPO).terms
    assert terms.ratio[MASK].tolist() == near(
        [1.105171, 0.951229, 2.013753, 0.740818, 1.020201, 1.284025, 0.904837, 1.051271, 0.272532, 1.161834, 1.0]
    )
    assert terms.token_loss[MASK].tolist() == near(
        [-1.105171, -0.760984, -0.72, -0.370409, -0.408081, 0.642013, 0.633386, 1.051271, 0.96, -0.348550, 0.6]
    )
    assert torch.equal(terms.log_ratio, torch.where(MASK, (OLD + DELTA) - OLD, 0))
    assert terms.out_of_range[MASK].nonzero().flatten().tolist() == [2, 3, 5, 8]


def test_dual_clip_bounds_the_loss_of_negative_advantages():
    terms = run(replace(PPO, clip=Ppo(dual=3.0)), delta=DUAL).terms
    assert float(terms.token_loss[1, 0]) == near(1.5)
    assert terms.dual.nonzero().tolist() == [[1, 0]]


# --- ratios


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
        (replace(GSPO, clip=LogClip(epsilon=0.4)), [1.034585, 0.991701]),  # each log-ratio is clipped before the mean
    ],
)
def test_sequence_ratios(algorithm, expected):
    assert run(algorithm, R).terms.ratio[:, 0].tolist() == near(expected)


def test_a_narrow_clip_of_sequences_and_the_means_of_turns():
    narrow = run(replace(GSPO, clip=Ppo(low=3e-4, high=4e-4)), R).terms
    assert narrow.token_loss[:, 0].tolist() == near([-1.0004, 0.499850])
    means = pool(A, batch().turn).mean
    assert means[:, 1:].flatten().tolist() == near([0.8, 0.45, -0.6, -0.625])


# --- group advantages


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
        n, total = len(rewards), torch.tensor(rewards, dtype=F64)
        rows = replace(batch().rows(torch.zeros(n, dtype=torch.int64)), group=torch.full((n,), 7), score=total)
        made = advantage.estimate(Reward(torch.zeros(n, 8, dtype=F64), total), rows)
        assert made.advantages[:, 0].tolist() == wanted


# --- stabilisers


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


@pytest.mark.parametrize(("algorithm", "delta", "expected"), [
    (PPO, DELTA, [0.727360, 0.751652, 0.967682]), (PPO, B, [6.039261, 0.751652, 8.034651]),
    (TURN, B, [6.039261, 0.751652, 8.034651]),  # ST-PPO takes the ratio of its trigger from tokens
])  # fmt: skip
def test_what_the_stabiliser_compares(algorithm, delta, expected):
    terms = run(stabilised(stab.RmsBatch(), algorithm), delta=delta).terms
    assert [terms.clipped_rms, terms.unclipped_rms, terms.stabiliser_ratio] == near(expected)
    assert terms.energy[[0, 2]].tolist() == [4, 7]
    if algorithm is TURN:
        assert terms.ratio[[0, 0, 1, 1], [0, 5, 0, 3]].tolist() == near([2.763966, 0.869358, 1.077884, 0.759572])


def toy_gradients(algorithm: Algorithm, delta):
    """Gradients of J along two directions in which token j (0..10) has the score vector (1, 0.1 j)."""
    theta = torch.zeros(2, dtype=F64, requires_grad=True)
    score = torch.zeros(2, 8, 2, dtype=F64)
    score[MASK] = torch.stack([torch.ones(11), torch.arange(11) / 10], dim=1).to(F64)
    log_prob = OLD + delta + score @ theta
    (clipped,) = torch.autograd.grad(policy_loss(algorithm, batch(), log_prob).taken, theta, retain_graph=True)
    (kept,) = torch.autograd.grad(policy_loss(algorithm, batch(), log_prob).loss, theta)
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
        (stab.CNorm(guard=0.01), DELTA, [0.075472, -1.557428], 1 / 0.080131),  # without its guard it amplifies
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


# --- GAE


def one_sequence(values, mask):
    m = torch.tensor([mask], dtype=torch.bool)
    v = torch.tensor([values], dtype=F64)
    z = torch.zeros_like(v)
    return replace(
        batch().rows(torch.tensor([0])), tokens=z.long(), mask=m, response=torch.ones_like(m), values=v,
        length=torch.tensor([len(mask)]), log_prob_old=z, log_prob_behaviour=z, advantages=None,
    )  # fmt: skip


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
    made = prepare(replace(PPO, advantage=advantage), one_sequence([0.2, 0.5, 0.9, 0.3, 0.4], [1, 1, 0, 1, 1]))
    assert made.advantages[0, [0, 1, 3, 4]].tolist() == near(expected)
    assert made.advantages[0, 2] == 0
    assert float(made.returns[0, 2]) == near(0 if observation is None else 0.9 + observation)
    if advantage.lam == 1:
        assert made.returns[0, [0, 1, 3, 4]].tolist() == near([1.0] * 4)


def test_turn_gae():
    # V(s_k) is the value at a turn's first token; values elsewhere are garbage, the outcome falls on the last token
    values, mask = [9, 0.3, 7, 9, 0.5, 9, 0.7, 9], [0, 1, 1, 0, 1, 0, 1, 1]
    made = prepare(replace(PPO, advantage=TurnGae()), one_sequence(values, mask))
    assert made.advantages[0].tolist() == near([0, 0.605127, 0.605127, 0, 0.4603, 0, 0.3, 0.3])
    assert made.returns[0].tolist() == near([0, 0.905127, 0.905127, 0, 0.9603, 0, 1, 1])


# --- KL, critic


def test_kl_estimators_of_the_drift():
    x = -DELTA[MASK]  # log p - log q with p the old policy, which sampled
    found = [float(estimate(name, x).mean()) for name in ("k1", "k2", "k3", "abs")]
    assert found == near([0.043636, 0.108200, 0.089607, DELTA[MASK].abs().mean().item()])


def test_clipped_value_loss():
    v, returns = torch.tensor([[0.9, 0.1]], dtype=F64), torch.tensor([[1.0, 0.0]], dtype=F64)
    made = replace(one_sequence([0.2, 0.3], [1, 1]), returns=returns)
    assert [float(value_loss(v, made, clip)) for clip in (0.5, None)] == near([0.025, 0.005])
