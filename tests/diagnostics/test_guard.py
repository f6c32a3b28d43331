"""The guard along a run: columns of table `step`, and events where a run violates what it claims."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.diagnostics.shared_batch import random_evidence, rollouts_of
from workbench.diagnostics import measure
from workbench.diagnostics.evidence import Evidence, StepEvidence, fingerprint
from workbench.diagnostics.rules import GuardWatch
from workbench.spec import GUARD, RATIO_TOLERANCE, check


def kinds(watch, step, mismatches=(), **measured):
    return [event.kind for event in watch.step(step, measured, mismatches)]


def test_a_first_ratio_that_is_not_one_is_flagged_beyond_the_tolerance_and_once_while_it_lasts():
    watch = GuardWatch()
    assert kinds(watch, 0, first_log_ratio_abs_max=3e-6) == []  # the largest that float32 rounding gave
    assert kinds(watch, 1, first_log_ratio_abs_max=RATIO_TOLERANCE) == []
    assert kinds(watch, 2) == []  # stale rollouts: not measured
    (event,) = watch.step(3, {"first_log_ratio_abs_max": 0.02})
    assert (event.kind, event.severity, event.step) == ("guard_first_ratio", "warning", 3)
    assert (event.diagnostic, event.value, event.threshold) == ("first_log_ratio_abs_max", 0.02, RATIO_TOLERANCE)
    assert "0.02 nats" in event.message
    assert kinds(watch, 4, first_log_ratio_abs_max=0.03) == []
    assert kinds(watch, 5, first_log_ratio_abs_max=0.0) == []
    assert kinds(watch, 6, first_log_ratio_abs_max=float("inf")) == ["guard_first_ratio"]


def test_a_batch_that_comes_back_is_flagged_with_the_step_that_trained_on_it_first():
    watch = GuardWatch()
    assert [kinds(watch, step, batch_hash=h) for step, h in enumerate([11, 12, 13])] == [[], [], []]
    (event,) = watch.step(3, {"batch_hash": 12})
    assert (event.kind, event.diagnostic) == ("guard_stuck_batch", "batch_hash")
    assert "the very tokens of step 1" in event.message
    assert kinds(watch, 4, batch_hash=12) == [], "it is the same finding"
    assert kinds(watch, 5, batch_hash=14) == []
    assert kinds(watch, 6, batch_hash=14) == ["guard_stuck_batch"]


def test_a_mismatch_of_tokens_is_flagged_with_its_place():
    watch = GuardWatch()
    assert kinds(watch, 0, token_mismatches=0) == []
    (event,) = watch.step(1, {"token_mismatches": 2}, [(5, 3), (9, 1)])
    assert (event.kind, event.severity, event.value) == ("guard_token_identity", "critical", 2)
    assert "2 trained trajectories" in event.message
    assert "trajectory 5, turn 3" in event.message


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
    assert (
        measure(0, StepEvidence(fresh, trained=stale)).step["questions_hash"]
        == measure(0, StepEvidence(stale)).step["questions_hash"]
    )


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
