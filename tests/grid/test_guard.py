from __future__ import annotations

from workbench.grid import guard
from workbench.grid.differences import differing
from workbench.spec import RunSettings


def settings(**changes: object) -> RunSettings:
    return RunSettings.model_validate(changes)


def test_arms_that_differ_in_what_the_grid_asks_about_are_comparable() -> None:
    assert guard.notes({"a": settings(), "b": settings(learn={"staleness": 8}), "c": settings(algorithm="grpo")}) == []


def test_unequal_updates_rollouts_tasks_and_seeds_are_named_with_the_arms_that_stand_out() -> None:
    four = settings(learn={"epochs": 4})
    (note,) = guard.notes({"a": four, "b": four, "once": settings(learn={"epochs": 1})})
    # 80 iterations x 4 epochs x 4 minibatches, and a quarter of it
    assert note == "the arms had different numbers of optimizer updates (1,280 updates, but once: 320)"
    longer = guard.notes({"a": settings(), "long": settings(iterations=100)})
    assert any("different numbers of rollouts (5,120 rollouts, but long: 6,400)" in note for note in longer)
    (task,) = guard.notes({"a": settings(), "other": settings(world={"noise": 0.5})})
    assert "do not share world.noise" in task
    (seeds,) = guard.notes({"a": settings(), "b": settings()}, {"a": 3, "b": 2})
    assert "different numbers of seeds (3 seeds, but b: 2)" in seeds


def test_only_the_keys_whose_values_differ_are_shown_and_the_seed_is_not_one() -> None:
    arms = {"a": settings(seed=0), "b": settings(seed=1, learn={"staleness": 8})}
    assert differing(arms) == {"learn.staleness": {"a": 0, "b": 8}}
