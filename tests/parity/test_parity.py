"""Losses, gradients, advantages, weights and clip statistics against what verl and TRL computed, on 50
batches each.

The numbers were recorded by `make parity`; a tensor is compared by three random projections and its norm.
Where we differ on purpose, the difference itself is asserted.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sorl.algorithms import ALGORITHMS
from sorl.batch import Batch, masked_mean
from sorl.measures.divergence import k3
from sorl.objective import Algorithm, policy_loss, prepare, value_loss
from sorl.objective import aggregate as agg
from sorl.objective.advantage import Advantage, Gae, Grpo, MeanOnly, ReinforcePp, Rloo
from sorl.objective.clip import Gamma, LogClip, Ppo, SgClip, TvMask
from sorl.objective.kl import estimate
from sorl.objective.ratio import Correction, IcePop, Mis, Tis
from tests.parity.cases import SCALE, SEEDS, case, new_values, sequence_advantages, sketch

Numbers = Callable[[int, Batch, Tensor], list[float]]  # of a seed, its batch and its new log-probs
RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
PPO = ALGORITHMS["ppo"]
GRPO = ALGORITHMS["grpo"]
PLAIN = replace(PPO, clip=Ppo(0.2, 0.28, dual=1.5))
WIDER = replace(GRPO, clip=Ppo(0.2, 0.28))


@cache
def batches() -> list[tuple[Batch, Tensor]]:
    return [case(seed) for seed in SEEDS]


def near(expected: list[float]) -> Any:
    return pytest.approx(expected, rel=1e-6, abs=1e-6)


def differentiated(term: Tensor, leaf: Tensor) -> list[float]:
    (gradient,) = torch.autograd.grad(term, leaf)
    return [float(term.detach()), *sketch(gradient)]


def solved(algorithm: Algorithm, batch: Batch, new: Tensor) -> tuple[list[float], Any]:
    leaf = new.clone().requires_grad_()
    out = policy_loss(algorithm, batch, leaf)
    return differentiated(out.loss, leaf), out.terms


def share(flags: Tensor, batch: Batch) -> float:
    return float(masked_mean(flags.double(), batch.mask))


def loss(algorithm: Algorithm) -> Numbers:
    """Loss, gradient, share of tokens that the clip stopped, share that the dual clip bounded."""

    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        found, terms = solved(algorithm, batch, new)
        return [*found, share(terms.active_low | terms.active_high, batch), share(terms.dual, batch)]

    return numbers


def trl_loss(algorithm: Algorithm, flags: str = "tokens") -> Numbers:
    """Loss and gradient with one advantage a sequence, and the low and high clip fraction, of tokens or
    sequences.
    """

    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        found, terms = solved(algorithm, one_advantage(batch), new)
        if flags == "none":
            return found
        counted = batch.mask if flags == "tokens" else batch.mask & (batch.mask.cumsum(1) == 1)
        return [
            *found,
            *(float((x & counted).sum() / counted.sum()) for x in (terms.active_low, terms.active_high)),
        ]

    return numbers


def one_advantage(batch: Batch) -> Batch:
    return replace(batch, advantages=sequence_advantages(batch)[:, None] * batch.mask)


def aggregated(aggregate: agg.Aggregate) -> Numbers:
    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        return [float((aggregate.weights(batch, agg.Normaliser.of(batch)) * batch.advantages).sum())]

    return numbers


def advantages(advantage: Advantage) -> Numbers:
    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        made = prepare(replace(PPO, advantage=advantage), batch)
        return sketch(made.need("advantages")) + ([] if made.returns is None else sketch(made.returns))

    return numbers


def kl(name: Any) -> Numbers:
    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        leaf = new.clone().requires_grad_()
        return differentiated(
            masked_mean(estimate(name, leaf - batch.need("log_prob_ref")), batch.mask), leaf
        )

    return numbers


def critic(seed: int, batch: Batch, new: Tensor) -> list[float]:
    """Value loss, gradient, share of positions at which the clip decides."""
    leaf = new_values(batch, seed).requires_grad_()
    old = batch.need("values")
    target = batch.need("returns")
    clipped = leaf.detach().clamp(old - 0.5, old + 0.5)
    flags = (clipped - target).square() > (leaf.detach() - target).square()
    return [*differentiated(value_loss(leaf, batch, 0.5), leaf), share(flags, batch)]


def weights(correction: Correction) -> Numbers:
    return lambda seed, batch, new: sketch(torch.where(batch.mask, correction.weights(batch), 0))


def kept(low: float, high: float) -> Numbers:
    return lambda seed, batch, new: sketch((batch.mask & ~Mis(low, high).acts(batch)).double())


def off_policy(seed: int, batch: Batch, new: Tensor) -> list[float]:
    gap = (batch.log_prob_old - batch.log_prob_behaviour)[batch.mask].numpy()
    return [float((-gap).mean()), float(k3(gap).mean()), float((2 * torch.tensor(gap)).exp().mean() - 1)]


AGGREGATES: dict[str, agg.Aggregate] = {
    "token-mean": agg.TokenMean(),
    "token-sum": agg.TokenSum(),
    "seq-mean-token-sum": agg.SeqMeanTokenSum(),
    "seq-mean-token-sum-norm": agg.SeqMeanTokenSumNorm(horizon=14.0),  # the width of the recorded batches
    "seq-mean-token-mean": agg.SeqMeanTokenMean(),
}
TOLD_APART = {  # functions of verl from whose numbers ours differ on purpose: a test of its own each
    "compute_policy_loss_cispo",
    "compute_policy_loss_geo_mean",
    "compute_policy_loss_reinforce",
    "compute_rollout_correction_weights sequence 1.5 True",
    "compute_rollout_correction_weights sequence 0.5_2.0 True",
}
REJECTION = "compute_rollout_rejection_mask token_k1 0.5_1.5"
VERL: dict[str, Numbers] = {
    "batch": lambda seed, batch, new: sketch(
        torch.stack([new, batch.log_prob_old, batch.need("advantages")])
    ),
    "compute_gae_advantage_return 1.0 1.0": advantages(Gae(1.0, 1.0)),
    "compute_gae_advantage_return 0.99 0.95": advantages(Gae(0.99, 0.95)),
    "compute_grpo_outcome_advantage True": advantages(Grpo(1e-6)),
    "compute_grpo_outcome_advantage False": advantages(MeanOnly()),
    "compute_rloo_outcome_advantage": advantages(Rloo()),
    "compute_reinforce_plus_plus_outcome_advantage 1.0": advantages(ReinforcePp(1.0)),
    "compute_reinforce_plus_plus_outcome_advantage 0.9": advantages(ReinforcePp(0.9)),
    **{
        f"compute_policy_loss_vanilla {mode}": loss(replace(PLAIN, aggregate=a))
        for mode, a in AGGREGATES.items()
    },
    **{f"agg_loss {mode}": aggregated(a) for mode, a in AGGREGATES.items()},
    "compute_policy_loss_gspo": loss(replace(ALGORITHMS["gspo-token"], clip=Ppo(0.05, 0.06))),
    "compute_policy_loss_sapo": loss(ALGORITHMS["sapo"]),
    "compute_policy_loss_dppo_tv": loss(replace(ALGORITHMS["dppo"], clip=TvMask(0.1, 0.1, against="old"))),
    "compute_policy_loss_vanilla corrected": loss(replace(PLAIN, correction=Tis(1.5))),
    **{f"kl_penalty {name}": kl(name) for name in ("k1", "k2", "k3", "abs", "k1+", "k3+")},
    "compute_value_loss": critic,
    "compute_rollout_correction_weights token 1.5 False": weights(Tis(1.5)),
    "compute_rollout_correction_weights token 1.5 True": weights(Tis(1.5, normalise=True)),
    "compute_rollout_correction_weights token 0.5_2.0 False": weights(IcePop(0.5, 2.0)),
    "compute_rollout_correction_weights token 0.5_2.0 True": weights(IcePop(0.5, 2.0, normalise=True)),
    "compute_rollout_correction_weights sequence 1.5 False": weights(Tis(1.5, "seq_prod")),
    "compute_rollout_correction_weights sequence 0.5_2.0 False": weights(IcePop(0.5, 2.0, "seq_prod")),
    REJECTION: kept(1 / 1.5, 2.0),
    "compute_offpolicy_metrics": off_policy,
}
TRL: dict[str, Numbers] = {
    "_compute_loss grpo token": trl_loss(replace(WIDER, aggregate=agg.SeqMeanTokenMean())),
    "_compute_loss grpo sequence": trl_loss(replace(ALGORITHMS["gspo"], clip=WIDER.clip), flags="sequences"),
    "_compute_loss bnpo token": trl_loss(WIDER),
    "_compute_loss dr_grpo token": trl_loss(replace(WIDER, aggregate=agg.SeqMeanTokenSumNorm(horizon=40.0))),
    "_compute_loss dapo token": trl_loss(replace(ALGORITHMS["dapo"], clip=WIDER.clip)),
    "_compute_loss cispo token": trl_loss(
        replace(ALGORITHMS["cispo"], clip=SgClip(low=1.0, high=0.3)), flags="none"
    ),
    "_compute_loss sapo token": trl_loss(ALGORITHMS["sapo"], flags="none"),
    "_compute_loss vespo token": trl_loss(
        replace(ALGORITHMS["vespo"], clip=Gamma(against="old")), flags="none"
    ),
}


def test_every_recorded_case_is_compared_on_the_batches_that_were_recorded() -> None:
    assert (RECORDED["scale"], RECORDED["seeds"]) == (SCALE, len(SEEDS))
    assert len(SEEDS) >= 50
    assert RECORDED["verl"]["version"].startswith("0.9.")
    assert RECORDED["trl"]["version"].startswith("1.")
    assert set(RECORDED["verl"]["cases"]) == {*VERL, *TOLD_APART}
    assert set(RECORDED["trl"]["cases"]) == set(TRL)


@pytest.mark.parametrize(
    ("package", "name"), [*(("verl", name) for name in VERL), *(("trl", name) for name in TRL)]
)
def test_our_numbers_are_theirs(package: str, name: str) -> None:
    ours = {"verl": VERL, "trl": TRL}[package][name]
    theirs = RECORDED[package]["cases"][name]
    for seed, pair in enumerate(batches()):
        assert ours(seed, *pair) == near(theirs[seed]), seed


def test_cispo_and_the_weights_that_verl_calls_clipped() -> None:
    """verl's clip fraction counts clamped weights, which lose no gradient: ours is 0, and they are out of
    range.
    """
    theirs = RECORDED["verl"]["cases"]["compute_policy_loss_cispo"]
    for seed, (batch, new) in enumerate(batches()):
        found, terms = solved(replace(ALGORITHMS["cispo"], clip=SgClip(0.2, 0.28)), batch, new)
        assert not (terms.active_low | terms.active_high).any()
        assert [*found, share(terms.out_of_range, batch)] == near(theirs[seed][:6]), seed


def test_gmpo_and_the_token_that_it_calls_clipped() -> None:
    """verl's share of clipped tokens ignores on which side a token left the range; ours follows
    the gradient.
    """
    theirs = RECORDED["verl"]["cases"]["compute_policy_loss_geo_mean"]
    larger = 0
    for seed, (batch, new) in enumerate(batches()):
        found, terms = solved(replace(ALGORITHMS["gmpo"], clip=LogClip(0.3)), one_advantage(batch), new)
        assert found == near(theirs[seed][:5])
        ours = share(terms.active_low | terms.active_high, batch)
        blind = sum(theirs[seed][5:])
        assert ours <= blind + 1e-6
        larger += blind > ours + 1e-6
        assert share((new - batch.log_prob_old).abs() > 0.3, batch) == pytest.approx(blind, abs=1e-6)
    assert larger > 40


def test_reinforce_has_verls_gradient_and_another_value() -> None:
    """Ours is -A w with w = 1, verl's is -A log pi: the same gradient, and a value that says
    something else.
    """
    theirs = RECORDED["verl"]["cases"]["compute_policy_loss_reinforce"]
    for seed, (batch, new) in enumerate(batches()):
        found, _ = solved(ALGORITHMS["reinforce"], batch, new)
        assert found[1:] == near(theirs[seed][1:])
        assert abs(found[0] - theirs[seed][0]) > 1e-3


@pytest.mark.parametrize(
    ("threshold", "rule"),
    [
        ("1.5", Tis(1.5, "seq_prod", normalise=True)),
        ("0.5_2.0", IcePop(0.5, 2.0, "seq_prod", normalise=True)),
    ],
)
def test_normalised_weights_of_sequences_have_mean_one_over_tokens(threshold: str, rule: Correction) -> None:
    """As the loss counts them; in verl they have it over sequences."""
    theirs = RECORDED["verl"]["cases"][f"compute_rollout_correction_weights sequence {threshold} True"]
    ours = [weights(rule)(seed, *pair) for seed, pair in enumerate(batches())]
    assert sum(a != pytest.approx(b, rel=1e-4) for a, b in zip(ours, theirs, strict=True)) > 40
    first, _ = batches()[0]
    assert float(masked_mean(rule.weights(first), first.mask)) == pytest.approx(1)


def test_the_sign_trap_of_the_rejection_mask() -> None:
    """verl's token_k1 tests log(mu / pi): 0.5 and 1.5 keep omega in [1 / 1.5, 2], where ours bound omega
    itself.
    """
    same = kept(0.5, 1.5)
    theirs = RECORDED["verl"]["cases"][REJECTION]
    assert any(same(seed, *pair) != pytest.approx(theirs[seed]) for seed, pair in enumerate(batches()))
