"""Columns of one optimizer update: what stabilisers, KL terms and turn-level critics may not disturb."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.learn.test_distinct import TOKENIZER, data
from workbench.algorithms import ALGORITHMS
from workbench.batch import Batch
from workbench.diagnostics import measure_updates
from workbench.learn import networks
from workbench.learn.networks import Critic, log_probs
from workbench.learn.update import Learner
from workbench.objective import Algorithm, prepare
from workbench.objective.advantage import TurnGae, first_tokens
from workbench.objective.clip import Hard, Ppo, Soft
from workbench.objective.kl import LossKL
from workbench.objective.stabilise import AdvNorm, CNorm, KlClipFrac, RmsBatch, RmsSeq, RmsTurn, Subtract
from workbench.spec import LearnSettings, PolicySettings

GRPO = ALGORITHMS["grpo"]
SMALL = PolicySettings(hidden=16, layers=1, heads=2, mlp=16)
BIAS = ("clip_bias_norm", "clip_bias_ratio", "clip_bias_cosine")


def drifted(algorithm: Algorithm, network: Any, values: torch.Tensor | None = None) -> Batch:
    """The ragged batch with old log-probs up to 1.5 nats from those of `network`."""
    batch = data()
    with torch.no_grad():
        now = torch.where(batch.mask, log_probs(network, batch.tokens)[0], 0)
    old = torch.where(batch.mask, now + torch.linspace(-1.5, 1.5, now.numel()).view_as(now), 0)
    return prepare(algorithm, replace(batch, log_prob_old=old, values=values))


def columns(algorithm: Algorithm, values: torch.Tensor | None = None, **chosen: Any) -> dict[str, Any]:
    """Table `minibatch` after one update."""
    network = networks.create(SMALL, TOKENIZER, seed=0)
    settings = LearnSettings.model_validate({"policy": {"lr": 0.5}, "clip_bias_every": 1} | chosen)
    learner = Learner(algorithm, settings, network, Critic(network) if algorithm.critic else None)
    return measure_updates(learner.update(drifted(algorithm, network, values), 0, 0))


def told(column: Any) -> float | None:
    return None if column is None or np.ma.getmaskarray(column)[0] else float(column[0])


def test_the_clipping_bias_is_compared_with_the_gradient_of_the_unclipped_surrogate():
    network = networks.create(SMALL, TOKENIZER, seed=0)
    batch = drifted(GRPO, network)
    ratio = (torch.where(batch.mask, log_probs(network, batch.tokens)[0] - batch.log_prob_old, 0)).exp()
    a, n = batch.advantages, batch.mask.sum()
    kept = torch.where((a > 0) & (ratio > 1.2) | (a < 0) & (ratio < 0.8), 0, 1)

    def gradient(weight: torch.Tensor) -> torch.Tensor:
        surrogate = (batch.mask * weight * a * ratio).sum() / n
        made = torch.autograd.grad(surrogate, list(network.parameters()), retain_graph=True)
        return torch.cat([g.reshape(-1) for g in made]).double()

    free, bias = gradient(torch.ones_like(a)), gradient(1 - kept)
    expected = [bias.norm(), bias.norm() / free.norm(), bias @ free / (bias.norm() * free.norm())]
    assert 0.2 < float(expected[2]) < 0.95
    found = columns(GRPO)
    assert [told(found[name]) for name in BIAS] == pytest.approx([float(x) for x in expected], rel=1e-4)


def test_measuring_the_clipping_bias_changes_no_weight_of_a_token():
    network = networks.create(SMALL, TOKENIZER, seed=0)
    weights = []
    for every in (0, 1):
        settings = LearnSettings.model_validate({"policy": {"lr": 1e-9}, "clip_bias_every": every, "entropy_coef": 0.1})
        weights.append(Learner(GRPO, settings, network, None).update(drifted(GRPO, network), 0, 0).gradient_weight)
    assert torch.allclose(*weights, rtol=1e-4, atol=1e-8)
    assert weights[0].abs().sum() > 0


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({"stabilise": RmsBatch(tau=1.0)}, {}),
        ({"stabilise": RmsBatch(tau=1.0)}, {"micro_batch": 4}),
        ({"stabilise": RmsSeq(tau=1.0)}, {}),
        ({"stabilise": RmsTurn(tau=1.0)}, {}),
        ({"stabilise": CNorm(guard=0.01)}, {}),
        ({"stabilise": Subtract(alpha=0.5)}, {}),
        ({"stabilise": KlClipFrac()}, {}),
        ({"kl": LossKL("k2", 3.0)}, {"micro_batch": 4}),
        ({}, {"entropy_coef": 3.0}),
        ({"stabilise": RmsBatch(tau=1.0), "kl": LossKL("k2", 3.0)}, {"entropy_coef": 3.0}),
    ],
    ids=str,
)
def test_nothing_beside_the_surrogate_moves_the_columns_of_the_clipping_bias(changes, chosen):
    algorithm = replace(GRPO, **changes)
    found, plain = columns(algorithm, **chosen), columns(GRPO)
    assert abs(told(found["grad_norm"]) / told(plain["grad_norm"]) - 1) > 0.05, "the gradient itself is another one"
    assert [told(found[name]) for name in BIAS] == pytest.approx([told(plain[name]) for name in BIAS], rel=1e-4)


def test_a_critic_that_is_exact_where_it_has_targets_explains_everything():
    algorithm = replace(ALGORITHMS["turn-ppo-mdp"], advantage=TurnGae(gamma=1.0, lam=1.0))
    batch = data()
    exact = torch.where(first_tokens(batch.turn), batch.score[:, None], 7.0)  # nobody asks what it says inside a turn
    found = columns(algorithm, values=exact)
    assert told(found["explained_variance"]) == pytest.approx(1.0, abs=1e-4)
    for name in ("value_mae", "value_bias", "value_mae_out_of_range"):
        assert told(found[name]) == pytest.approx(0.0, abs=1e-6), name
    # The new critic says 0 everywhere. Lost: V_old = .9, G = 0, so V^c = .4 is worse. Won: V_old = 0, nothing to clip.
    first = first_tokens(batch.turn)
    lost = float((first & (batch.score[:, None] == 0)).sum() / first.sum())
    far = columns(algorithm, values=torch.where(first, 0.9 * (1 - batch.score[:, None]), 7.0))
    assert told(far["vf_clip_frac"]) == pytest.approx(lost)


@pytest.mark.parametrize(
    ("stabilise", "ratio", "factor"),
    [
        (None, False, False), (RmsBatch(), True, True), (RmsTurn(), True, True), (RmsSeq(), True, True),
        (CNorm(), False, True), (Subtract(), False, False), (KlClipFrac(), False, False), (AdvNorm(), False, False),
    ],
    ids=str,
)  # fmt: skip
def test_only_what_a_stabiliser_has_is_told_of_it(stabilise, ratio, factor):
    found = columns(GRPO if stabilise is None else replace(GRPO, stabilise=stabilise))
    measured = [told(found[name]) is not None for name in ("stabiliser_ratio", "stabiliser_factor")]
    assert measured == [ratio, factor]
    assert told(found["clipped_rms"]) > 0
    assert told(found["unclipped_rms"]) > 0


def test_the_ratio_that_is_told_is_the_largest_that_was_judged():
    whole = told(columns(replace(GRPO, stabilise=RmsBatch()))["stabiliser_ratio"])
    c, n = (told(columns(GRPO)[name]) for name in ("clipped_rms", "unclipped_rms"))
    assert whole == pytest.approx(c / n)
    for stabilise, chosen in ((RmsBatch(), {"micro_batch": 4}), (RmsTurn(), {}), (RmsSeq(), {})):
        found = columns(replace(GRPO, stabilise=stabilise), **chosen)
        largest = told(found["stabiliser_ratio"])
        assert largest != pytest.approx(whole, rel=1e-3)
        fires = columns(replace(GRPO, stabilise=replace(stabilise, tau=largest * 0.99)), **chosen)
        idle = columns(replace(GRPO, stabilise=replace(stabilise, tau=max(1.0, largest * 1.01))), **chosen)
        assert told(fires["stabiliser_factor"]) < 1 == told(idle["stabiliser_factor"])


def test_a_clip_is_counted_where_it_leaves_no_gradient():
    for clip in (ALGORITHMS["cispo"].clip, Hard()):  # they bound weights, stop no gradient, and have a bias
        found = columns(replace(GRPO, clip=clip))
        assert told(found["out_of_range_frac"]) > 0.5
        assert told(found["clip_frac"]) == told(found["clip_low_frac"]) == told(found["clip_high_frac"]) == 0
        assert told(found["clip_bias_norm"]) > 0
        assert told(found["clip_bias_cosine"]) is not None
    ppo, soft = (columns(replace(GRPO, clip=clip)) for clip in (Ppo(), Soft()))
    assert told(ppo["clip_frac"]) < told(soft["clip_frac"]) < told(soft["out_of_range_frac"])
