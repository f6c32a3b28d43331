"""The probe: worked numbers of the noise scale, and that it changes nothing that it looks at.

tests/learn/test_reference.py computes every column of the probe again, for every algorithm.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from workbench.agent.tokenizer import build_tokenizer
from workbench.algorithms import ALGORITHMS, resolve
from workbench.batch import Batch
from workbench.learn import checkpoint, networks
from workbench.learn.checks import synthetic
from workbench.learn.probe import controls, cosine, noise, power
from workbench.learn.update import Learner
from workbench.objective import Algorithm, prepare
from workbench.spec import LearnSettings, PolicySettings, RunSettings

TOKENIZER = build_tokenizer()
GRPO = ALGORITHMS["grpo"]


def learner(algorithm: Algorithm = GRPO, **chosen: Any) -> Learner:
    network = networks.create(PolicySettings(hidden=16, layers=1, heads=2, mlp=16), TOKENIZER, seed=0)
    made = Learner(algorithm, LearnSettings.model_validate(chosen), network, None)
    made.probe.control = controls(TOKENIZER)
    return made


def batch(algorithm: Algorithm = GRPO) -> Batch:
    made, _ = synthetic(4, len(TOKENIZER))
    floats = {k: x.float() for k, x in vars(made).items() if x is not None and x.dtype == torch.float64}
    return prepare(algorithm, replace(made, **floats))


def measured(one: Learner, made: Batch) -> dict[str, float | None]:
    return one.probe.measure(one.policy, one.policy_parameters, made)


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
    found = noise(sizes, torch.tensor(gradients, dtype=torch.float64))
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert cosine(torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)) is None


def test_the_correction_that_enters_the_power_is_that_of_the_whole_minibatch():
    normalised = resolve("tis", {"correction": {"normalise": True}})
    made, one = batch(normalised), learner(normalised)
    weight = normalised.correction.weights(made)
    assert weight[made.mask].mean() == pytest.approx(1)
    with torch.no_grad():
        p = torch.log_softmax(one.policy(input_ids=made.tokens[:, :-1]).logits.float(), -1).exp()
    expected = power(made.advantages * weight, made, p) / len(made.tokens)
    assert measured(one, made)["proxy_power"] == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_the_last_probe_outlives_a_checkpoint(tmp_path):
    made, one, fresh = batch(), learner(probe_every=1), learner(probe_every=1)
    one.update(made, 0, 0)
    checkpoint.load(checkpoint.save(tmp_path, one, checkpoint.Progress(1, 0.0, [], [])), fresh)
    again = [x.update(made, 0, 0).scalars["gradient_cosine_previous"][0] for x in (one, fresh)]
    assert again[0] is not None
    assert again[0] == again[1]


def test_tags_are_measured_where_they_are_single_tokens_of_the_vocabulary():
    made, one = batch(), learner()
    assert set(controls(TOKENIZER)) == {"search", "search_end", "answer", "answer_end"}
    assert 0 < measured(one, made)["control_off_prob"] < 1
    one.probe.control = {}
    assert not [name for name in measured(one, made) if name.endswith(("on_prob", "off_prob"))]


def test_a_probe_that_is_off_leaves_no_trace_in_the_settings():
    assert "probe_every" not in RunSettings().model_dump()["learn"]
    assert RunSettings.model_validate({"learn": {"probe_every": 4}}).model_dump()["learn"]["probe_every"] == 4
