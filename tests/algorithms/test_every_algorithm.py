"""What must hold for every named algorithm, on random ragged batches: a new one is covered by being named."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.algorithms.ragged import F64, ragged
from workbench.algorithms import ALGORITHMS
from workbench.batch import Batch
from workbench.objective import Algorithm, Normaliser, PolicyLoss, clipped_loss, policy_loss, prepare
from workbench.objective.clip import Gamma, PpoMask, SgClip, TvMask
from workbench.objective.kl import NoKL
from workbench.objective.stabilise import KlClipFrac, NoStabiliser

SEEDS = range(2)
RUNNING = [algorithm.within(20) for algorithm in ALGORITHMS.values()]
every = pytest.mark.parametrize("algorithm", RUNNING, ids=list(ALGORITHMS))


def solved(algorithm: Algorithm, batch: Batch, log_prob: Tensor) -> tuple[PolicyLoss, Tensor]:
    leaf = log_prob.clone().requires_grad_()
    out = policy_loss(algorithm, batch, leaf)
    (gradient,) = torch.autograd.grad(out.loss, leaf)
    return out, gradient


def prepared(algorithm: Algorithm, seed: int, scale: float = 0.4) -> tuple[Batch, Tensor]:
    batch, new = ragged(seed, scale=scale)
    return prepare(algorithm, batch), new


def pure(algorithm: Algorithm) -> Algorithm:
    """The surrogate alone: without a term beside it."""
    penalty = isinstance(algorithm.stabilise, KlClipFrac)
    return replace(algorithm, kl=NoKL(), stabilise=NoStabiliser() if penalty else algorithm.stabilise)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-12)


@every
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_what_the_policy_did_not_write_does_not_matter(algorithm: Algorithm, garbage: float) -> None:
    for seed in SEEDS:
        batch, new = ragged(seed)
        dirty = {name: torch.where(batch.mask, getattr(batch, name), garbage)
                 for name in ("log_prob_behaviour", "log_prob_old", "log_prob_ref", "values")}  # fmt: skip
        other = replace(batch, **dirty, tokens=torch.where(batch.mask, batch.tokens, 0),
                        sentence=torch.where(batch.mask, batch.sentence, 9))  # fmt: skip
        a, clean = solved(algorithm, prepare(algorithm, batch), new)
        b, soiled = solved(algorithm, prepare(algorithm, other), torch.where(batch.mask, new, garbage))
        assert torch.equal(a.loss, b.loss)
        assert torch.equal(clean, soiled)
        assert torch.all(clean[~batch.mask] == 0)
        for flag in ("active_low", "active_high", "dual"):
            assert torch.equal(getattr(a.terms, flag), getattr(b.terms, flag))


@every
def test_on_policy_every_ratio_is_one_and_each_token_gets_its_advantage(algorithm: Algorithm) -> None:
    for seed in SEEDS:
        batch = ragged(seed)[0]
        batch = prepare(algorithm, replace(batch, log_prob_behaviour=batch.log_prob_old))
        out, gradient = solved(pure(algorithm), batch, batch.log_prob_old)
        terms = out.terms
        assert same(terms.ratio, torch.ones_like(terms.ratio))
        assert not (terms.active_low | terms.active_high | terms.dual | terms.out_of_range).any()
        assert torch.all(terms.factor == 1)
        assert float(clipped_loss(algorithm, batch, batch.log_prob_old)) == 0
        credit = -algorithm.aggregate.weights(batch, Normaliser.of(batch)) * batch.need("advantages")
        ratio = algorithm.ratio
        shared = ratio.grad == "shared" and not isinstance(algorithm.clip, SgClip | PpoMask | TvMask | Gamma)
        units = ratio.units(batch)
        expected = (units.total if ratio.mean == "product" else units.mean)(credit) if shared else credit
        assert same(gradient, expected)


@every
def test_sequences_of_one_token_leave_no_choice_of_the_unit(algorithm: Algorithm) -> None:
    if algorithm.ratio.level == "none":
        pytest.skip("it has no ratio")
    for seed in SEEDS:
        batch, new = ragged(seed)
        first = batch.mask.cumsum(1) == 1
        batch = prepare(algorithm, replace(batch, mask=batch.mask & first))
        token = replace(algorithm, ratio=replace(algorithm.ratio, level="token"))
        a, b = solved(algorithm, batch, new), solved(token, batch, new)
        assert same(a[0].loss, b[0].loss)
        assert same(a[1], b[1])


@every
@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_advantages_scale_the_loss_and_nothing_else(algorithm: Algorithm, factor: float) -> None:
    for seed in SEEDS:
        batch, new = prepared(algorithm, seed)
        assert batch.need("advantages") is not None
        a, gradient = solved(pure(algorithm), batch, new)
        b, scaled = solved(pure(algorithm), replace(batch, advantages=factor * batch.need("advantages")), new)
        assert same(b.loss, factor * a.loss)
        assert same(scaled, factor * gradient)
        for flag in ("active_low", "active_high", "dual", "out_of_range"):
            assert torch.equal(getattr(a.terms, flag), getattr(b.terms, flag))
        assert same(a.terms.factor, b.terms.factor)


@every
def test_neither_the_order_of_sequences_nor_padding_matters(algorithm: Algorithm) -> None:
    for seed in SEEDS:
        batch, new = ragged(seed)
        expected, gradient = solved(algorithm, prepare(algorithm, batch), new)
        order = torch.randperm(len(new), generator=torch.Generator().manual_seed(seed))
        shuffled, moved = solved(algorithm, prepare(algorithm, batch.rows(order)), new[order])
        assert same(shuffled.loss, expected.loss)
        assert same(moved, gradient[order])
        fields = vars(batch).items()
        wider = replace(batch, **{k: pad(x, (0, 5)) for k, x in fields if x is not None and x.dim() == 2})
        padded, widened = solved(algorithm, prepare(algorithm, wider), pad(new, (0, 5)))
        assert same(padded.loss, expected.loss)
        assert same(widened[:, : new.shape[1]], gradient)


@every
@pytest.mark.parametrize("drift", [50.0, -50.0, 700.0])
def test_extreme_log_ratios_stay_finite(algorithm: Algorithm, drift: float) -> None:
    batch, _ = ragged(1)
    batch = prepare(algorithm, replace(batch, log_prob_behaviour=batch.log_prob_old))
    sign = torch.where(torch.arange(batch.mask.shape[1]) % 3 == 0, -1.0, 1.0)
    new = torch.where(batch.mask, batch.log_prob_old + drift * sign, 0).clamp(max=0).to(F64)
    out, gradient = solved(algorithm, batch, new)
    assert out.loss.isfinite()
    assert gradient.isfinite().all()


@every
def test_a_sequence_without_a_policy_token_does_not_count(algorithm: Algorithm) -> None:
    batch, new = prepared(algorithm, 2)
    twice = batch.rows(torch.tensor([*range(len(new)), 0]))
    mask = twice.mask.clone()
    mask[-1] = False
    empty = replace(twice, mask=mask, turn_id=torch.where(mask, twice.need("turn_id"), 0))
    a, gradient = solved(algorithm, batch, new)
    b, extended = solved(algorithm, empty, torch.cat([new, new[:1]]))
    assert same(a.loss, b.loss)
    assert same(extended[:-1], gradient)


@every
def test_equal_rewards_and_groups_of_one_give_numbers(algorithm: Algorithm) -> None:
    batch, new = ragged(0)
    alone = replace(batch, group=torch.arange(len(new)))
    for made in (replace(batch, score=torch.ones_like(batch.score)), alone):
        ready = prepare(algorithm, made)
        assert ready.need("advantages").isfinite().all()
        assert policy_loss(algorithm, ready, new).loss.isfinite()
    if algorithm.advantage.group_size > 1:
        ready = prepare(algorithm, replace(batch, score=torch.ones_like(batch.score)))
        assert torch.all(ready.need("advantages") == 0)


@every
def test_no_gradient_reaches_a_token_that_the_clip_stopped(algorithm: Algorithm) -> None:
    if algorithm.ratio.level != "token":
        pytest.skip("the clip stops units")
    stopped = 0
    for seed in SEEDS:
        batch, new = prepared(algorithm, seed, scale=0.9)
        out, gradient = solved(pure(algorithm), batch, new)
        active = out.terms.active_low | out.terms.active_high
        stopped += int(active.sum())
        assert torch.all(gradient[active] == 0)
    assert stopped > 0 or algorithm.clip.kind in ("none", "soft_sigmoid", "sg_clip")


BATCH_STATISTICS = {"bapo", "grpo-guard", "grpo-guard-full", "sspo", "s-ppo", "st-ppo"}


@every
def test_micro_batches_add_up(algorithm: Algorithm) -> None:
    """Except where a rule looks at the micro-batch as a whole, which is why those results name its size."""
    adds_up = True
    for seed in SEEDS:
        batch, new = prepared(algorithm, seed)
        parts = torch.arange(len(new)).split(4)
        whole = Normaliser.of(batch, len(parts), algorithm.correction)
        split = [policy_loss(algorithm, batch.rows(rows), new[rows], normaliser=whole).loss for rows in parts]
        adds_up &= same(torch.stack(split).sum(), policy_loss(algorithm, batch, new, normaliser=whole).loss)
    assert adds_up or algorithm.name in BATCH_STATISTICS
