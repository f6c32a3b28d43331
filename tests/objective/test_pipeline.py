"""What must hold for every pipeline, on random batches, and at the points at which a rule turns."""

import inspect
import math
import pkgutil
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

import sorl.objective
from sorl.algorithms import resolve
from sorl.batch import Batch, pool, spread, turn_ids
from sorl.objective import KINDS, Algorithm, Normaliser, Pool, policy_loss, prepare, statistics
from sorl.objective.clip import Bapo, Hard, LogClip, NoClip, Ppo, Recip, Soft
from sorl.objective.kl import KL, LossKL, RewardKL
from sorl.objective.ratio import Correction, IcePop, Mis, Tis, unit_mean
from sorl.objective.stabilise import AdvNorm, KlClipFrac, RmsBatch, RmsSeq, RmsTurn
from sorl.spec import InputError
from tests.objective import batches as made
from tests.objective.batches import F64, PPO, algorithms, batches, close, dirtied, plain, poisoned, solved


def bias(algorithm: Algorithm, batch: Batch, log_prob: Tensor, **given_: object) -> Tensor:
    leaf = log_prob.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(policy_loss(algorithm, batch, leaf, **given_).taken, leaf)
    return gradient


@given(algorithms(), batches(), st.sampled_from([math.nan, math.inf, -1e30]))
def test_nothing_off_the_mask_matters(algorithm, drawn, garbage):
    batch, log_prob = drawn
    dirty = dirtied(batch, garbage)
    if getattr(algorithm.advantage, "skip_obs", True):  # else values of observations are read
        for kl in (KL(), RewardKL(beta=0.1)):
            a, b = (prepare(replace(algorithm, kl=kl), x) for x in (batch, dirty))
            assert torch.equal(a.advantages, b.advantages)
            assert torch.all(a.advantages[~batch.mask] == 0)
            assert torch.isfinite(a.advantages).all()
            assert torch.equal(a.mask, b.mask)
            assert torch.equal(a.need("turn_id"), turn_ids(a.mask))
            assert torch.equal(a.returns, b.returns) if algorithm.critic else a.returns is None
    a, grad_a = solved(algorithm, batch, log_prob)
    b, grad_b = solved(algorithm, dirty, poisoned(log_prob, batch.mask, garbage))
    assert torch.equal(a.loss, b.loss)
    assert torch.equal(grad_a, grad_b)
    assert torch.all(grad_a[~batch.mask] == 0)
    assert float(a.loss) == pytest.approx(
        float(a.terms.policy_loss + a.terms.kl_loss + a.terms.penalty), abs=1e-9
    )
    assert not any(x.requires_grad for x in vars(a.terms).values() if x is not None)
    for name, x in vars(a.terms).items():
        if x is not None:
            inside = batch.mask if x.dim() == 2 else torch.tensor(True)
            assert torch.equal(torch.where(inside, x, 0), torch.where(inside, getattr(b.terms, name), 0)), (
                name
            )
    for name in ("active_low", "active_high", "out_of_range", "dual", "log_ratio", "token_loss"):
        assert torch.all(getattr(b.terms, name)[~batch.mask] == 0)


ON_POLICY = [s for s in made.STABILISERS if not s.kind.startswith("kl")]


@given(algorithms(kl=[KL()], correction=[Correction()], stabilise=ON_POLICY, aggregate=made.MEANS), batches())
def test_on_policy_every_ratio_is_one_nothing_is_clipped_and_a_unit_shares_its_credit(algorithm, drawn):
    batch = replace(drawn[0], log_prob_behaviour=drawn[0].log_prob_old)
    out, gradient = solved(algorithm, batch, batch.log_prob_old)
    terms = out.terms
    ratio = algorithm.ratio
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
    if ratio.grad == "shared" and type(algorithm.clip) not in map(type, made.WEIGHTED):
        units = ratio.units(batch)
        summed = ratio.mean == "product" and units is not None
        credit = spread(pool(credit, units).total, units) if summed else unit_mean(credit, units)
    assert torch.allclose(gradient, credit, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ratio", [ratio for ratio in made.RATIOS if ratio.level != "none"], ids=str)
@given(batches())
@settings(max_examples=30)
def test_a_ratio_is_the_mean_of_its_unit(ratio, drawn):
    batch, log_prob = drawn
    # those outside any sentence are a unit too
    batch = replace(batch, sentence=(batch.sentence - 1).clamp(min=0))
    terms = policy_loss(replace(PPO, ratio=ratio), batch, log_prob).terms
    place = torch.arange(batch.mask.shape[1]).expand_as(batch.mask)
    ids = {
        "token": place,
        "turn": batch.turn,
        "sentence": batch.sentence,
        "sequence": 0 * place,
        "placebo": batch.placebo,
    }[ratio.level]
    for i, t in batch.mask.nonzero().tolist():
        d = terms.log_ratio[i][batch.mask[i] & (ids[i] == ids[i, t])].clamp(-20, 20)
        mean = {
            "geometric": d.mean().exp(),
            "arithmetic": d.exp().mean(),
            "product": d.sum().clamp(-20, 20).exp(),
        }
        assert float(terms.ratio[i, t]) == close(float(mean[ratio.mean]))
    assert torch.all(terms.ratio[~batch.mask] == 1)


@given(
    st.sampled_from(made.PESSIMISTIC), st.sampled_from(["token", "turn", "sequence", "sentence"]), batches()
)
def test_a_gate_closes_low_ratios_of_negative_and_high_ratios_of_positive_advantages(clip, level, drawn):
    batch, log_prob = drawn
    ratio = Pool(level)
    out, gradient = solved(replace(PPO, clip=clip, ratio=ratio), batch, log_prob)
    terms = out.terms
    lowest, highest = clip.bounds
    mask = batch.mask
    sign = batch.advantages if clip.gate == "token" else unit_mean(batch.advantages, ratio.units(batch))
    token = terms.log_ratio.clamp(-20, 20).exp()
    judged = token if getattr(clip, "at", "unit") == "token" else terms.ratio
    dual = getattr(clip, "dual", None) or math.inf
    assert torch.equal(terms.active_low, mask & (sign < 0) & (judged < lowest))
    assert torch.equal(terms.active_high, mask & (sign > 0) & (judged > highest))
    assert torch.equal(terms.dual, mask & (sign < 0) & (judged > dual))
    assert torch.equal(terms.out_of_range, mask & ((token < lowest) | (token > highest)))
    if level == "token":
        closed = terms.active_low | terms.active_high | terms.dual
        assert torch.all(gradient[closed] == 0)
        assert torch.all(gradient[mask & ~closed & (terms.log_ratio.abs() < 20)] != 0)


# below its range Soft's weight fades from a twentieth to nothing
FADED = 0.5 * (0.5 - (1 - 1.05 * 0.495)) / 0.495


@pytest.mark.parametrize(
    ("clip", "advantage", "losses", "flags"),  # of ratios .5, .9, 1.1 and 2
    [
        (Ppo(), 1.0, [-0.5, -0.9, -1.1, -1.2], "---H"),
        (Ppo(), -1.0, [0.8, 0.9, 1.1, 2.0], "L---"),
        (Ppo(high=0.4, dual=1.7), -1.0, [0.8, 0.9, 1.1, 1.7], "L--D"),
        *(
            (clip, a, losses, flags)
            for clip in (Recip(0.25), LogClip(math.log(1.25)), LogClip(math.log(1.25), "unit"))
            for a, losses, flags in (
                (1.0, [-0.5, -0.9, -1.1, -1.25], "---H"),
                (-1.0, [0.8, 0.9, 1.1, 2.0], "L---"),
            )
        ),
        # log-prob -1 times a detached weight: good tokens keep the larger weight, bad ones the smaller
        (Hard(), 1.0, [0.8, 0.9, 1.1, 2.0], "----"),
        (Hard(), -1.0, [-0.5, -0.9, -1.1, -1.2], "----"),
        (Soft(), 1.0, [0, 0.9, 1.1, 0], "L--H"),
        (Soft(), -1.0, [0, -0.9, -1.1, 0], "L--H"),
        (Soft(0.8), 1.0, [0.5, 0.9, 1.1, 2 * 0.05], "----"),  # 2 is beyond 1.8 and short of 2.04
        (Soft(0.495), 1.0, [FADED, 0.9, 1.1, 0], "---H"),
        (NoClip(), 1.0, [-0.5, -0.9, -1.1, -2.0], "----"),
    ],
)
def test_losses_flags_and_what_the_clip_took(clip, advantage, losses, flags):
    ratio = torch.tensor([[0.5, 0.9, 1.1, 2.0]], dtype=F64)
    batch = plain(-1 - ratio.log(), advantages=torch.full_like(ratio, advantage))
    algorithm = replace(PPO, clip=clip)
    log_prob = torch.full_like(ratio, -1.0)
    out, gradient = solved(algorithm, batch, log_prob)
    assert out.terms.token_loss[0].tolist() == close(losses, rel=1e-7)
    for flag, name in (("L", "active_low"), ("H", "active_high"), ("D", "dual")):
        assert getattr(out.terms, name)[0].tolist() == [x == flag for x in flags]
        bare = policy_loss(algorithm, replace(batch, advantages=0 * ratio), log_prob).terms
        assert not getattr(bare, name).any(), "without an advantage nothing is clipped"
    kept = out.terms.token_loss
    still = torch.tensor([[x == "-" for x in flags]])
    # of the sum, by log-probs
    slope = -kept if isinstance(clip, Hard | Soft) else torch.where(still, kept, 0)
    assert gradient[0].tolist() == close((slope[0] / 4).tolist())
    taken = (-advantage * ratio - slope)[0] / 4
    assert bias(algorithm, batch, log_prob)[0].tolist() == close(taken.tolist(), rel=1e-7)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("beyond", [0, 1e-12])
def test_a_ratio_exactly_at_its_bound_is_inside_and_one_just_beyond_is_outside(
    beyond: float, advantage: float
) -> None:
    old = torch.full((1, 3), -1.0, dtype=F64)
    bounds = torch.tensor([-0.25, 0.25], dtype=F64).exp().tolist()
    clip = Ppo(low=1 - bounds[0], high=bounds[1] - 1)
    assert clip.bounds == tuple(bounds)  # both differences are exact in binary
    new = old + torch.tensor([[-0.25 - beyond, 0, 0.25 + beyond]], dtype=F64)
    batch = plain(old, advantages=torch.full_like(old, advantage))
    for choice in (clip, LogClip(epsilon=0.25), LogClip(epsilon=0.25, at="unit")):
        terms = policy_loss(replace(PPO, clip=choice), batch, new).terms
        assert terms.active_low[0].tolist() == [beyond > 0 > advantage, False, False]
        assert terms.active_high[0].tolist() == [False, False, beyond > 0 and advantage > 0]
    stabilised = policy_loss(replace(PPO, clip=clip, stabilise=RmsBatch(tau=1.0)), batch, new).terms
    assert (stabilised.clipped_rms == 0, stabilised.stabiliser_factor == 1) == (not beyond, not beyond)


def test_a_ratio_exactly_at_the_dual_bound_is_not_capped() -> None:
    new = torch.tensor([[-0.5, -0.25]], dtype=F64)
    old = torch.full_like(new, -1.0)
    dual = float((new - old).exp()[0, 0])
    batch = plain(old, advantages=torch.full_like(old, -1.0))
    terms = policy_loss(replace(PPO, clip=Ppo(dual=dual)), batch, new).terms
    assert terms.dual[0].tolist() == [False, True]


RMS = [
    kind(tau=t, smooth=s) for kind in (RmsBatch, RmsSeq, RmsTurn) for t in (1.0, 3.0) for s in (False, True)
]


@given(st.sampled_from(RMS), batches())
def test_a_factor_follows_its_definition(stabilise, drawn):
    batch, log_prob = drawn
    terms = policy_loss(replace(PPO, stabilise=stabilise), batch, log_prob).terms
    weight = terms.log_ratio.clamp(-20, 20).exp() * batch.advantages

    def factor(where: Tensor) -> float:
        inside = weight[where & ~terms.out_of_range]
        outside = weight[where & terms.out_of_range]
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
    # none, and a weightless one
    for inside in (torch.ones_like(old), torch.tensor([[1.0, 1.0, 0.0]] * 2, dtype=F64)):
        batch = plain(old, advantages=inside)
        terms = policy_loss(replace(PPO, stabilise=stabilise), batch, old + inside * math.log(5)).terms
        assert terms.factor.flatten().tolist() == close([0.2] * 6, rel=1e-6)  # n taken as 1


@given(batches(scale=0.5))
def test_advantages_are_whitened_only_beyond_the_threshold(drawn):
    batch, log_prob = drawn
    bare = policy_loss(PPO, batch, log_prob).terms
    n = int(batch.mask.sum())
    assume(n > 1)
    share = int((bare.active_low | bare.active_high).sum()) / n
    for threshold in (0.0, 0.2, 1.0):
        out, new_gradient = solved(replace(PPO, stabilise=AdvNorm(threshold=threshold)), batch, log_prob)
        advantages = batch.advantages
        if share > threshold:
            chosen = advantages[batch.mask]
            advantages = (advantages - chosen.mean()) / (chosen.std() + 1e-8)
        expected, expected_gradient = solved(PPO, replace(batch, advantages=advantages), log_prob)
        assert float(out.loss) == close(float(expected.loss), rel=1e-7)
        assert torch.allclose(new_gradient, expected_gradient, rtol=1e-7)


@given(algorithms(), batches(rows=(2, 5)), st.integers(1, 3), st.randoms(use_true_random=False))
def test_right_padding_and_the_order_of_the_sequences_change_nothing(algorithm, drawn, extra, random):
    batch, log_prob = drawn
    index = torch.tensor(random.sample(range(len(log_prob)), len(log_prob)))
    wide = made.widened(batch, index, extra)
    credit, moved = (prepare(algorithm, x).advantages for x in (batch, wide))
    assert torch.allclose(moved[:, :-extra], credit[index], rtol=1e-8, atol=1e-10)
    assert torch.all(moved[:, -extra:] == 0)
    a, grad_a = solved(algorithm, batch, log_prob)
    b, grad_b = solved(algorithm, wide, pad(log_prob[index], (0, extra), value=math.nan))
    size = (
        float(a.terms.token_loss.abs().sum()) + float(a.terms.penalty) + float(a.terms.kl_loss.abs()) + 1e-9
    )
    assert float(b.loss) == pytest.approx(float(a.loss), rel=1e-9, abs=1e-9 * size)
    assert torch.allclose(
        grad_b[:, :-extra], grad_a[index], rtol=1e-7, atol=1e-9 * float(grad_a.abs().max()) + 1e-15
    )


GLOBAL = [replace(s, scope="global") if hasattr(s, "scope") else s for s in made.STABILISERS]


@pytest.mark.parametrize("stabilise", GLOBAL, ids=repr)
@given(
    algorithms(clip=[*made.CLIPS, *made.SEARCHED], ratio=made.RATIOS), batches(rows=(2, 5)), st.integers(1, 3)
)
@settings(max_examples=20)
def test_the_split_into_micro_batches_changes_nothing(stabilise, algorithm, drawn, size):
    batch, log_prob = drawn
    algorithm = replace(algorithm, stabilise=stabilise)
    assume(not algorithm.conflict)
    whole, gradient = solved(algorithm, batch, log_prob)
    parts = torch.arange(len(log_prob)).split(size)
    counts = Normaliser.of(batch, len(parts), algorithm.correction)
    sums = [statistics(algorithm, batch.rows(rows), log_prob[rows]) for rows in parts]
    known = None if sums[0] is None else torch.stack(sums).sum(0)
    assert (known is not None) == algorithm.needs_statistics
    assert not any(s.needs_statistics for s in made.STABILISERS), "by default a rule looks at the micro-batch"
    given_ = {"normaliser": counts, "statistics": known}
    cut = [(algorithm, batch.rows(rows), log_prob[rows]) for rows in parts]
    outs, gradients = zip(*(solved(*part, **given_) for part in cut), strict=True)
    terms = [out.terms for out in outs]
    joined = type(terms[0]).join(terms)
    scale = float(whole.terms.token_loss.abs().sum()) + 1e-9
    scale += sum(float(out.loss.abs()) for out in (whole, *outs))  # terms of the parts may cancel in the sum

    def same(found: Tensor, expected: Tensor, size: float) -> None:
        assert torch.allclose(found, expected, rtol=1e-7, atol=1e-9 * size + 1e-15)

    taken = bias(algorithm, batch, log_prob)
    same(sum(out.loss for out in outs), whole.loss, scale)
    same(joined.policy_loss, whole.terms.policy_loss, scale)
    same(joined.token_loss, whole.terms.token_loss, scale)
    same(torch.cat(gradients), gradient, float(gradient.abs().max()))
    same(torch.cat([bias(*part, **given_) for part in cut]), taken, float(taken.abs().max()))
    assert torch.equal(joined.active_low, whole.terms.active_low)
    if algorithm.stabilise.kind.startswith("rms"):
        assert joined.stabiliser_ratio == pytest.approx(whole.terms.stabiliser_ratio, rel=1e-9)
        assert joined.stabiliser_factor == pytest.approx(whole.terms.stabiliser_factor, rel=1e-9)


@given(
    st.sampled_from([replace(a, scope="micro") for a in made.AGGREGATES]),
    batches(rows=(2, 5)),
    st.integers(1, 3),
)
def test_scope_micro_is_the_mean_of_the_micro_batches_own_losses(aggregate, drawn, size):
    batch, log_prob = drawn
    algorithm = replace(PPO, aggregate=aggregate, kl=LossKL("k2", 0.3), stabilise=KlClipFrac(scope="micro"))
    parts = torch.arange(len(log_prob)).split(size)
    counts = Normaliser.of(batch, len(parts))
    alone, counted = (
        [
            float(policy_loss(algorithm, batch.rows(rows), log_prob[rows], normaliser=given_).loss)
            for rows in parts
        ]
        for given_ in (None, counts)
    )
    assert counted == close([x / len(parts) for x in alone])


def test_the_statistics_of_another_scope_are_ignored():
    batch, log_prob = sample()
    wild = torch.tensor([9.0, 9e9, 9.0, 1.0], dtype=F64)
    micro, whole = (replace(PPO, stabilise=RmsBatch(scope=scope)) for scope in ("micro", "global"))
    told = policy_loss(micro, batch, log_prob, statistics=wild).loss
    assert torch.equal(told, policy_loss(micro, batch, log_prob).loss)
    assert policy_loss(whole, batch, log_prob, statistics=wild).terms.stabiliser_factor < 1e-4


def test_two_statistics_of_which_one_needs_the_other_first_are_refused_and_work_inside_a_micro_batch():
    stabilise = {"kind": "adv_norm", "scope": "global"}
    with pytest.raises(InputError, match=r"adv_norm counts clipped tokens.*before the bounds of clip bapo"):
        resolve("bapo", {"stabilise": stabilise})
    batch, log_prob = sample()
    with pytest.raises(InputError, match="set its scope = 'micro'"):
        statistics(replace(PPO, clip=Bapo(), stabilise=AdvNorm(scope="global")), batch, log_prob)
    alone = resolve("bapo", {"stabilise": {"kind": "adv_norm"}})
    found = statistics(alone, batch, log_prob)
    assert found is not None
    assert len(found) == alone.clip.sums_size


def sample() -> tuple[Batch, Tensor]:
    batch, log_prob = made.ragged(3)
    return (
        replace(batch, sentence=None, advantages=torch.linspace(-1, 1, log_prob.numel()).view_as(log_prob)),
        log_prob,
    )


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
@example(PPO, sample())
def test_a_batch_without_policy_tokens_gives_zero(algorithm, drawn):
    batch, log_prob = drawn
    batch = replace(batch, mask=torch.zeros_like(batch.mask))
    out, gradient = solved(algorithm, batch, log_prob)
    assert float(out.loss) == 0
    assert torch.all(gradient == 0)
    rms = algorithm.stabilise.kind.startswith("rms")
    assert (out.terms.stabiliser_ratio, out.terms.stabiliser_factor) == ((0.0, 1.0) if rms else (None, None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_precision_in_gives_single_precision_out_and_a_sentence_ratio_needs_the_sentences(dtype):
    batch, log_prob = sample()
    floats = {k: x.to(dtype) for k, x in vars(batch).items() if x is not None and x.is_floating_point()}
    batch = replace(batch, **floats)
    for stabilise in made.STABILISERS:
        for correction in (Correction(), Tis(normalise=True)):
            algorithm = replace(PPO, stabilise=stabilise, correction=correction, kl=LossKL())
            out = policy_loss(algorithm, batch, log_prob.to(dtype))
            assert out.loss.dtype == out.terms.token_loss.dtype == out.terms.factor.dtype == dtype
    batch, log_prob = sample()
    with pytest.raises(InputError, match=r"ratio\.level = 'sentence' needs the sentence of every token"):
        policy_loss(replace(PPO, ratio=Pool("sentence")), batch, log_prob)


@pytest.mark.parametrize("mean", ["geometric", "arithmetic", "product"])
def test_vanishing_ratios_keep_their_digits_in_single_precision(mean):
    old = torch.zeros(1, 1)
    out = policy_loss(replace(PPO, ratio=Pool("turn", mean)), plain(old), old - 15.0)
    assert float(out.terms.ratio) == pytest.approx(math.exp(-15), rel=1e-5)


# omega of five tokens; their product is 2 and their geometric mean 1.149
WEIGHTS = [0.25, 0.5, 1.0, 2.0, 8.0]


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


def parts() -> list[type]:
    """Every dataclass of the objective."""
    names = [f"sorl.objective.{found.name}" for found in pkgutil.iter_modules(sorl.objective.__path__)]
    classes = {c for name in names for c in vars(import_module(name)).values() if inspect.isclass(c)}
    ours = [c for c in classes if c.__module__ in names and hasattr(c, "__dataclass_params__")]
    return sorted(ours, key=lambda c: c.__qualname__)


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.__qualname__)
def test_no_part_of_a_declaration_can_be_changed_under_the_run_that_uses_it(part: type) -> None:
    assert "__dataclass_params__" in vars(part), (
        "a subclass without the decorator compares and prints as its base"
    )
    assert part.__dataclass_params__.frozen


# The numbers that papers and reference code start from; a change here changes what everyone's TOML means.
DEFAULTS = """
advantage gae turn_mean: gamma = 1.0, lam = 1.0, skip_obs = true, whiten = m
advantage turn_gae: gamma = 0.99, lam = 0.9, whiten = none
advantage bilevel: gamma = 1.0, lam = 1.0, gamma_turn = 0.95, whiten = m
advantage grpo batch_z: eps = 1e-06
advantage reinforce_pp: gamma = 1.0
ratio pool: level = token, mean = geometric, grad = shared
clip ppo: low = 0.2, high = 0.2, dual = none, gate = token
clip recip: epsilon = 0.1, gate = token
clip log: epsilon = 0.4, at = token, gate = token
clip hard: low = 0.2, high = 0.2
clip soft: epsilon = 0.2
stabilise rms_batch: tau = 3.0, smooth = false, scope = micro
stabilise rms_turn: tau = 5.0, smooth = false, scope = micro
stabilise rms_seq: tau = 3.0, smooth = false
stabilise cnorm: guard = 1.0
stabilise kl_clipfrac: scope = micro, weight = 1.0, form = sequence, estimator = k3, direction = old_new
stabilise adv_norm: scope = micro, threshold = 0.2
stabilise subtract: alpha = 1.0
aggregate token_mean token_sum seq_mean_token_sum seq_mean_token_mean: scope = global
aggregate turn_mean turn_mean_global: scope = global
aggregate seq_mean_token_sum_norm: scope = global, horizon = none
kl reward: beta = 0.001
kl loss: estimator = k3, beta = 0.001
correction tis: cap = 2.0, level = token, normalise = false
correction mis: low = 0.0, high = 2.0, level = token, normalise = false
correction icepop: low = 0.5, high = 5.0, level = token, normalise = false
"""


@pytest.mark.parametrize("line", DEFAULTS.strip().splitlines())
def test_an_option_that_is_not_set_has_its_published_default(line: str) -> None:
    choice, options = line.split(":")
    slot, *kinds = choice.split()
    assert {", ".join(KINDS[slot][kind]().options()) for kind in kinds} == {options.strip()}
