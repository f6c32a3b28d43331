"""Columns of the guard, the rollout correction and template collapse, and the trainer compared with its sampler."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.diagnostics.shared_batch import evidence_of, random_evidence, rollouts_of
from tests.objective.worked_example import DELTA, MASK, OLD, R
from tests.objective.worked_example import batch as example
from workbench.diagnostics.evidence import Evidence, StepEvidence, fingerprint
from workbench.diagnostics.measure import measure, measure_updates
from workbench.diagnostics.step import StepView, distinct_rollout_frac, prompt_retrieval_frac
from workbench.objective.rollout_correction import IcePop, Tis
from workbench.spec import GUARD, check

SAMPLER = OLD - torch.tensor([[0, 0.1, -0.2, 50, 50, 1, 0.05, 0], [0, 0.3, 50, -0.1, 0, 0.9, -0.4, 0]]).double()


def evidence(correction=None, **changes) -> Evidence:
    weights = {}
    if correction is not None:
        made = example(R, log_prob_behaviour=SAMPLER)
        weights = {"correction": correction.weights(made)[None], "corrected": correction.acts(made)[None]}
    changes = {name: x[None] for name, x in ({"log_prob_behaviour": SAMPLER} | changes).items()}
    return evidence_of(MASK, OLD, DELTA, R, **changes, **weights)


def test_the_worked_weights_of_tis_and_icepop():
    tis = measure_updates(evidence(Tis(2.0)))
    assert float(tis["correction_mean"][0]) == pytest.approx(1.172744, abs=1e-6)
    for columns in (tis, measure_updates(evidence(IcePop(0.5, 2.0)))):
        found = [float(columns[f"corrected{sign}_frac"][0]) for sign in ("", "_positive", "_negative")]
        assert found == pytest.approx([2 / 11, 1 / 11, 1 / 11])


def test_without_a_correction_or_a_probe_their_columns_are_null():
    columns = measure_updates(evidence())
    corrected = [f"corrected{sign}_frac" for sign in ("", "_positive", "_negative")]
    for name in ("correction_mean", *corrected, "gradient_cosine", "noise_scale", "proxy_power", "control_on_prob"):
        assert columns[name] is None


def test_correlation_of_trainer_and_sampler():
    p, q = OLD[MASK].exp().numpy(), SAMPLER[MASK].exp().numpy()
    assert measure_updates(evidence())["mismatch_pearson"][0] == pytest.approx(np.corrcoef(p, q)[0, 1])


def test_likelihood_of_good_trajectories_and_value_error_where_the_data_is_stale():
    out = MASK & (DELTA.abs() > 0.2)
    columns = measure_updates(evidence(values_old=torch.full_like(R, 0.5), returns=R, out_of_range=out))
    assert columns["log_prob_positive"][0] == pytest.approx(float((OLD + DELTA)[0][MASK[0]].mean()))
    assert columns["value_mae_out_of_range"][0] == pytest.approx(float((R - 0.5).abs()[out].mean()))


@pytest.mark.parametrize(
    ("rollouts", "found", "distinct"),
    [
        ([(0, [1, 2]), (0, [1, 2, 2]), (1, [3, 4]), (1, [3, 3, 4])], 1, 1),  # an answer depends on its prompt
        ([(group, [1, 2]) for group in (0, 0, 1, 1, 2, 2)], 1 / 3, 0.5),  # a template could belong to any prompt
        ([(0, [1]), (0, [2]), (1, [1]), (1, [2])], 0, 1),  # a rollout does not vouch for itself
        ([(0, [1]), (1, [2])], None, None),  # one rollout a prompt
        ([(0, [1]), (0, [2])], None, 1),  # one prompt
    ],
)
def test_a_template_is_told_from_answers_that_depend_on_their_prompt(rollouts, found, distinct):
    made = rollouts_of([0.0] * len(rollouts), group=[g for g, _ in rollouts], written=[[w] for _, w in rollouts])
    step = StepView(0, StepEvidence(made), None)
    assert prompt_retrieval_frac(step) == (None if found is None else pytest.approx(found))
    assert distinct_rollout_frac(step) == distinct


def test_the_guard_measures_every_step_and_leaves_null_what_it_cannot_know():
    one = random_evidence(3, 4, 2)
    updates = Evidence.stack([one, replace(one, log_prob=one.log_prob + 1.0, epoch=torch.tensor([1]))])
    moved = float(torch.where(one.mask, one.log_prob - one.log_prob_old, 0).abs().max())
    evidence = StepEvidence(rollouts_of([1.0] * 4), updates, fresh=True, batch_hash=2**48 - 1, mismatches=[(0, 1)])
    row = measure(0, evidence).step
    assert row["first_log_ratio_abs_max"] == pytest.approx(moved), "of the first update, not of the second"
    assert row["batch_hash"] == 2**48 - 1 == int(float(2**48 - 1))
    assert row["token_mismatches"] == 1
    unknown = measure(0, StepEvidence(rollouts_of([1.0] * 4), updates)).step
    assert [unknown[k] for k in ("first_log_ratio_abs_max", "batch_hash", "token_mismatches")] == [None] * 3
    assert measure(0, replace(evidence, fresh=False)).step["first_log_ratio_abs_max"] is None


def test_the_fingerprint_of_the_questions_is_that_of_what_was_trained_on_in_its_order():
    def asked(*questions, group=(0, 0), gold=("g", "g")):
        r = replace(rollouts_of([0.0, 1.0], group=list(group)), question=list(questions), gold=list(gold))
        return measure(0, StepEvidence(r)).step["questions_hash"]

    base = asked("a", "b")
    assert base == asked("a", "b")
    assert len({base, asked("b", "a"), asked("a", "c"), asked("a", "b", group=(0, 1)), asked("a", "b", gold="hg")}) == 5
    fresh, stale = rollouts_of([1.0]), replace(rollouts_of([1.0]), question=["an older one"])
    trained, alone = (measure(0, e).step for e in (StepEvidence(fresh, trained=stale), StepEvidence(stale)))
    assert trained["questions_hash"] == alone["questions_hash"]


def test_a_fingerprint_tells_where_a_part_ends():
    assert fingerprint(b"ab", b"c") != fingerprint(b"a", b"bc")
    assert np.float64(fingerprint(b"x")) == fingerprint(b"x") < 2**48


def test_every_check_of_the_guard_says_what_it_flags_or_notes_and_why():
    assert len({c.name for c in GUARD}) == len(GUARD)
    for c in GUARD:
        assert c.reason, c.name
        assert c.flags or c.notes, c.name
        assert (c.severity == "info") == (not c.flags), c.name
        assert check(c.name) is c
        assert c.kind == f"guard_{c.name}"
