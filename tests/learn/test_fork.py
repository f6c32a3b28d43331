"""Forks: a child starts from its parent's state, and one with nothing changed goes on as the parent did."""

import json

import pytest
import tomli_w

from tests.learn.tiny import CLOCK, merged, rows, train
from workbench.learn.checkpoint import checkpoints
from workbench.learn.faults import FAULTS
from workbench.learn.run import settings_of
from workbench.spec import InputError
from workbench.spec.settings import DRAW

PARENT = {"record": {"ladder": 2}, "iterations": 6}


def child(parent, cache, at, **changes):
    """Train a child of `parent` in the same runs folder, and return its folder."""
    settings = settings_of(parent).model_dump(mode="json", exclude_none=True, exclude={"fork"})
    fork = {"experiment": parent.parent.name, "run": parent.name, "at_step": at, "seed": settings["seed"]}
    settings = merged(settings, {"fork": fork} | changes)
    folder = parent.parent.parent / "forks" / f"child-{len(list(parent.parent.parent.glob('forks/*')))}"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    identity = {"run_id": folder.name, "experiment": "forks", "algorithm": "x", "arm": "x", "seed": 0}
    (folder / "run.json").write_text(json.dumps(identity | {"config_hash": "0"}))
    assert train(folder, cache) == 0
    return folder


def assert_goes_on(parent, cache, at, **changes):
    """Train a child with nothing changed, and compare its rows with those of its parent."""
    own = child(parent, cache, at, **changes)
    for table in ("step", "minibatch"):
        was, now = (rows(folder, table) for folder in (parent, own))
        was = was[was["step"] >= at].reset_index(drop=True)
        shared = [c for c in was if not c.startswith(CLOCK) and c != "run_id"]
        assert now[shared].equals(was[shared]), (at, table)
    return own


@pytest.mark.parametrize("algorithm", ["ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo"])
def test_a_child_with_nothing_changed_goes_on_as_its_parent_did(new_run, cache, algorithm):
    parent = new_run(algorithm=algorithm, record={"ladder": 1}, iterations=6)
    assert train(parent, cache) == 0
    for at in (1, 3, 5):
        assert_goes_on(parent, cache, at)


@pytest.mark.parametrize("kind", ["reward_noise", "staleness", "temperature", "observation_leak", "batch_reused"])
def test_a_fault_goes_on_in_a_child_with_nothing_changed(new_run, cache, kind):
    parent = new_run(**PARENT, fault={"kind": kind, "at_step": 3})
    assert train(parent, cache) == 0
    before = (2,) if FAULTS[kind].remembers else (2, 4)
    for at in before:
        own = assert_goes_on(parent, cache, at)
    assert own.is_dir()


def test_a_child_with_a_fault_that_is_resumed_remembers_what_its_parent_did(new_run, cache):
    parent = new_run(**PARENT, fault={"kind": "batch_reused", "at_step": 3})
    assert train(parent, cache) == 0
    own = child(parent, cache, 2, iterations=4)
    config = (own / "config.toml").read_text()
    (own / "config.toml").write_text(config.replace("iterations = 4", "iterations = 6"))
    assert train(own, cache) == 0
    was, now = (rows(folder, "step") for folder in (parent, own))
    was = was[was["step"] >= 2].reset_index(drop=True)
    shared = [c for c in was if not c.startswith(CLOCK) and c != "run_id"]
    assert now[shared].equals(was[shared])


def test_a_child_differs_in_what_its_arm_changes_and_in_its_seed(new_run, cache):
    parent = new_run(**PARENT)
    assert train(parent, cache) == 0
    fresh, other = child(parent, cache, 4, learn={"staleness": 0}), child(parent, cache, 4, seed=DRAW)
    stale = {folder: rows(folder, "step").set_index("step")["staleness"].tolist() for folder in (parent, fresh, other)}
    assert stale[parent][4:] == [2.0, 2.0]
    assert stale[fresh] == [0.0, 0.0]
    assert stale[other] == [2.0, 2.0]
    drawn = rows(other, "run").iloc[-1]
    assert (drawn["parent"], drawn["forked_at"], drawn["draw"]) == (parent.name, 4, 1)
    assert not rows(other, "step")["reward"].equals(rows(parent, "step")["reward"].iloc[4:].reset_index(drop=True))


def test_a_fork_from_a_step_without_a_checkpoint_names_those_that_there_are(new_run, cache):
    parent = new_run(**PARENT)
    assert train(parent, cache) == 0
    assert [int(rung.name) for rung in checkpoints(parent / "ladder")] == [2, 4, 6]
    with pytest.raises(InputError, match=r"no checkpoint of step 3; there is: 2, 4, 6"):
        child(parent, cache, 3)
