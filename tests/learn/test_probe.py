"""The probe: worked numbers of the noise scale, and that it changes nothing that it looks at."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.agent.tokenizer import build_tokenizer
from workbench.algorithms import ALGORITHMS, resolve
from workbench.learn import checkpoint, networks
from workbench.learn.checks import synthetic
from workbench.learn.probe import controls, cosine, noise, power
from workbench.learn.update import Learner
from workbench.objective import prepare
from workbench.spec import ComputeSettings, LearnSettings, PolicySettings, RunSettings

TOKENIZER = build_tokenizer()
GRPO = ALGORITHMS["grpo"]


def learner(algorithm=GRPO, compute=ComputeSettings(), **chosen: object) -> Learner:
    network = networks.create(PolicySettings(hidden=16, layers=1, heads=2, mlp=16), TOKENIZER, seed=0)
    made = Learner(algorithm, LearnSettings.model_validate(chosen), network, None, compute=compute)
    made.probe.control = controls(TOKENIZER)
    return made


def batch(algorithm=GRPO):
    made = synthetic(4, len(TOKENIZER)).batch
    floats = {k: x.float() for k, x in vars(made).items() if x is not None and x.dtype == torch.float64}
    return prepare(algorithm, replace(made, **floats))


@pytest.mark.parametrize(
    ("sizes", "gradients", "expected"),  # a part's gradient carries the minibatch's divisor
    [
        ([1] * 4, [[0.25, 0], [0.2, 0.05], [0.3, -0.1], [0.15, 0.15]],
         {"noise_trace": 0.24, "noise_signal": 0.76, "noise_scale": 0.315789, "gradient_cosine": 0.795717}),
        # Sequences (1, 0), (0, 1), (1, 1) in parts of 2 and 1: |g_b|^2 = 1/2 and 2, their mean 5/4; |g_B|^2 = 8/9.
        ([2, 1], [[1 / 3, 1 / 3], [1 / 3, 1 / 3]],
         {"noise_trace": (5 / 4 - 8 / 9) / (3 / 4 - 1 / 3), "gradient_cosine": 1,
          "noise_signal": 8 / 9 - (5 / 4 - 8 / 9) / (3 / 4 - 1 / 3) / 3}),
        # A signal that is not positive has no noise scale, and one part nothing to compare.
        ([1] * 4, [[0.25, 0], [-0.25, 0], [0, 0.25], [0, -0.25]], {"noise_signal": -1 / 3, "noise_scale": None}),
        ([3], [[1, 0]], dict.fromkeys(("gradient_cosine", "noise_trace", "noise_signal", "noise_scale"))),
    ],
)  # fmt: skip
def test_the_noise_scale_has_its_worked_numbers(sizes, gradients, expected):
    told = noise(sizes, torch.tensor(gradients, dtype=torch.float64))
    assert {name: told[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert cosine(torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)) is None


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 6), st.integers(1, 5), st.integers(0, 10_000), st.floats(0.01, 100))
def test_agreement_is_a_cosine_and_the_noise_scale_has_no_unit(parts, dimensions, seed, scale):
    g = torch.randn(parts, dimensions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    told, scaled, turned = (noise([3] * parts, x) for x in (g, g * scale, g.flip(0)))
    assert -1 - 1e-9 <= told["gradient_cosine"] <= 1 + 1e-9
    assert told["noise_trace"] >= -1e-9
    assert scaled["noise_trace"] == pytest.approx(told["noise_trace"] * scale**2)
    assert turned["noise_signal"] == pytest.approx(told["noise_signal"])
    if told["noise_signal"] > 1e-3:
        assert scaled["noise_scale"] == pytest.approx(told["noise_scale"])


def test_an_update_is_the_same_with_a_probe_and_without_one():
    made, (with_probe, without) = batch(), (learner(probe_every=1), learner())
    for _ in range(2):
        told, silent = with_probe.update(made, 0, 0).scalars, without.update(made, 0, 0).scalars
    pairs = zip(with_probe.policy.parameters(), without.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert told["grad_norm"] == silent["grad_norm"]
    assert told["gradient_cosine_previous"][0] is not None
    assert "noise_scale" not in silent


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_parts_add_up_to_the_gradient_of_the_update(name):
    algorithm = ALGORITHMS[name].within(84)
    one, made = learner(algorithm, probe_every=1), batch(algorithm)
    made = replace(made, log_prob_old=torch.where(made.mask, made.log_prob_old.clamp(-4.5, -2.5), 0))  # ratios to clip
    told = one.update(made, 0, 0).scalars
    assert told["proxy_signal"][0] > 0
    assert told["proxy_signal"][0] == pytest.approx(told["grad_norm"][0] ** 2, rel=1e-3)
    n = int(made.mask.any(1).sum())
    power, signal = told["proxy_power"][0], told["proxy_signal"][0]
    assert told["proxy_noise"][0] == pytest.approx((power - signal) / (n - 1))


def test_the_power_of_a_sequence_is_the_squared_norm_of_its_scores():
    made, one = batch(), learner()
    with torch.no_grad():
        log_p = torch.log_softmax(one.policy(input_ids=made.tokens[:, :-1]).logits.float(), -1)
    p = log_p.exp()
    score = torch.nn.functional.one_hot(made.tokens[:, 1:], p.shape[-1]) - p  # d log p_t / d logits
    squares = (made.advantages[:, 1:] * made.mask[:, 1:]).square() * score.square().sum(-1)
    assert power(made.advantages, made, p) == pytest.approx(float(squares.sum()), rel=1e-5)


def test_the_correction_that_enters_the_power_is_that_of_the_whole_minibatch():
    normalised = resolve("tis", {"correction": {"normalise": True}})
    made, one = batch(normalised), learner(normalised)
    weight = normalised.correction.weights(made)
    assert weight[made.mask].mean() == pytest.approx(1)
    told = one.probe.measure(one.policy, one.policy_parameters, made)
    with torch.no_grad():
        p = torch.log_softmax(one.policy(input_ids=made.tokens[:, :-1]).logits.float(), -1).exp()
    assert told["proxy_power"] == pytest.approx(power(made.advantages * weight, made, p) / len(made.tokens), rel=1e-5)


PROBED = ("gradient_cosine", "noise_trace", "noise_signal", "proxy_signal", "proxy_power", "control_off_prob")


def probed(made, **chosen):
    one = learner(**chosen)
    told = one.update(made, 0, 0).scalars
    return {name: told[name][0] for name in PROBED}


def test_padding_and_the_split_into_micro_batches_change_no_number_of_the_probe():
    made = batch()
    plain = probed(made, probe_every=1)
    pad = torch.nn.functional.pad
    floats = {"log_prob_old", "log_prob_behaviour", "log_prob_ref", "values", "advantages", "returns"}
    wide = {k: pad(x, (0, 5)) for k, x in vars(made).items() if x is not None and x.dim() == 2}
    assert floats & set(wide)
    for other in (
        probed(replace(made, **wide), probe_every=1),
        probed(made, probe_every=1, micro_batch=2),
        probed(made, compute=ComputeSettings(micro_batch_tokens=24), probe_every=1),
    ):
        assert other == pytest.approx(plain, rel=1e-4)


def test_sequences_without_a_trained_token_have_no_part_in_the_probe():
    made, one = batch(), learner()
    kept = torch.arange(len(made.tokens)) % 4 < 2
    some = replace(made, mask=made.mask & kept[:, None], turn_id=None)
    told = [
        one.probe.measure(one.policy, one.policy_parameters, part) for part in (some, some.rows(kept.nonzero()[:, 0]))
    ]
    assert {n: told[0][n] for n in PROBED} == pytest.approx({n: told[1][n] for n in PROBED}, rel=1e-5)
    none = replace(made, mask=torch.zeros_like(made.mask), turn_id=None)
    assert one.probe.measure(one.policy, one.policy_parameters, none) == {}


def test_the_gradient_of_the_last_probe_outlives_a_checkpoint(tmp_path):
    made, one, fresh = batch(), learner(probe_every=1), learner(probe_every=1)
    one.update(made, 0, 0)
    found = checkpoint.save(tmp_path, one, checkpoint.Progress(1, 1, 0.0, [], []))
    checkpoint.load(found, fresh)
    again = [x.update(made, 0, 0).scalars["gradient_cosine_previous"][0] for x in (one, fresh)]
    assert again[0] is not None
    assert again[0] == again[1]


def test_tags_are_told_apart_from_other_tokens():
    made, one = batch(), learner(probe_every=1)
    ids, tokens = controls(TOKENIZER), made.tokens.clone()
    assert set(ids) == {"search", "search_end", "answer", "answer_end"}
    tokens[made.mask] = 20  # an ordinary word
    plain = one.probe.measure(one.policy, one.policy_parameters, replace(made, tokens=tokens))
    assert plain["control_on_prob"] is None
    assert 0 < plain["control_off_prob"] < 1
    assert (
        plain["search_off_prob"] + plain["search_end_off_prob"] + plain["answer_off_prob"] < plain["control_off_prob"]
    )
    tokens[made.mask] = ids["search"]
    tags = one.probe.measure(one.policy, one.policy_parameters, replace(made, tokens=tokens))
    assert tags["control_off_prob"] is None
    assert 0 < tags["control_on_prob"] < 1
    assert tags["search_on_prob"] == pytest.approx(tags["control_on_prob"])
    assert tags["search_off_prob"] is None
    assert tags["answer_on_prob"] is None
    one.probe.control = {}  # tags of several tokens are not measured
    told = one.probe.measure(one.policy, one.policy_parameters, made)
    assert {v for k, v in told.items() if k.endswith(("on_prob", "off_prob"))} == {None}


def test_the_probability_of_a_tag_is_its_mean_where_it_was_written_and_where_it_was_not():
    made, one = batch(), learner()
    tag = controls(TOKENIZER)["answer"]
    tokens = torch.where(made.mask & (torch.arange(made.tokens.shape[1]) % 2 == 0), tag, made.tokens)
    made = replace(made, tokens=tokens)
    told = one.probe.measure(one.policy, one.policy_parameters, made)
    with torch.no_grad():
        p = torch.log_softmax(one.policy(input_ids=tokens[:, :-1]).logits.float(), -1).exp()[..., tag]
    written, where = tokens[:, 1:] == tag, made.mask[:, 1:]
    assert told["answer_on_prob"] == pytest.approx(float(p[where & written].mean()), rel=1e-5)
    assert told["answer_off_prob"] == pytest.approx(float(p[where & ~written].mean()), rel=1e-5)


def test_a_probe_that_is_off_leaves_no_trace_in_the_settings():
    assert "probe_every" not in RunSettings().model_dump()["learn"]
    assert RunSettings.model_validate({"learn": {"probe_every": 4}}).model_dump()["learn"]["probe_every"] == 4
