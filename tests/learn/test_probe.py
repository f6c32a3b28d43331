"""The probe: worked numbers of the noise scale, and that it changes nothing that it looks at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workbench.agent.tokenizer import build_tokenizer
from workbench.algorithms import ALGORITHMS
from workbench.learn import policy
from workbench.learn.probe import PARTS, Probe, controls
from workbench.learn.synthetic import synthetic
from workbench.learn.update import Learner
from workbench.objective import prepare
from workbench.spec import LearnSettings, PolicySettings, RunSettings

TOKENIZER = build_tokenizer()
GRPO = ALGORITHMS["grpo"]


def learner(**settings: object) -> Learner:
    network = policy.create(PolicySettings(hidden=16, layers=1, heads=2, mlp=16), TOKENIZER, seed=0)
    made = Learner(GRPO, LearnSettings.model_validate(settings), network, None)
    made.probe.control = controls(TOKENIZER)
    return made


def batch():
    made = synthetic(4, len(TOKENIZER)).batch
    floats = {k: x.float() for k, x in vars(made).items() if x is not None and x.dtype == torch.float64}
    return prepare(GRPO, replace(made, **floats))


def test_noise_scale_of_four_gradients():
    samples = torch.tensor([[1, 0], [0.8, 0.2], [1.2, -0.4], [0.6, 0.6]], dtype=torch.float64)
    parts = list(samples / 4)  # a part's loss carries the minibatch's divisor
    told = Probe(GRPO)._noise([1, 1, 1, 1], parts, samples.mean(0))
    assert told["noise_trace"] == pytest.approx(0.24)
    assert told["noise_signal"] == pytest.approx(0.76)
    assert told["noise_scale"] == pytest.approx(0.315789, abs=1e-6)
    assert told["gradient_cosine"] == pytest.approx(0.795717, abs=1e-6)


def test_a_signal_that_is_not_positive_has_no_noise_scale():
    samples = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64)
    told = Probe(GRPO)._noise([1, 1, 1, 1], list(samples / 4), samples.mean(0))
    assert told["noise_signal"] < 0
    assert told["noise_scale"] is None
    assert Probe(GRPO)._noise([3], [samples[0]], samples[0])["gradient_cosine"] is None


def test_an_update_is_the_same_with_a_probe_and_without_one():
    made, (with_probe, without) = batch(), (learner(probe_every=1), learner())
    for _ in range(2):
        told, silent = with_probe.update(made, 0, 0).scalars, without.update(made, 0, 0).scalars
    pairs = zip(with_probe.policy.parameters(), without.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert told["grad_norm"] == silent["grad_norm"]
    assert told["gradient_cosine_previous"][0] is not None
    assert "noise_scale" not in silent


def test_the_parts_add_up_to_the_gradient_of_the_update():
    made, one = batch(), learner(probe_every=1)
    told = one.update(made, 0, 0).scalars
    assert len(made.tokens) >= 2 * PARTS
    assert told["proxy_signal"][0] == pytest.approx(told["grad_norm"][0] ** 2, rel=1e-4)
    n = len(made.tokens)
    power, signal = told["proxy_power"][0], told["proxy_signal"][0]
    assert told["proxy_noise"][0] == pytest.approx((power - signal) / (n - 1))


def test_the_power_of_a_sequence_is_the_squared_norm_of_its_scores():
    made, one = batch(), learner()
    with torch.no_grad():
        log_p = torch.log_softmax(one.policy(input_ids=made.tokens[:, :-1]).logits.float(), -1)
    p = log_p.exp()
    score = torch.nn.functional.one_hot(made.tokens[:, 1:], p.shape[-1]) - p  # d log p_t / d logits
    squares = (made.advantages[:, 1:] * made.mask[:, 1:]).square() * score.square().sum(-1)
    log_prob = torch.nn.functional.pad(log_p.gather(-1, made.tokens[:, 1:, None]).squeeze(-1), (1, 0))
    power, sequences = one.probe._power(made, log_prob, p)
    assert power == pytest.approx(float(squares.sum()), rel=1e-5)
    assert sequences == len(made.tokens)


def test_tags_are_told_apart_from_other_tokens():
    made, one = batch(), learner(probe_every=1)
    tag, tokens = controls(TOKENIZER)[0], made.tokens.clone()
    assert len(controls(TOKENIZER)) == 4
    tokens[made.mask] = 20  # an ordinary word
    plain = one.probe.measure(one.policy, one.policy_parameters, replace(made, tokens=tokens))
    assert plain["control_on_prob"] is None
    assert 0 < plain["control_off_prob"] < 1
    tokens[made.mask] = tag
    tags = one.probe.measure(one.policy, one.policy_parameters, replace(made, tokens=tokens))
    assert tags["control_off_prob"] is None
    assert 0 < tags["control_on_prob"] < 1


def test_a_probe_that_is_off_leaves_no_trace_in_the_settings():
    assert "probe_every" not in RunSettings().model_dump()["learn"]
    assert RunSettings.model_validate({"learn": {"probe_every": 4}}).model_dump()["learn"]["probe_every"] == 4
