"""Runs that violate a check of the guard are flagged while they train, and sound runs are not."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.learn.tiny import Session, rows
from workbench.learn.loop import Trainer

Flagged = Callable[..., list[tuple[str, int, str]]]


@pytest.fixture
def flagged(tmp_path: Path, cache: Path) -> Flagged:
    """Train a tiny run that `break_it` has broken; its events of the guard."""

    def watched(break_it: Callable[[Trainer], None] = lambda _: None, **changes: Any) -> list[tuple[str, int, str]]:
        session = Session(tmp_path, cache, iterations=4, **changes)
        session.trainer.self_test()
        break_it(session.trainer)
        session.train()
        return session.guard()

    return watched


@pytest.mark.parametrize(
    ("changes", "checked"),  # steps whose first ratio is known to be 1: the first, or all where rollouts are fresh
    [
        ({}, 1),
        ({"learn": {"epochs": 3}}, 1),  # the epochs of one step are no stuck batch
        ({"learn": {"staleness": 0}}, 4),
        ({"learn": {"staleness": 1, "old_log_prob": "update", "epochs": 1, "minibatches": 1}}, 4),
        ({"learn": {"staleness": 0, "old_log_prob": "behaviour"}, "engine": {"temperature": 0.7}}, 4),
        ({"learn": {"staleness": 0, "old_log_prob": "behaviour"}, "engine": {"dtype": "bfloat16"}}, 0),
        ({"algorithm": "grpo", "slots": {"select": "zero_var"}, "learn": {"staleness": 0}}, 4),
    ],
)
def test_a_sound_run_is_not_flagged(flagged, changes, checked, tmp_path):
    assert flagged(**changes) == []
    step = rows(tmp_path, "step")
    assert (step["token_mismatches"] == 0).all()
    assert step["batch_hash"].is_unique
    assert step["first_log_ratio_abs_max"].notna().sum() == checked


def test_a_policy_that_is_another_one_in_its_update_is_flagged_on_fresh_rollouts_only(flagged):
    def drifting(trainer):
        honest = trainer.learner.update

        def update(*asked):
            trainer.learner.temperature = 1.3  # the update reads the logits at another temperature
            return honest(*asked)

        trainer.learner.update = update

    ((kind, step, message),) = flagged(drifting)  # stale by two: step 0 alone is fresh
    assert (kind, step) == ("guard_first_ratio", 0)
    assert "where it is 0 by construction" in message


def test_a_resumed_run_repeats_no_event_and_remembers_the_batches_of_the_session_before(tmp_path, cache):
    session = Session(tmp_path, cache, iterations=4)
    session.train(1)
    first = deepcopy(session.trainer.queue[0])  # what step 1 trains on
    session.train(2, save=True)
    assert session.guard() == []
    session = Session(tmp_path, cache, iterations=4)
    assert session.trainer.queue[0].episodes[0].stretches, "a checkpoint keeps the witness"
    session.trainer.queue[0] = first
    session.train()
    assert [(kind, step) for kind, step, _ in session.guard()] == [("guard_stuck_batch", 2)]
    assert rows(tmp_path, "step")["token_mismatches"].sum() == 0
