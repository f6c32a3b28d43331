"""Losses, gradients, advantages, weights and clip statistics against what verl and TRL computed, on 50 batches each.

The numbers were recorded by `make parity`; a tensor is compared by three random projections and its norm. Where we
differ on purpose, the difference itself is asserted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity.cases import SCALE, SEEDS, case, new_values, sequence_advantages, sketch
from workbench.algorithms import ALGORITHMS
from workbench.batch import Batch, masked_mean
from workbench.diagnostics.divergence import k3
from workbench.objective import Algorithm, policy_loss, prepare, value_loss
from workbench.objective import aggregate as agg
from workbench.objective.advantage import Gae, Grpo, MeanOnly, ReinforcePp, Rloo
from workbench.objective.clip import Gamma, LogClip, Ppo, SgClip, TvMask
from workbench.objective.kl import estimate
from workbench.objective.rollout_correction import Correction, IcePop, Mis, Tis

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
PPO, GRPO = ALGORITHMS["ppo"], ALGORITHMS["grpo"]
AGGREGATES = {
    "token-mean": agg.TokenMean(),
    "token-sum": agg.TokenSum(),
    "seq-mean-token-sum": agg.SeqMeanTokenSum(),
    "seq-mean-token-sum-norm": agg.SeqMeanTokenSumNorm(horizon=14.0),  # the width of the recorded batches
    "seq-mean-token-mean": agg.SeqMeanTokenMean(),
}
PLAIN = replace(PPO, clip=Ppo(0.2, 0.28, dual=1.5))


@cache
def batches() -> list[tuple[Batch, Tensor]]:
    return [case(seed) for seed in SEEDS]


def recorded(package: str, name: str) -> list[list[float]]:
    return RECORDED[package]["cases"][name]


def compare(package: str, name: str, ours: Callable[[int, Batch, Tensor], list[float]]) -> None:
    theirs = recorded(package, name)
    assert len(theirs) == len(SEEDS) >= 50
    for seed, (batch, new) in enumerate(batches()):
        assert ours(seed, batch, new) == pytest.approx(theirs[seed], rel=1e-6, abs=1e-6), (name, seed)


def solved(algorithm: Algorithm, batch: Batch, new: Tensor) -> tuple[list[float], Any]:
    leaf = new.clone().requires_grad_()
    out = policy_loss(algorithm, batch, leaf)
    (gradient,) = torch.autograd.grad(out.loss, leaf)
    return [float(out.loss.detach()), *sketch(gradient)], out.terms


def share(flags: Tensor, batch: Batch) -> float:
    return float(masked_mean(flags.double(), batch.mask))


def loss(algorithm: Algorithm) -> Callable[[int, Batch, Tensor], list[float]]:
    """Loss, gradient, share of tokens that the clip stopped, share that the dual clip bounded."""

    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        found, terms = solved(algorithm, batch, new)
        return [*found, share(terms.active_low | terms.active_high, batch), share(terms.dual, batch)]

    return numbers


def test_the_batches_are_those_that_were_recorded() -> None:
    assert (RECORDED["scale"], RECORDED["seeds"]) == (SCALE, len(SEEDS))
    assert RECORDED["verl"]["version"].startswith("0.9.")
    assert RECORDED["trl"]["version"].startswith("1.")

    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        return sketch(torch.stack([new, batch.log_prob_old, batch.need("advantages")]))

    compare("verl", "batch", numbers)


def test_every_recorded_case_is_compared_here() -> None:
    text = Path(__file__).read_text()
    for package in ("verl", "trl"):
        for name in {name.split()[0] for name in RECORDED[package]["cases"]}:
            assert name.removeprefix("compute_policy_loss_") in text, name


# --- verl: advantages


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95)])
def test_gae(gamma: float, lam: float) -> None:
    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        made = prepare(replace(PPO, advantage=Gae(gamma, lam)), batch)
        return sketch(made.need("advantages")) + sketch(made.need("returns"))

    compare("verl", f"compute_gae_advantage_return {gamma} {lam}", numbers)


@pytest.mark.parametrize(
    ("name", "advantage"),
    [
        ("compute_grpo_outcome_advantage True", Grpo(1e-6)),
        ("compute_grpo_outcome_advantage False", MeanOnly()),
        ("compute_rloo_outcome_advantage", Rloo()),
        ("compute_reinforce_plus_plus_outcome_advantage 1.0", ReinforcePp(1.0)),
        ("compute_reinforce_plus_plus_outcome_advantage 0.9", ReinforcePp(0.9)),
    ],
)
def test_advantages_without_a_critic(name: str, advantage: Any) -> None:
    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        made = prepare(replace(GRPO, advantage=advantage), batch).advantages
        assert made is not None
        return sketch(made)

    compare("verl", name, numbers)


# --- verl: losses


@pytest.mark.parametrize("mode", list(AGGREGATES))
def test_ppo_with_every_aggregation(mode: str) -> None:
    compare("verl", f"compute_policy_loss_vanilla {mode}", loss(replace(PLAIN, aggregate=AGGREGATES[mode])))
    weights = AGGREGATES[mode].weights

    def sums(seed: int, batch: Batch, new: Tensor) -> list[float]:
        return [float((weights(batch, agg.Normaliser.of(batch)) * batch.need("advantages")).sum())]

    compare("verl", f"agg_loss {mode}", sums)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("gspo", replace(ALGORITHMS["gspo-token"], clip=Ppo(0.05, 0.06))),
        ("sapo", ALGORITHMS["sapo"]),
        ("dppo_tv", replace(ALGORITHMS["dppo"], clip=TvMask(0.1, 0.1, against="old"))),
    ],
)
def test_losses_of_the_neighbours(name: str, algorithm: Algorithm) -> None:
    compare("verl", f"compute_policy_loss_{name}", loss(algorithm))


def test_cispo_and_the_weights_that_verl_calls_clipped() -> None:
    """verl's clip fraction counts clamped weights, which lose no gradient: ours is 0, and they are out of range."""
    cispo = replace(ALGORITHMS["cispo"], clip=SgClip(0.2, 0.28))
    theirs = recorded("verl", "compute_policy_loss_cispo")
    for seed, (batch, new) in enumerate(batches()):
        found, terms = solved(cispo, batch, new)
        assert not (terms.active_low | terms.active_high).any()
        assert [*found, share(terms.out_of_range, batch)] == pytest.approx(theirs[seed][:6], rel=1e-6, abs=1e-6), seed


def test_gmpo_and_the_token_that_it_calls_clipped() -> None:
    """verl's share of clipped tokens ignores on which side a token left the range; ours follows the gradient."""
    gmpo = replace(ALGORITHMS["gmpo"], clip=LogClip(0.3))
    theirs = recorded("verl", "compute_policy_loss_geo_mean")
    larger = 0
    for seed, (batch, new) in enumerate(batches()):
        made = replace(batch, advantages=sequence_advantages(batch)[:, None] * batch.mask)
        found, terms = solved(gmpo, made, new)
        assert found == pytest.approx(theirs[seed][:5], rel=1e-6, abs=1e-6)
        ours, blind = share(terms.active_low | terms.active_high, batch), sum(theirs[seed][5:])
        assert ours <= blind + 1e-6
        larger += blind > ours + 1e-6
        assert share((new - batch.log_prob_old).abs() > 0.3, batch) == pytest.approx(blind, abs=1e-6)
    assert larger > 40


def test_reinforce_has_verls_gradient_and_another_value() -> None:
    """Ours is -A w with w = 1, verl's is -A log pi: the same gradient, and a value that says something else."""
    theirs = recorded("verl", "compute_policy_loss_reinforce")
    for seed, (batch, new) in enumerate(batches()):
        found, _ = solved(ALGORITHMS["reinforce"], batch, new)
        assert found[1:] == pytest.approx(theirs[seed][1:], rel=1e-6, abs=1e-6)
        assert abs(found[0] - theirs[seed][0]) > 1e-3


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
def test_kl_penalty(name: Any) -> None:
    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        leaf = new.clone().requires_grad_()
        term = masked_mean(estimate(name, leaf - batch.need("log_prob_ref")), batch.mask)
        (gradient,) = torch.autograd.grad(term, leaf)
        return [float(term.detach()), *sketch(gradient)]

    compare("verl", f"kl_penalty {name}", numbers)


def test_value_loss() -> None:
    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        leaf = new_values(batch, seed).requires_grad_()
        term = value_loss(leaf, batch, 0.5)
        (gradient,) = torch.autograd.grad(term, leaf)
        value = leaf.detach()
        clipped = value.clamp(batch.need("values") - 0.5, batch.need("values") + 0.5)
        flags = (clipped - batch.need("returns")).square() > (value - batch.need("returns")).square()
        return [float(term.detach()), *sketch(gradient), share(flags, batch)]

    compare("verl", "compute_value_loss", numbers)


# --- verl: rollout correction

CORRECTIONS: dict[tuple[str, str], Callable[[bool], Correction]] = {
    ("token", "1.5"): lambda n: Tis(1.5, "token", n),
    ("token", "0.5_2.0"): lambda n: IcePop(0.5, 2.0, "token", n),
    ("sequence", "1.5"): lambda n: Tis(1.5, "seq_prod", n),
    ("sequence", "0.5_2.0"): lambda n: IcePop(0.5, 2.0, "seq_prod", n),
}


@pytest.mark.parametrize(("level", "threshold"), list(CORRECTIONS))
@pytest.mark.parametrize("normalise", [False, True])
def test_rollout_correction_weights(level: str, threshold: str, normalise: bool) -> None:
    made = CORRECTIONS[level, threshold](normalise)
    name = f"compute_rollout_correction_weights {level} {threshold} {normalise}"

    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        weights = made.weights(batch)
        assert weights is not None
        return sketch(torch.where(batch.mask, weights, 0))

    if level == "token" or not normalise:
        compare("verl", name, numbers)
        return
    # Normalised weights of sequences have mean 1 over sequences in verl and over tokens here, as the loss counts them.
    differ = sum(
        numbers(seed, *pair) != pytest.approx(recorded("verl", name)[seed], rel=1e-4)
        for seed, pair in enumerate(batches())
    )
    assert differ > 40
    batch = batches()[0][0]
    weights = made.weights(batch)
    assert weights is not None
    assert float(masked_mean(weights, batch.mask)) == pytest.approx(1)


def test_a_corrected_loss() -> None:
    compare("verl", "compute_policy_loss_vanilla corrected", loss(replace(PLAIN, correction=Tis(1.5))))


def test_the_sign_trap_of_the_rejection_mask() -> None:
    """verl's token_k1 tests log(mu / pi): 0.5 and 1.5 keep omega in [1 / 1.5, 2], where ours bound omega itself."""
    name = "compute_rollout_rejection_mask token_k1 0.5_1.5"

    def kept(low: float, high: float) -> Callable[[int, Batch, Tensor], list[float]]:
        rule = Mis(low, high)
        return lambda seed, batch, new: sketch((batch.mask & ~rule.acts(batch)).double())

    compare("verl", name, kept(1 / 1.5, 2.0))
    same = kept(0.5, 1.5)
    assert any(same(i, *pair) != pytest.approx(recorded("verl", name)[i]) for i, pair in enumerate(batches()))


def test_off_policy_metrics() -> None:
    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        gap = (batch.log_prob_old - batch.log_prob_behaviour)[batch.mask].numpy()
        return [float((-gap).mean()), float(k3(gap).mean()), float((2 * torch.tensor(gap)).exp().mean() - 1)]

    compare("verl", "compute_offpolicy_metrics", numbers)


# --- TRL

TRL = {
    "_compute_loss grpo token": replace(GRPO, clip=Ppo(0.2, 0.28), aggregate=agg.SeqMeanTokenMean()),
    "_compute_loss grpo sequence": replace(ALGORITHMS["gspo"], clip=Ppo(0.2, 0.28)),
    "_compute_loss bnpo token": replace(GRPO, clip=Ppo(0.2, 0.28)),
    "_compute_loss dr_grpo token": replace(GRPO, clip=Ppo(0.2, 0.28), aggregate=agg.SeqMeanTokenSumNorm(horizon=40.0)),
    "_compute_loss dapo token": replace(ALGORITHMS["dapo"], clip=Ppo(0.2, 0.28)),
    "_compute_loss cispo token": replace(ALGORITHMS["cispo"], clip=SgClip(low=1.0, high=0.3)),
    "_compute_loss sapo token": ALGORITHMS["sapo"],
    "_compute_loss vespo token": replace(ALGORITHMS["vespo"], clip=Gamma(against="old")),
}


@pytest.mark.parametrize("name", list(TRL))
def test_losses_of_trl(name: str) -> None:
    flags = len(recorded("trl", name)[0]) > 5

    def numbers(seed: int, batch: Batch, new: Tensor) -> list[float]:
        made = replace(batch, advantages=sequence_advantages(batch)[:, None] * batch.mask)
        found, terms = solved(TRL[name], made, new)
        if not flags:
            return found
        if name.endswith("sequence"):  # TRL counts sequences, we count tokens
            first = batch.mask & (batch.mask.cumsum(1) == 1)
            return [*found, *(float((x & first).sum() / len(first)) for x in (terms.active_low, terms.active_high))]
        return [*found, share(terms.active_low, batch), share(terms.active_high, batch)]

    compare("trl", name, numbers)
