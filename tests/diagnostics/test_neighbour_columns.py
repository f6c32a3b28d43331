"""Columns of the rollout correction, of template collapse, and of what is compared between trainer and sampler."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.diagnostics.shared_batch import rollouts_of
from tests.objective.worked_example import DELTA, MASK, OLD, R
from tests.objective.worked_example import batch as example
from workbench.diagnostics.evidence import Evidence, StepEvidence
from workbench.diagnostics.measure import measure_updates
from workbench.diagnostics.step import StepView, distinct_rollout_frac, prompt_retrieval_frac
from workbench.objective.rollout_correction import IcePop, Tis

SAMPLER = OLD - torch.tensor([[0, 0.1, -0.2, 50, 50, 1, 0.05, 0], [0, 0.3, 50, -0.1, 0, 0.9, -0.4, 0]]).double()


def evidence(correction=None, **changes) -> Evidence:
    made, one = example(R, log_prob_behaviour=SAMPLER), torch.Tensor.unsqueeze
    never, ones = torch.zeros_like(MASK), torch.ones_like(R)
    weights = None if correction is None else one(correction.weights(made), 0)
    acts = None if correction is None else one(correction.acts(made), 0)
    fields = {
        "mask": MASK, "turn": made.turn, "log_prob": OLD + DELTA, "log_prob_old": OLD, "log_prob_behaviour": SAMPLER,
        "ratio": ones, "active_low": never, "active_high": never, "out_of_range": MASK & (DELTA.abs() > 0.2),
        "dual": never, "factor": ones, "advantages": R, "entropy": ones, "gradient_weight": ones,
        "trajectory": torch.arange(2), "score": torch.zeros(2), "group": torch.zeros(2),
    } | changes  # fmt: skip
    tensors = {name: one(x, 0) for name, x in fields.items()}
    return Evidence(
        epoch=torch.tensor([0]), rollout_step=torch.tensor([0]), correction=weights, corrected=acts, **tensors
    )


def test_the_worked_weights_of_tis_and_icepop():
    tis = measure_updates(evidence(Tis(2.0)))
    assert float(tis["correction_mean"][0]) == pytest.approx(1.172744, abs=1e-6)
    for rule in (Tis(2.0), IcePop(0.5, 2.0)):
        columns = measure_updates(evidence(rule))
        assert float(columns["corrected_frac"][0]) == pytest.approx(2 / 11)
        assert float(columns["corrected_positive_frac"][0]) == pytest.approx(1 / 11)
        assert float(columns["corrected_negative_frac"][0]) == pytest.approx(1 / 11)


def test_without_a_correction_its_columns_are_null():
    columns = measure_updates(evidence())
    for name in ("correction_mean", "corrected_frac", "corrected_positive_frac", "corrected_negative_frac"):
        assert columns[name] is None
    for name in ("gradient_cosine", "noise_scale", "proxy_power", "control_on_prob"):
        assert columns[name] is None


def test_correlation_of_trainer_and_sampler():
    p, q = OLD[MASK].exp().numpy(), SAMPLER[MASK].exp().numpy()
    found = float(measure_updates(evidence())["mismatch_pearson"][0])
    assert found == pytest.approx(np.corrcoef(p, q)[0, 1])


def test_likelihood_of_good_trajectories_and_value_error_where_the_data_is_stale():
    values, returns = torch.full_like(R, 0.5), R
    columns = measure_updates(evidence(values_old=values, returns=returns))
    assert float(columns["log_prob_positive"][0]) == pytest.approx(float((OLD + DELTA)[0][MASK[0]].mean()))
    stale = (R - 0.5).abs()[MASK & (DELTA.abs() > 0.2)]
    assert float(columns["value_mae_out_of_range"][0]) == pytest.approx(float(stale.mean()))


def view(*rollouts: tuple[int, list[int]]) -> StepView:
    """A step of rollouts that wrote these tokens, each with its prompt group."""
    made = rollouts_of([0.0] * len(rollouts), group=[g for g, _ in rollouts], written=[[w] for _, w in rollouts])
    return StepView(0, StepEvidence(made), None)


def test_an_answer_that_depends_on_its_prompt_is_found_again():
    own = view((0, [1, 2]), (0, [1, 2, 2]), (1, [3, 4]), (1, [3, 3, 4]))
    assert prompt_retrieval_frac(own) == 1
    assert distinct_rollout_frac(own) == 1


def test_a_template_could_belong_to_any_prompt():
    template = view((0, [1, 2]), (0, [1, 2]), (1, [1, 2]), (1, [1, 2]), (2, [1, 2]), (2, [1, 2]))
    assert prompt_retrieval_frac(template) == pytest.approx(1 / 3)
    assert distinct_rollout_frac(template) == 0.5


def test_a_rollout_does_not_vouch_for_itself():
    crossed = view((0, [1]), (0, [2]), (1, [1]), (1, [2]))
    assert prompt_retrieval_frac(crossed) == 0


def test_one_rollout_a_prompt_or_one_prompt_says_nothing():
    assert distinct_rollout_frac(view((0, [1]), (1, [2]))) is None
    assert prompt_retrieval_frac(view((0, [1]), (1, [2]))) is None
    assert prompt_retrieval_frac(view((0, [1]), (0, [2]))) is None
