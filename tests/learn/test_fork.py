"""Forks: a child starts from its parent's state, and one with nothing changed goes on as the parent did."""

import pytest
from pandas.testing import assert_frame_equal

from sorl.learn.checkpoint import checkpoints
from sorl.learn.faults import FAULTS
from sorl.learn.run import settings_of
from sorl.spec import InputError
from sorl.spec.settings import DRAW
from tests.learn.tiny import rows, train, written

PARENT = {"record": {"ladder": 2}, "iterations": 6}


def child(parent, cache, at, **changes):
    """Train a child of `parent` in the same runs folder, and return its folder."""
    own = settings_of(parent).model_dump(mode="json", exclude_none=True, exclude={"fork"})
    runs = parent.parents[1]
    fork = {"experiment": parent.parent.name, "run": parent.name, "at_step": at, "seed": own["seed"]}
    name = f"child-{len(list(runs.glob('forks/*')))}"
    folder = written(runs, name, {"fork": fork} | changes, own, "forks")
    assert train(folder, cache) == 0
    return folder


def assert_goes_on(parent, own, at):
    """The rows of a child are those of its parent from step `at` on."""
    for table in ("step", "minibatch"):
        was = rows(parent, table)
        was = was[was["step"] >= at].reset_index(drop=True)
        assert_frame_equal(rows(own, table), was, check_exact=True, obj=f"{table} from {at} on")


@pytest.mark.parametrize("algorithm", ["ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo"])
def test_a_child_with_nothing_changed_goes_on_as_its_parent_did(trained, cache, algorithm):
    parent = trained(algorithm=algorithm, record={"ladder": 1}, iterations=6)
    for at in (1, 3, 5):
        assert_goes_on(parent, child(parent, cache, at), at)


@pytest.mark.parametrize(
    "kind", ["reward_noise", "staleness", "temperature", "observation_leak", "batch_reused"]
)
def test_a_fault_goes_on_in_a_child_with_nothing_changed(trained, cache, kind):
    parent = trained(**PARENT, fault={"kind": kind, "at_step": 3})
    for at in (2,) if FAULTS[kind].remembers else (2, 4):
        assert_goes_on(parent, child(parent, cache, at), at)


def test_a_child_with_a_fault_that_is_resumed_remembers_what_its_parent_did(trained, cache):
    parent = trained(**PARENT, fault={"kind": "batch_reused", "at_step": 3})
    own = child(parent, cache, 2, iterations=4)
    config = (own / "config.toml").read_text()
    (own / "config.toml").write_text(config.replace("iterations = 4", "iterations = 6"))
    assert train(own, cache) == 0
    assert_goes_on(parent, own, 2)


def test_a_child_differs_in_what_its_arm_changes_and_in_its_seed(trained, cache):
    parent = trained(**PARENT)
    fresh = child(parent, cache, 4, learn={"staleness": 0})
    other = child(parent, cache, 4, seed=DRAW)
    stale = {
        folder: rows(folder, "step").set_index("step")["staleness"].tolist()
        for folder in (parent, fresh, other)
    }
    assert (stale[parent][4:], stale[fresh], stale[other]) == ([2.0, 2.0], [0.0, 0.0], [2.0, 2.0])
    drawn = rows(other, "run").iloc[-1]
    assert (drawn["parent"], drawn["forked_at"], drawn["draw"]) == (parent.name, 4, 1)
    assert not rows(other, "step")["reward"].equals(
        rows(parent, "step")["reward"].iloc[4:].reset_index(drop=True)
    )


def test_a_fork_from_a_step_without_a_checkpoint_names_those_that_there_are(trained, cache):
    parent = trained(**PARENT)
    assert [int(rung.name) for rung in checkpoints(parent / "ladder")] == [2, 4, 6]
    with pytest.raises(InputError, match=r"no checkpoint of step 3; there is: 2, 4, 6"):
        child(parent, cache, 3)
