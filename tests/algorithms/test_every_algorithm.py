"""What must hold for every named algorithm from its rewards on; tests/objective has what holds for every pipeline."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.algorithms.ragged import ragged
from tests.objective.random_batches import solved
from workbench.algorithms import ALGORITHMS
from workbench.objective import Algorithm, Normaliser, policy_loss, prepare

SEEDS = range(2)
every = pytest.mark.parametrize("algorithm", [a.within(20) for a in ALGORITHMS.values()], ids=list(ALGORITHMS))


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
def test_neither_the_order_of_sequences_nor_padding_matters(algorithm: Algorithm) -> None:
    for seed in SEEDS:
        batch, new = ragged(seed)
        expected, gradient = solved(algorithm, prepare(algorithm, batch), new)
        order = torch.randperm(len(new), generator=torch.Generator().manual_seed(seed))
        moved = vars(batch.rows(order)).items()
        wider = replace(batch, **{k: pad(x, (0, 5)) if x is not None and x.dim() == 2 else x for k, x in moved})
        found, widened = solved(algorithm, prepare(algorithm, wider), pad(new[order], (0, 5)))
        assert same(found.loss, expected.loss)
        assert same(widened[:, :-5], gradient[order])


@every
def test_extreme_log_ratios_equal_rewards_and_groups_of_one_give_numbers(algorithm: Algorithm) -> None:
    batch, new = ragged(1)
    equal = replace(batch, score=torch.ones_like(batch.score))
    sign = torch.where(torch.arange(batch.mask.shape[1]) % 3 == 0, -1.0, 1.0)
    far = [torch.where(batch.mask, batch.log_prob_old + d * sign, 0).clamp(max=0) for d in (50.0, -50.0, 700.0)]
    for made in (replace(batch, log_prob_behaviour=batch.log_prob_old), equal, replace(batch, group=batch.trajectory)):
        ready = prepare(algorithm, made)
        assert ready.need("advantages").isfinite().all()
        for log_prob in (new, *far):
            out, gradient = solved(algorithm, ready, log_prob)
            assert out.loss.isfinite()
            assert gradient.isfinite().all()
    assert algorithm.advantage.group_size == 1 or not prepare(algorithm, equal).need("advantages").any()


@every
def test_the_clip_of_tokens_acts_and_no_gradient_reaches_what_it_stopped(algorithm: Algorithm) -> None:
    if algorithm.ratio.level != "token":
        pytest.skip("the clip stops units")
    stopped = 0
    for seed in SEEDS:
        batch, new = ragged(seed, scale=0.9)
        out, gradient = solved(replace(algorithm, kl=ALGORITHMS["grpo"].kl), prepare(algorithm, batch), new)
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
        batch, new = ragged(seed)
        batch = prepare(algorithm, batch)
        parts = torch.arange(len(new)).split(4)
        whole = Normaliser.of(batch, len(parts), algorithm.correction)
        split = [policy_loss(algorithm, batch.rows(rows), new[rows], normaliser=whole).loss for rows in parts]
        adds_up &= same(torch.stack(split).sum(), policy_loss(algorithm, batch, new, normaliser=whole).loss)
    assert adds_up or algorithm.name in BATCH_STATISTICS
