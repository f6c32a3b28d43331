"""What must hold for every pipeline, on random batches."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from tests.objective.random_batches import (
    AGGREGATES,
    CLIPS,
    CORRECTIONS,
    F64,
    FACTORS,
    KLS,
    MEANS,
    PESSIMISTIC,
    RATIOS,
    STABILISERS,
    WEIGHTED,
    algorithms,
    batches,
    per_token,
    poisoned,
    solved,
)
from tests.objective.worked_example import PPO, plain
from workbench.batch import Batch, turn_ids
from workbench.objective import Algorithm, Normaliser, Pool, policy_loss, statistics
from workbench.objective.aggregate import SeqMeanTokenMean, TokenMean, TurnMean
from workbench.objective.clip import Hard, LogClip, NoClip, Ppo, Recip, Soft
from workbench.objective.kl import LossKL, NoKL
from workbench.objective.rollout_correction import IcePop, Mis, NoCorrection, Tis
from workbench.objective.stabilise import AdvNorm, KlClipFrac, NoStabiliser, RmsBatch, RmsSeq, RmsTurn
from workbench.spec import InputError


def close(expected, rel: float = 1e-9):
    return pytest.approx(expected, rel=rel, abs=1e-12)


def bias(algorithm: Algorithm, batch: Batch, log_prob: Tensor, **given_: object) -> Tensor:
    leaf = log_prob.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(policy_loss(algorithm, batch, leaf, **given_).taken, leaf)
    return gradient


# --- mask


@given(algorithms(), batches(), st.sampled_from([math.nan, math.inf, -1e30]))
def test_nothing_off_the_mask_matters(algorithm, drawn, garbage):
    batch, log_prob = drawn
    dirty = replace(batch, **{name: poisoned(x, batch.mask, garbage) for name, x in per_token(batch).items()})
    dirty = replace(dirty, sentence=torch.where(batch.mask, batch.sentence, 77))
    a, grad_a = solved(algorithm, batch, log_prob)
    b, grad_b = solved(algorithm, dirty, poisoned(log_prob, batch.mask, garbage))
    assert torch.equal(a.loss, b.loss)
    assert torch.equal(grad_a, grad_b)
    assert torch.all(grad_a[~batch.mask] == 0)
    for name, x in vars(a.terms).items():
        if x is not None:
            inside = batch.mask if x.dim() == 2 else torch.tensor(True)
            assert torch.equal(torch.where(inside, x, 0), torch.where(inside, getattr(b.terms, name), 0)), name
    for name in ("active_low", "active_high", "out_of_range", "dual", "log_ratio", "token_loss"):
        assert torch.all(getattr(b.terms, name)[~batch.mask] == 0)


# --- on-policy point


ON_POLICY = [s for s in STABILISERS if not s.kind.startswith("kl")]


@given(algorithms(kl=KLS[:1], correction=CORRECTIONS[:1], stabilise=ON_POLICY, aggregate=MEANS), batches())
def test_on_policy_every_ratio_is_one_nothing_is_clipped_and_a_unit_shares_its_credit(algorithm, drawn):
    batch = replace(drawn[0], log_prob_behaviour=drawn[0].log_prob_old)
    out, gradient = solved(algorithm, batch, batch.log_prob_old)
    terms, ratio = out.terms, algorithm.ratio
    assert torch.all(terms.ratio == 1)
    assert not (terms.active_low | terms.active_high | terms.out_of_range | terms.dual).any()
    assert torch.all(terms.factor == 1)
    assert terms.clipped_rms == 0
    rms = algorithm.stabilise.kind.startswith("rms")
    assert (terms.stabiliser_ratio, terms.stabiliser_factor) == ((0.0, 1.0) if rms else (None, None))
    assert float(terms.penalty) == 0
    assert float(out.taken.detach()) == 0
    weights = algorithm.aggregate.weights(batch, Normaliser.of(batch))
    credit = torch.where(batch.mask, -weights * batch.advantages, 0)
    if ratio.grad == "shared" and type(algorithm.clip) not in map(type, WEIGHTED):
        credit = (ratio.units(batch).total if ratio.mean == "product" else ratio.units(batch).mean)(credit)
    assert torch.allclose(gradient, credit, rtol=1e-9, atol=1e-12)


# --- degenerate units


def single_token_turns(batch: Batch) -> Batch:
    """Keep every other policy position at most, so that each turn has one token."""
    return replace(batch, mask=batch.mask & (torch.arange(batch.mask.shape[1]) % 2 == 0))


def one_turn(batch: Batch) -> Batch:
    """Each sequence is one stretch of policy tokens."""
    return replace(batch, mask=batch.response)


def one_token(batch: Batch) -> Batch:
    mask = batch.mask & (batch.mask.cumsum(1) == 1)
    return replace(batch, mask=mask, placebo=mask.long())


@pytest.mark.parametrize(
    ("narrowed", "levels"),
    [(single_token_turns, ["token", "turn"]), (one_turn, ["turn", "sequence"]),
     (one_token, ["token", "turn", "sequence", "sentence", "placebo"])],
)  # fmt: skip
@given(algorithms(ratio=[r for r in RATIOS if r.level == "turn"]), batches(scale=0.4))
def test_levels_whose_units_are_the_same_tokens_coincide(narrowed, levels, algorithm, drawn):
    batch, log_prob = narrowed(drawn[0]), drawn[1]
    a, *others = (
        solved(replace(algorithm, ratio=replace(algorithm.ratio, level=level)), batch, log_prob) for level in levels
    )
    for b in others:
        assert torch.allclose(a[0].loss, b[0].loss, rtol=1e-9, atol=1e-12)
        assert torch.allclose(a[1], b[1], rtol=1e-7, atol=1e-9 * float(a[1].abs().max()) + 1e-15)


@given(algorithms(aggregate=[SeqMeanTokenMean()], correction=CORRECTIONS[:1]), batches(scale=0.3))
def test_with_one_turn_the_mean_over_turns_is_the_mean_over_tokens(algorithm, drawn):
    batch, log_prob = one_turn(drawn[0]), drawn[1]
    a, grad_a = solved(algorithm, batch, log_prob)
    b, grad_b = solved(replace(algorithm, aggregate=TurnMean()), batch, log_prob)
    assert torch.allclose(a.loss, b.loss, rtol=1e-9, atol=1e-12)
    assert torch.allclose(grad_a, grad_b, rtol=1e-7, atol=1e-12)


# --- ordering


@given(st.sampled_from(["turn", "sequence", "sentence"]), st.sampled_from(["shared", "token"]), batches(scale=0.8))
def test_ratios_are_ordered(level, grad, drawn):
    batch, log_prob = drawn

    def ratio(mean: str) -> Tensor:
        return policy_loss(replace(PPO, ratio=Pool(level, mean, grad)), batch, log_prob).terms.ratio

    geometric, arithmetic, product = ratio("geometric"), ratio("arithmetic"), ratio("product")
    token = policy_loss(PPO, batch, log_prob).terms.ratio
    ids = {"turn": batch.turn, "sequence": batch.mask.long(), "sentence": batch.sentence}[level]
    for i, t in batch.mask.nonzero().tolist():
        unit = token[i][batch.mask[i] & (ids[i] == ids[i, t])]
        assert unit.min() <= geometric[i, t] * (1 + 1e-12)
        assert geometric[i, t] <= arithmetic[i, t] * (1 + 1e-12)
        assert arithmetic[i, t] <= unit.max() * (1 + 1e-12)
        if len(unit) > 1 and unit.std() > 1e-3:
            assert geometric[i, t] < arithmetic[i, t]
        assert float(product[i, t]) == close(float(geometric[i, t] ** len(unit)))


def test_without_a_ratio_the_gradient_is_the_policy_gradient():
    old, advantages = torch.full((1, 3), -40.0, dtype=F64), torch.tensor([[1.0, -2.0, 3.0]], dtype=F64)
    batch = plain(old, advantages=advantages)
    out, gradient = solved(replace(PPO, ratio=Pool("none")), batch, old + 39.0)  # far beyond the clamp of log-ratios
    assert gradient[0].tolist() == close([-1 / 3, 2 / 3, -1.0])
    assert torch.all(out.terms.ratio == 1)
    assert out.terms.log_ratio[0].tolist() == [39.0] * 3


# --- gate


@given(st.sampled_from(PESSIMISTIC), batches())
def test_a_token_that_the_clip_closed_has_no_gradient(clip, drawn):
    batch, log_prob = drawn
    out, gradient = solved(replace(PPO, clip=clip), batch, log_prob)
    closed = out.terms.active_low | out.terms.active_high | out.terms.dual
    assert torch.all(gradient[closed] == 0)
    moving = batch.mask & ~closed & (out.terms.log_ratio.abs() < 20)
    assert torch.all(gradient[moving] != 0)


@given(algorithms(clip=[Ppo(), Ppo(low=0.1, high=0.3), Recip(), LogClip(at="unit")]), batches())
def test_a_token_gate_closes_low_ratios_of_negative_and_high_ratios_of_positive_advantages(algorithm, drawn):
    assume(not isinstance(algorithm.stabilise, AdvNorm))
    batch, log_prob = drawn
    terms, (lowest, highest) = policy_loss(algorithm, batch, log_prob).terms, algorithm.clip.bounds
    a = batch.advantages
    assert torch.equal(terms.active_low, batch.mask & (a < 0) & (terms.ratio < lowest))
    assert torch.equal(terms.active_high, batch.mask & (a > 0) & (terms.ratio > highest))
    token = terms.log_ratio.clamp(-20, 20).exp()
    assert torch.equal(terms.out_of_range, batch.mask & ((token < lowest) | (token > highest)))


@given(st.sampled_from([r for r in RATIOS if r.level in ("turn", "sequence", "sentence")]), batches(scale=0.5))
def test_a_unit_gate_closes_whole_units(ratio, drawn):
    batch, log_prob = drawn
    terms = policy_loss(replace(PPO, ratio=ratio, clip=Ppo(gate="unit", dual=1.5)), batch, log_prob).terms
    ids = {"turn": batch.turn, "sequence": batch.mask.long(), "sentence": batch.sentence}[ratio.level]
    for i, t in batch.mask.nonzero().tolist():
        unit = batch.mask[i] & (ids[i] == ids[i, t])
        mean = float(batch.advantages[i][unit].mean())
        w = float(terms.ratio[i, t])
        assert bool(terms.active_low[i, t]) == (mean < 0 and w < 0.8)
        assert bool(terms.active_high[i, t]) == (mean > 0 and w > 1.2)
        assert bool(terms.dual[i, t]) == (mean < 0 and w > 1.5)


@given(
    st.sampled_from([Ppo(), Ppo(low=0.1, high=0.4, dual=1.7), Recip(), LogClip(), LogClip(at="unit")]),
    st.sampled_from([-2.0, 0.5]),
)  # fmt: skip
def test_the_loss_is_continuous_at_the_bounds(clip, advantage):
    bounds = [*clip.bounds, getattr(clip, "dual", None) or 1.0]
    at = torch.tensor([[math.log(x) for x in bounds]], dtype=F64)
    before, after = (per_token_loss(clip, at + step, advantage) for step in (-1e-9, 1e-9))
    assert torch.allclose(before, after, rtol=0, atol=1e-7)


def per_token_loss(clip, delta: Tensor, advantage: float, log_prob: float = -1.0) -> Tensor:
    old = log_prob - delta
    batch = plain(old, advantages=torch.full_like(delta, advantage))
    return policy_loss(replace(PPO, clip=clip), batch, old + delta).terms.token_loss


def test_soft_fades_with_a_jump_at_each_edge():
    e = 0.2
    ratios = [1 - 1.06 * e, 1 - 1.05 * e, 1 - 1.02 * e, 1 - e + 1e-12, 1.0, 1 + e - 1e-12, 1 + 1.1 * e, 1 + 1.31 * e]
    weights = [0, 0, (1 - 1.02 * e) * 0.03, 1 - e, 1.0, 1 + e, (1 + 1.1 * e) * 0.2, 0]
    delta = torch.tensor([ratios], dtype=F64).log()
    for advantage in (-2.0, 0.5):
        expected = [-w * advantage * -1.0 for w in weights]
        assert per_token_loss(Soft(epsilon=e), delta, advantage)[0].tolist() == pytest.approx(expected, abs=1e-9)


def test_hard_and_soft_keep_a_detached_weight():
    three = torch.tensor([[0.5, 1.0, 2.0]], dtype=F64).log()  # good tokens keep the larger weight, bad ones the smaller
    assert per_token_loss(Hard(), three, 1.0)[0].tolist() == close([0.8, 1.0, 2.0])  # -w A l with l = -1
    assert per_token_loss(Hard(), three, -1.0)[0].tolist() == close([-0.5, -1.0, -1.2])
    delta = torch.tensor([[0.5, 1.1]], dtype=F64).log()
    old = -1 - delta
    batch = plain(old)
    hard, gradient = solved(replace(PPO, clip=Hard()), batch, old + delta)
    assert gradient[0].tolist() == close([-0.8 / 2, -1.1 / 2])
    assert hard.terms.active_low[0].tolist() == [False, False], "no gradient is stopped"
    assert bias(replace(PPO, clip=Hard()), batch, old + delta)[0].tolist() == close([0.3 / 2, 0.0])
    soft, gradient = solved(replace(PPO, clip=Soft()), batch, old + delta)
    assert gradient[0].tolist() == close([0.0, -1.1 / 2])
    assert soft.terms.active_low[0].tolist() == [True, False]
    assert bias(replace(PPO, clip=Soft()), batch, old + delta)[0].tolist() == close([-0.5 / 2, 0.0])


@given(algorithms(stabilise=[NoStabiliser()], kl=[NoKL()], correction=CORRECTIONS[:2]), batches())
def test_what_the_clip_took_is_the_unclipped_gradient_less_the_clipped_one(algorithm, drawn):
    batch, log_prob = drawn
    out, clipped = solved(algorithm, batch, log_prob)
    assume(isinstance(algorithm.clip, Ppo | Recip | LogClip | NoClip))
    _, whole = solved(replace(algorithm, clip=NoClip()), batch, log_prob)
    taken = bias(algorithm, batch, log_prob)
    assert torch.allclose(taken, whole - clipped, rtol=1e-9, atol=1e-9 * float(whole.abs().max()))
    if not (out.terms.active_low | out.terms.active_high | out.terms.dual).any():
        assert torch.all(taken == 0)


# --- scaling


WHOLE_BATCH = [s for s in FACTORS if not isinstance(s, RmsSeq | RmsTurn)]  # theirs follow from the definition below


@given(algorithms(kl=KLS[:1], stabilise=WHOLE_BATCH), batches(), st.sampled_from([0.25, 8.0]))
def test_scaling_the_advantages_scales_the_loss_and_nothing_else(algorithm, drawn, c):
    batch, log_prob = drawn
    a, grad_a = solved(algorithm, batch, log_prob)
    b, grad_b = solved(algorithm, replace(batch, advantages=c * batch.advantages), log_prob)
    assume(a.terms.energy[3] > 0 or a.terms.energy[1] == 0)  # else n is taken as 1
    scale = float((a.terms.token_loss.abs().sum() + 1e-9) * c)  # signed terms may cancel in the sum
    assert float(b.loss) == pytest.approx(c * float(a.loss), rel=1e-6, abs=1e-6 * scale)
    assert torch.allclose(grad_b, c * grad_a, rtol=1e-6, atol=1e-6 * float(grad_a.abs().max()))
    assert b.terms.stabiliser_ratio == (a.terms.stabiliser_ratio and pytest.approx(a.terms.stabiliser_ratio, rel=1e-5))
    for name in ("active_low", "active_high", "out_of_range", "dual"):
        assert torch.equal(getattr(a.terms, name), getattr(b.terms, name))


# --- stabilisers

RMS = [
    kind(tau=tau, smooth=smooth)
    for kind in (RmsBatch, RmsSeq, RmsTurn)
    for tau in (1.0, 3.0)
    for smooth in (False, True)
]


@given(st.sampled_from(RMS), batches())
def test_a_factor_follows_its_definition(stabilise, drawn):
    batch, log_prob = drawn
    terms = policy_loss(replace(PPO, stabilise=stabilise), batch, log_prob).terms
    weight = terms.log_ratio.clamp(-20, 20).exp() * batch.advantages

    def factor(where: Tensor) -> float:
        inside, outside = weight[where & ~terms.out_of_range], weight[where & terms.out_of_range]
        c = float(outside.square().mean().sqrt()) if len(outside) else 0.0
        n = float(inside.square().mean().sqrt()) if len(inside) else 1.0
        rho = c / (n + 1e-8)
        return (stabilise.tau if stabilise.smooth else 1) / rho if rho > stabilise.tau else 1.0

    assume(batch.mask.any())
    rows = [batch.mask & (torch.arange(len(weight))[:, None] == i) for i in range(len(weight))]
    if isinstance(stabilise, RmsBatch):
        expected = torch.full_like(weight, factor(batch.mask))
    elif isinstance(stabilise, RmsSeq):
        expected = torch.tensor([[factor(row)] for row in rows], dtype=F64).expand_as(weight)
    else:
        units = [row & (batch.turn == k) for row in rows for k in range(1, int(batch.turn.max()) + 1)]
        mean = sum(factor(unit) * int(unit.sum()) for unit in units if unit.any()) / int(batch.mask.sum())
        expected = torch.full_like(weight, mean)
    assert torch.allclose(terms.factor, expected, rtol=1e-9)


@pytest.mark.parametrize("stabilise", [RmsBatch(), RmsTurn(tau=3.0), RmsSeq()])
def test_with_nothing_in_range_the_factor_stays_finite(stabilise):
    old = torch.zeros(2, 3, dtype=F64)
    batch = plain(old)
    terms = policy_loss(replace(PPO, stabilise=stabilise), batch, old + math.log(5)).terms
    assert terms.factor.flatten().tolist() == close([0.2] * 6, rel=1e-6)  # n taken as 1
    weightless = replace(batch, advantages=torch.tensor([[1.0, 1.0, 0.0]] * 2, dtype=F64))
    delta = torch.tensor([[math.log(5), math.log(5), 0.0]] * 2, dtype=F64)
    terms = policy_loss(replace(PPO, stabilise=stabilise), weightless, old + delta).terms
    assert terms.factor.flatten().tolist() == close([0.2] * 6, rel=1e-6)


@given(batches(scale=0.5))
def test_advantages_are_whitened_only_beyond_the_threshold(drawn):
    batch, log_prob = drawn
    plain, _ = solved(PPO, batch, log_prob)
    n = int(batch.mask.sum())
    active = int((plain.terms.active_low | plain.terms.active_high).sum())
    assume(n > 1)
    share = active / n
    for threshold in (0.0, 0.2, 1.0):
        out, new_gradient = solved(replace(PPO, stabilise=AdvNorm(threshold=threshold)), batch, log_prob)
        advantages = batch.advantages
        if share > threshold:
            chosen = advantages[batch.mask]
            advantages = (advantages - chosen.mean()) / (chosen.std() + 1e-8)
        expected, expected_gradient = solved(PPO, replace(batch, advantages=advantages), log_prob)
        assert float(out.loss) == close(float(expected.loss), rel=1e-7)
        assert torch.allclose(new_gradient, expected_gradient, rtol=1e-7)


@given(st.sampled_from(["k2", "k3"]), batches(scale=0.5))
def test_the_gradient_of_the_penalty_leaves_the_clip_fraction_alone(estimator, drawn):
    batch, log_prob = drawn
    assume(batch.mask.any())
    out, gradient = solved(replace(PPO, stabilise=KlClipFrac(estimator=estimator)), batch, log_prob)
    _, plain = solved(PPO, batch, log_prob)
    delta, length = out.terms.log_ratio, batch.mask.sum(1, keepdim=True).clamp(min=1).double()
    share = out.terms.out_of_range.sum(1, keepdim=True) / length  # of two integers it would be a float32
    slope = delta.exp() - 1 if estimator == "k3" else delta
    sequences = int(batch.mask.any(1).sum())
    expected = torch.where(batch.mask, share * slope / length, 0) / sequences
    assert torch.allclose(gradient - plain, expected, rtol=1e-9, atol=1e-12)


# --- padding, order, micro-batches


@given(algorithms(), batches(rows=(2, 5)), st.integers(1, 3), st.randoms(use_true_random=False))
def test_right_padding_and_the_order_of_the_sequences_change_nothing(algorithm, drawn, extra, random):
    batch, log_prob = drawn
    index = torch.tensor(random.sample(range(len(log_prob)), len(log_prob)))
    tensors = vars(batch.rows(index)).items()
    wide = replace(batch, **{k: pad(x, (0, extra)) if x is not None and x.dim() == 2 else x for k, x in tensors})
    a, grad_a = solved(algorithm, batch, log_prob)
    b, grad_b = solved(algorithm, wide, pad(log_prob[index], (0, extra), value=math.nan))
    size = float(a.terms.token_loss.abs().sum()) + float(a.terms.penalty) + float(a.terms.kl_loss.abs()) + 1e-9
    assert float(b.loss) == pytest.approx(float(a.loss), rel=1e-9, abs=1e-9 * size)
    assert torch.allclose(grad_b[:, :-extra], grad_a[index], rtol=1e-7, atol=1e-9 * float(grad_a.abs().max()) + 1e-15)


GLOBAL = [replace(s, scope="global") if hasattr(s, "scope") else s for s in STABILISERS]


@pytest.mark.parametrize("stabilise", GLOBAL, ids=repr)
@given(algorithms(clip=CLIPS, ratio=RATIOS), batches(rows=(2, 5)), st.integers(1, 3))
@settings(max_examples=20)
def test_the_split_into_micro_batches_changes_nothing(stabilise, algorithm, drawn, size):
    batch, log_prob = drawn
    algorithm = replace(algorithm, stabilise=stabilise)
    whole, gradient = solved(algorithm, batch, log_prob)
    taken = bias(algorithm, batch, log_prob)
    parts = torch.arange(len(log_prob)).split(size)
    counts = Normaliser.of(batch, len(parts), algorithm.correction)
    sums = [statistics(algorithm, batch.rows(rows), log_prob[rows]) for rows in parts]
    known = None if sums[0] is None else torch.stack(sums).sum(0)
    assert (known is not None) == algorithm.stabilise.needs_statistics
    assert not any(s.needs_statistics for s in STABILISERS), "by default a rule looks at the micro-batch"
    outs, gradients, biases = [], [], []
    for rows in parts:
        out, part = solved(algorithm, batch.rows(rows), log_prob[rows], normaliser=counts, statistics=known)
        outs.append(out)
        gradients.append(part)
        biases.append(bias(algorithm, batch.rows(rows), log_prob[rows], normaliser=counts, statistics=known))
    scale = float(whole.terms.token_loss.abs().sum()) + 1e-9
    scale += sum(float(out.loss.abs()) for out in (whole, *outs))  # terms of the parts may cancel in the sum
    assert sum(float(out.loss) for out in outs) == pytest.approx(float(whole.loss), rel=1e-9, abs=1e-9 * scale)
    top = float(gradient.abs().max()) + 1e-15
    assert torch.allclose(torch.cat(gradients), gradient, rtol=1e-7, atol=1e-9 * top)
    assert torch.allclose(torch.cat(biases), taken, rtol=1e-7, atol=1e-9 * float(taken.abs().max()) + 1e-15)
    joined = type(outs[0].terms).join([out.terms for out in outs])
    assert torch.allclose(joined.token_loss, whole.terms.token_loss, rtol=1e-7, atol=1e-9 * scale)
    assert float(joined.policy_loss) == pytest.approx(float(whole.terms.policy_loss), rel=1e-9, abs=1e-9 * scale)
    if algorithm.stabilise.kind.startswith("rms"):
        assert joined.stabiliser_ratio == pytest.approx(whole.terms.stabiliser_ratio, rel=1e-9)
        assert joined.stabiliser_factor == pytest.approx(whole.terms.stabiliser_factor, rel=1e-9)
    assert torch.equal(joined.active_low, whole.terms.active_low)


@given(st.sampled_from([replace(a, scope="micro") for a in AGGREGATES]), batches(rows=(2, 5)), st.integers(1, 3))
def test_scope_micro_is_the_mean_of_the_micro_batches_own_losses(aggregate, drawn, size):
    batch, log_prob = drawn
    algorithm = replace(PPO, aggregate=aggregate, kl=LossKL("k2", 0.3), stabilise=KlClipFrac(scope="micro"))
    parts = torch.arange(len(log_prob)).split(size)
    counts = Normaliser.of(batch, len(parts))
    alone = [float(policy_loss(algorithm, batch.rows(rows), log_prob[rows]).loss) for rows in parts]
    given_counts = [
        float(policy_loss(algorithm, batch.rows(rows), log_prob[rows], normaliser=counts).loss) for rows in parts
    ]
    assert given_counts == close([x / len(parts) for x in alone])


def test_the_statistics_of_another_scope_are_ignored():
    batch, log_prob = sample_batch()
    wild = torch.tensor([9.0, 9e9, 9.0, 1.0], dtype=F64)
    micro, whole = (replace(PPO, stabilise=RmsBatch(scope=scope)) for scope in ("micro", "global"))
    assert torch.equal(
        policy_loss(micro, batch, log_prob, statistics=wild).loss, policy_loss(micro, batch, log_prob).loss
    )
    assert policy_loss(whole, batch, log_prob, statistics=wild).terms.stabiliser_factor < 1e-4


def sample_batch() -> tuple[Batch, Tensor]:
    g = torch.Generator().manual_seed(3)
    mask = torch.rand(3, 9, generator=g) < 0.7
    old = -torch.rand(3, 9, generator=g, dtype=F64)
    advantages = torch.randn(3, 9, generator=g, dtype=F64)
    batch = plain(old, mask, advantages=advantages)
    return batch, old + 0.4 * torch.randn(3, 9, generator=g, dtype=F64)


def test_the_corrections_weight_multiplies_the_token_loss():
    batch, log_prob = sample_batch()
    batch = replace(batch, log_prob_behaviour=batch.log_prob_old - math.log(1.5))
    plain, gradient = solved(PPO, batch, log_prob)
    weighted, weighted_gradient = solved(replace(PPO, correction=Tis()), batch, log_prob)
    assert float(weighted.loss) == close(1.5 * float(plain.loss))
    assert torch.allclose(weighted_gradient, 1.5 * gradient, rtol=1e-12)
    assert torch.allclose(weighted.terms.correction[batch.mask], torch.tensor(1.5, dtype=F64))
    assert plain.terms.correction is None
    assert torch.allclose(
        bias(replace(PPO, correction=Tis()), batch, log_prob), 1.5 * bias(PPO, batch, log_prob), rtol=1e-12
    )


# --- extremes


@given(algorithms(), batches(), st.sampled_from([-50.0, 50.0, 1e6, -1e6]))
def test_huge_log_ratios_stay_finite(algorithm, drawn, shift):
    batch, _ = drawn
    batch = replace(batch, log_prob_behaviour=batch.log_prob_old + shift)
    out, gradient = solved(algorithm, batch, batch.log_prob_old + shift)
    assert torch.isfinite(out.loss)
    assert torch.isfinite(gradient).all()
    assert torch.allclose(out.terms.log_ratio[batch.mask], torch.tensor(shift, dtype=F64))
    assert out.terms.ratio.max() <= math.exp(20) * (1 + 1e-9)
    assert math.isfinite(out.terms.stabiliser_ratio or 0.0)


@given(algorithms(), batches())
@example(PPO, (sample_batch()[0], sample_batch()[1]))
def test_a_batch_without_policy_tokens_gives_zero(algorithm, drawn):
    batch, log_prob = drawn
    batch = replace(batch, mask=torch.zeros_like(batch.mask))
    if algorithm.ratio.level == "sentence" and batch.sentence is None:
        return
    out, gradient = solved(algorithm, batch, log_prob)
    assert float(out.loss) == 0
    assert torch.all(gradient == 0)
    rms = algorithm.stabilise.kind.startswith("rms")
    assert (out.terms.stabiliser_ratio, out.terms.stabiliser_factor) == ((0.0, 1.0) if rms else (None, None))


@given(algorithms(), batches(rows=(2, 4)))
def test_a_sequence_without_policy_tokens_counts_nowhere(algorithm, drawn):
    batch, log_prob = drawn
    mask = batch.mask.clone()
    mask[-1] = False
    mask[0, 0] = True
    batch = replace(batch, mask=mask, sentence=torch.where(mask, batch.sentence.clamp(min=1), 0))
    without = torch.arange(len(mask) - 1)
    a, grad_a = solved(algorithm, batch, log_prob)
    b, grad_b = solved(algorithm, batch.rows(without), log_prob[without])
    size = float(a.terms.token_loss.abs().sum()) + float(a.terms.kl_loss.abs()) + 1e-3
    assert float(a.loss) == pytest.approx(float(b.loss), rel=1e-9, abs=1e-9 * size)
    assert torch.allclose(grad_a[:-1], grad_b, rtol=1e-9, atol=1e-15)
    assert torch.all(grad_a[-1] == 0)


@given(algorithms(), batches())
def test_the_loss_is_the_sum_of_its_terms_and_cached_turns_are_the_turns(algorithm, drawn):
    batch, log_prob = drawn
    out, _ = solved(algorithm, batch, log_prob)
    terms = out.terms
    total = float(terms.policy_loss + terms.kl_loss + terms.penalty)
    assert float(out.loss) == pytest.approx(total, rel=1e-9, abs=1e-9)
    assert not any(x.requires_grad for x in vars(terms).values() if isinstance(x, Tensor))
    cached, _ = solved(algorithm, replace(batch, turn_id=turn_ids(batch.mask)), log_prob)
    assert torch.equal(out.loss, cached.loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_precision_in_gives_single_precision_out(dtype):
    batch, log_prob = sample_batch()
    batch = replace(
        batch, log_prob_old=batch.log_prob_old.to(dtype), log_prob_behaviour=batch.log_prob_old.to(dtype),
        log_prob_ref=batch.log_prob_old.to(dtype), advantages=batch.advantages.to(dtype),
    )  # fmt: skip
    for stabilise in STABILISERS:
        for correction in (NoCorrection(), Tis(normalise=True)):
            algorithm = replace(PPO, stabilise=stabilise, correction=correction, kl=LossKL(), aggregate=TokenMean())
            out = policy_loss(algorithm, batch, log_prob.to(dtype))
            assert out.loss.dtype == out.terms.token_loss.dtype == out.terms.factor.dtype == dtype


def test_a_sentence_ratio_needs_the_sentences():
    batch, log_prob = sample_batch()
    with pytest.raises(InputError, match=r"ratio\.level = 'sentence' needs the sentence of every token"):
        policy_loss(replace(PPO, ratio=Pool("sentence")), batch, log_prob)


def test_policy_tokens_outside_any_sentence_are_a_unit_too():
    batch, log_prob = sample_batch()
    outside = replace(batch, sentence=torch.zeros_like(batch.tokens))
    by_sentence, gradient = solved(replace(PPO, ratio=Pool("sentence")), outside, log_prob)
    by_sequence, expected = solved(replace(PPO, ratio=Pool("sequence")), batch, log_prob)
    assert torch.equal(by_sentence.loss, by_sequence.loss)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("mean", ["geometric", "arithmetic", "product"])
def test_vanishing_ratios_keep_their_digits_in_single_precision(mean):
    old = torch.zeros(1, 1)
    batch = plain(old)
    out = policy_loss(replace(PPO, ratio=Pool("turn", mean)), batch, old - 15.0)
    assert float(out.terms.ratio) == pytest.approx(math.exp(-15), rel=1e-5)


@given(st.sampled_from([*PESSIMISTIC, Hard(), Soft()]), batches())
def test_a_token_without_an_advantage_is_never_clipped(clip, drawn):
    batch, log_prob = drawn
    terms = policy_loss(replace(PPO, clip=clip), replace(batch, advantages=0 * batch.advantages), log_prob).terms
    assert not (terms.active_low | terms.active_high | terms.dual).any()


@pytest.mark.parametrize(
    ("clip", "advantage", "flags"),
    [
        (Hard(), 1.0, "----"),
        (Hard(), -1.0, "----"),
        (Soft(epsilon=0.8), 1.0, "----"),  # 2.0 is beyond 1.8 and short of 2.04: the gradient fades
        (Soft(), 1.0, "L--H"),
        (Soft(), -1.0, "L--H"),
        (NoClip(), 1.0, "----"),
        (Ppo(low=0.3, high=0.3, dual=1.5), 0.0, "----"),
    ],
)
def test_flags_of_the_other_clips(clip, advantage, flags):
    delta = torch.tensor([[0.5, 0.9, 1.1, 2.0]]).log()
    batch = plain(-1 - delta, advantages=torch.full_like(delta, advantage))
    terms = policy_loss(replace(PPO, clip=clip), batch, torch.full_like(delta, -1.0)).terms
    assert terms.active_low[0].tolist() == [flag == "L" for flag in flags]
    assert terms.active_high[0].tolist() == [flag == "H" for flag in flags]
    assert not terms.dual.any()


WEIGHTS = [0.25, 0.5, 1.0, 2.0, 8.0]  # omega of five tokens; their product is 2 and their geometric mean 1.149


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (Tis(cap=1.5), [0.25, 0.5, 1.0, 1.5, 1.5]),
        (Tis(level="seq_prod", cap=3.0), [2.0] * 5),
        (Tis(level="seq_prod", cap=1.5), [1.5] * 5),
        (Mis(high=2.0), [0.25, 0.5, 1.0, 2.0, 0]),
        (IcePop(low=0.5, high=2.0), [0, 0.5, 1.0, 2.0, 0]),
        (IcePop(low=1.5, high=2.5, level="seq_prod"), [2.0] * 5),
        (IcePop(low=0.5, high=1.9, level="seq_prod"), [0] * 5),
        (IcePop(low=1.1, high=1.2, level="seq_geo_filter"), WEIGHTS),
        (IcePop(low=1.2, high=9.0, level="seq_geo_filter"), [0] * 5),
        (IcePop(low=0.5, high=2.0, normalise=True), [0, 0.5 / 0.7, 1 / 0.7, 2 / 0.7, 0]),
    ],
)
def test_weights_of_the_rollout_corrections(correction, expected):
    mask = torch.tensor([[1, 1, 1, 0, 1, 1]], dtype=torch.bool)
    omega = torch.tensor([[*WEIGHTS[:3], 1e9, *WEIGHTS[3:]]], dtype=F64)
    old = torch.zeros(1, 6, dtype=F64)
    batch = plain(old, mask, log_prob_behaviour=-omega.log())
    assert correction.weights(batch)[mask].tolist() == close(expected)
    mean = correction.mean_weight(batch)
    assert (mean is None) == (not correction.normalise)
    if mean is not None:
        assert float(mean) == close(0.7)
        assert correction.weights(batch, 2 * mean)[mask].tolist() == close([x / 2 for x in expected])


def test_weights_that_are_all_zero_stay_zero_when_normalised():
    old = torch.zeros(1, 2, dtype=F64)
    batch = plain(old, log_prob_behaviour=old - 3)
    assert Mis(normalise=True).weights(batch).tolist() == [[0, 0]]
    far = replace(batch, log_prob_behaviour=old - 15)
    assert Tis(cap=1e12, level="seq_prod").weights(far).tolist() == [close([math.exp(20)] * 2)]  # not e^30


@pytest.mark.parametrize("form", ["sequence", "batch"])
def test_the_penalty_of_a_single_token(form):
    old = torch.zeros(1, 1, dtype=F64)
    out = policy_loss(replace(PPO, stabilise=KlClipFrac(form=form)), plain(old), old + math.log(2))
    assert float(out.terms.penalty) == close(1 - math.log(2))  # its share out of range is 1, k3 = 2 - 1 - ln 2
