"""Runs that violate a check of the guard are flagged while they train, and sound runs are not."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.learn.tiny import Session, rows
from workbench.learn.loop import Trainer
from workbench.learn.rollouts import Rollout

Watched = Callable[..., Any]


@pytest.fixture
def flagged(tmp_path: Path, cache: Path) -> Watched:
    """Train a tiny run that `break_it` has broken; its events of the guard."""

    def watched(break_it: Callable[[Trainer], None] = lambda _: None, **changes: Any) -> list[tuple[str, int, str]]:
        session = Session(tmp_path, cache, iterations=4, **changes)
        session.trainer.self_test()
        break_it(session.trainer)
        session.train()
        return session.guard()

    return watched


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"learn": {"staleness": 0}},
        {"learn": {"staleness": 1, "old_log_prob": "update", "epochs": 1, "minibatches": 1}},
        {"learn": {"staleness": 0, "old_log_prob": "behaviour"}, "engine": {"temperature": 0.7}},
        {"learn": {"staleness": 0, "old_log_prob": "behaviour"}, "engine": {"dtype": "bfloat16"}},
        {"algorithm": "grpo", "slots": {"select": "zero_var"}, "learn": {"staleness": 0}},
    ],
)
def test_a_sound_run_is_not_flagged(flagged: Watched, changes: dict[str, Any], tmp_path: Path) -> None:
    assert flagged(**changes) == []
    step = rows(tmp_path, "step")
    assert (step["token_mismatches"] == 0).all()
    assert step["batch_hash"].is_unique
    checked = step["first_log_ratio_abs_max"].notna().sum()
    learn, engine = changes.get("learn", {}), changes.get("engine", {})
    always = learn.get("staleness") == 0 or learn.get("old_log_prob") == "update"
    # After the queue has filled, stale rollouts have moved away; only the very first step is fresh.
    assert checked == (0 if engine.get("dtype") == "bfloat16" else len(step) if always else 1)


def sampled(change: Callable[[Rollout], Rollout]) -> Callable[[Trainer], None]:
    """A break: every rollout passes through `change` on its way into the queue."""

    def break_it(trainer: Trainer) -> None:
        honest = trainer.sampler.rollout
        trainer.sampler.rollout = lambda *asked: change(honest(*asked))  # type: ignore[method-assign]

    return break_it


def test_a_history_that_was_tokenised_again_is_flagged_at_its_trajectory_and_turn(flagged: Watched) -> None:
    def tokenised_again(rollout: Rollout) -> Rollout:
        episode = rollout.episodes[3]
        first = episode.written.index(True)
        end = first + episode.written[first:].index(False)
        # One token of the first observation came back as two, and everything after it moved.
        for column, value in ((episode.tokens, 5), (episode.written, False), (episode.log_prob, 0.0)):
            column.insert(end, value)  # type: ignore[arg-type]
        return rollout

    ((kind, step, message),) = flagged(sampled(tokenised_again), learn={"staleness": 0})
    assert (kind, step) == ("guard_token_identity", 0)
    assert message.startswith("1 trained trajectories")
    assert message.endswith("first in trajectory 3, turn 1")


def test_a_queue_that_hands_out_a_rollout_twice_is_flagged(flagged: Watched) -> None:
    def stuck(trainer: Trainer) -> None:
        honest, seen = trainer.sampler.rollout, []

        def rollout(number: int, policy_step: int) -> Rollout:
            seen.append(honest(number, policy_step))
            return deepcopy(seen[1]) if number == 3 else seen[-1]

        trainer.sampler.rollout = rollout  # type: ignore[method-assign]

    found = flagged(stuck)
    assert [(kind, step) for kind, step, _ in found] == [("guard_stuck_batch", 3)]
    assert "the very tokens of step 1" in found[0][2]


def test_the_epochs_of_one_step_are_not_a_stuck_batch(flagged: Watched) -> None:
    assert flagged(learn={"epochs": 3}) == []


def test_a_policy_that_is_another_one_in_its_update_is_flagged_on_fresh_rollouts_only(flagged: Watched) -> None:
    def drifting(trainer: Trainer) -> None:
        honest = trainer.learner.update

        def update(*asked: Any) -> Any:
            trainer.learner.temperature = 1.3  # the update reads the logits at another temperature
            return honest(*asked)

        trainer.learner.update = update  # type: ignore[method-assign]

    found = flagged(drifting)  # stale by two: step 0 alone is fresh
    assert [(kind, step) for kind, step, _ in found] == [("guard_first_ratio", 0)]
    assert "where it is 0 by construction" in found[0][2]


def test_a_resumed_run_repeats_no_event_and_remembers_the_batches_of_the_session_before(
    tmp_path: Path, cache: Path
) -> None:
    session = Session(tmp_path, cache, iterations=4)
    first: list[Rollout] = []
    honest = session.trainer.sampler.rollout
    session.trainer.sampler.rollout = lambda *a: first.append(honest(*a)) or first[-1]  # type: ignore[func-returns-value, method-assign]
    session.train(2, save=True)
    assert session.guard() == []
    session = Session(tmp_path, cache, iterations=4)
    assert session.trainer.queue[0].episodes[0].stretches, "a checkpoint keeps the witness"
    session.trainer.queue[0] = deepcopy(first[0])
    session.train()
    assert [(kind, step) for kind, step, _ in session.guard()] == [("guard_stuck_batch", 2)]
    assert rows(tmp_path, "step")["token_mismatches"].sum() == 0
