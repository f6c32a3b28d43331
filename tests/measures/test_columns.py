"""Columns of the guard, the rollout correction and template collapse, and the trainer compared with its
sampler.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sorl.measures import measure
from sorl.measures.evidence import Evidence, StepEvidence, fingerprint
from sorl.measures.step import StepView, distinct_rollout_frac, prompt_retrieval_frac
from sorl.spec import GUARD, check
from tests.measures.shared_batch import random_evidence, rollouts_of


@pytest.mark.parametrize(
    ("rollouts", "found", "distinct"),
    [
        ([(0, [1, 2]), (0, [1, 2, 2]), (1, [3, 4]), (1, [3, 3, 4])], 1, 1),  # an answer depends on its prompt
        # a template could belong to any prompt
        ([(group, [1, 2]) for group in (0, 0, 1, 1, 2, 2)], 1 / 3, 0.5),
        ([(0, [1]), (0, [2]), (1, [1]), (1, [2])], 0, 1),  # a rollout does not vouch for itself
        ([(0, [1]), (1, [2])], None, None),  # one rollout a prompt
        ([(0, [1]), (0, [2])], None, 1),  # one prompt
    ],
)
def test_a_template_is_told_from_answers_that_depend_on_their_prompt(rollouts, found, distinct):
    made = rollouts_of(
        [0.0] * len(rollouts), group=[g for g, _ in rollouts], written=[[w] for _, w in rollouts]
    )
    step = StepView(0, StepEvidence(made), {})
    assert prompt_retrieval_frac(step) == (None if found is None else pytest.approx(found))
    assert distinct_rollout_frac(step) == distinct


def test_the_guard_measures_every_step_and_leaves_null_what_it_cannot_know():
    one = random_evidence(3, 4, 2)
    updates = Evidence.stack([one, replace(one, log_prob=one.log_prob + 1.0, epoch=torch.tensor([1]))])
    moved = float(torch.where(one.mask, one.log_prob - one.log_prob_old, 0).abs().max())
    evidence = StepEvidence(
        rollouts_of([1.0] * 4), updates, fresh=True, batch_hash=2**48 - 1, mismatches=[(0, 1)]
    )
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
    assert (
        len(
            {
                base,
                asked("b", "a"),
                asked("a", "c"),
                asked("a", "b", group=(0, 1)),
                asked("a", "b", gold="hg"),
            }
        )
        == 5
    )
    fresh = rollouts_of([1.0])
    stale = replace(rollouts_of([1.0]), question=["an older one"])
    trained, alone = (measure(0, e).step for e in (StepEvidence(fresh, trained=stale), StepEvidence(stale)))
    assert trained["questions_hash"] == alone["questions_hash"]
    assert fingerprint(b"ab", b"c") != fingerprint(b"a", b"bc"), "it tells where a part ends"
    assert np.float64(fingerprint(b"x")) == fingerprint(b"x") < 2**48


def test_every_check_of_the_guard_says_what_it_flags_or_notes_and_why():
    assert len({c.name for c in GUARD}) == len(GUARD)
    for c in GUARD:
        assert c.reason, c.name
        assert c.flags or c.notes, c.name
        assert (c.severity == "info") == (not c.flags), c.name
        assert check(c.name) is c
        assert c.kind == f"guard_{c.name}"
