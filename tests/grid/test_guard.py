"""The fair-comparison guard: each check flags an experiment that violates it, and no shipped experiment is flagged."""

from pathlib import Path
from typing import Any

import pytest

from workbench.algorithms import resolve
from workbench.grid import guard
from workbench.grid.cell import Cell, differing
from workbench.grid.config import load
from workbench.grid.guard import Finding, Range, amounts
from workbench.spec import RunSettings

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
ONCE = {"epochs": 1, "minibatches": 1}  # one update a rollout
TURN = {"ratio": "turn"}
MEAN = {"aggregate": "seq_mean_token_mean"}
Told = list[tuple[str, tuple[str, ...]]]


def settings(**changes: object) -> RunSettings:
    return RunSettings.model_validate(changes)


def planned(**arms: RunSettings) -> list[Finding]:
    return guard.planned(Cell("x", arm, 0, one, resolve(one.algorithm, one.slots)) for arm, one in arms.items())


def flagged(**arms: RunSettings) -> Told:
    return [(finding.check, finding.arms) for finding in planned(**arms) if finding.flagged]


def told(check: str, **arms: RunSettings) -> list[str]:
    return [finding.message for finding in planned(**arms) if finding.check == check and not finding.flagged]


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_the_shipped_experiments_are_not_flagged(file):
    assert {"quickstart", "six_by_five", "controls", "learning"} <= {file.stem for file in EXPERIMENTS}
    assert [finding for finding in guard.planned(load(file).cells) if finding.flagged] == []


def test_arms_that_differ_in_what_the_grid_asks_about_are_comparable():
    assert planned(a=settings(), b=settings(learn={"staleness": 8}), c=settings(algorithm="turn-ppo")) == []
    arms = {"a": settings(seed=0), "b": settings(seed=1, learn={"staleness": 8})}
    assert differing(arms) == {"learn.staleness": {"a": 0, "b": 8}}, "the seed is no difference"


@pytest.mark.parametrize(
    ("learn", "engine", "idle"),
    [
        ({}, {}, True), ({"micro_batch": 4}, {}, True), ({"epochs": 2}, {}, False), ({"minibatches": 2}, {}, False),
        ({"staleness": 1}, {}, False), ({"staleness": 1, "old_log_prob": "update"}, {}, True),
        ({"old_log_prob": "behaviour"}, {}, True), ({"old_log_prob": "behaviour"}, {"dtype": "bfloat16"}, False),
        ({"old_log_prob": "behaviour", "staleness": 1}, {}, False),
    ],
)  # fmt: skip
def test_the_ratio_is_one_by_construction_where_each_rollout_makes_one_update_by_its_own_log_probs(learn, engine, idle):
    both = {"learn": {**ONCE, **learn}, "engine": engine}
    assert settings(**both).ratio_is_one == idle
    found = flagged(narrow=settings(**both), wide=settings(**both, slots={"clip": {"high": 0.4}}))
    assert found == ([("idle_ratio", ("narrow", "wide"))] if idle else [])


def test_idle_arms_are_one_arm_only_where_nothing_that_acts_sets_them_apart():
    ppo = settings(learn=ONCE)
    stabilised, dual = settings(algorithm="s-ppo", learn=ONCE), settings(slots={"clip": {"dual": 3.0}}, learn=ONCE)
    assert flagged(ppo=ppo, s_ppo=stabilised, dual=dual) == [("idle_ratio", ("ppo", "s_ppo", "dual"))]
    assert flagged(ppo=ppo, grpo=settings(algorithm="grpo", learn=ONCE)) == []
    assert flagged(ppo=ppo, slow=settings(learn={**ONCE, "policy": {"lr": 0.01}}, slots={"clip": {"high": 0.4}})) == []
    # Turn-PPO spreads a gradient over its turn even at ratio 1, so with advantages that vary inside a turn it acts.
    assert flagged(ppo=ppo, turn=settings(algorithm="turn-ppo", learn=ONCE)) == []
    # GRPO gives every token of a sequence the same advantage, and there it does not.
    grpo = {"algorithm": "grpo", "learn": ONCE}
    found = flagged(token=settings(**grpo), turn=settings(**grpo, slots=TURN))
    assert found == [("idle_ratio", ("token", "turn"))]
    (note, *_) = planned(reused=settings(), strict=settings(learn=ONCE))
    assert (note.check, note.flagged, note.arms) == ("idle_ratio", False, ("strict",)), "a single one is told"
    assert planned(free=settings(learn=ONCE, slots={"clip": "none"})) == [], "nothing that a ratio of 1 could idle"


@pytest.mark.parametrize("change", [{"advantage": {"whiten": "none"}}, MEAN], ids=["advantage", "aggregate"])
@pytest.mark.parametrize(
    "other",
    [{"slots": TURN}, {"slots": {"clip": {"high": 0.3}}}, {"learn": {"staleness": 8}}, {"algorithm": "st-ppo"}],
    ids=["ratio", "clip", "staleness", "algorithm"],
)
def test_a_normaliser_that_changes_along_with_anything_else_is_flagged_unless_an_arm_isolates_it(change, other):
    base, asked, alone = settings(), settings(**other), settings(slots=change)
    smuggled = settings(**{**other, "slots": {**other.get("slots", {}), **change}})
    assert flagged(base=base, asked=asked) == []
    assert flagged(base=base, alone=alone) == [], "the normaliser is what this grid asks about"
    assert flagged(base=base, smuggled=smuggled) == [("normaliser", ("base", "smuggled"))]
    assert flagged(base=base, asked=asked, smuggled=smuggled) == []
    assert flagged(base=base, alone=alone, smuggled=smuggled) == []
    assert flagged(base=base, asked=asked, alone=alone) == []
    assert flagged(asked=asked, alone=alone) == [("normaliser", ("asked", "alone"))]


def test_algorithms_that_declare_different_normalisers_are_told_apart_and_not_flagged():
    arms = {"ppo": settings(), "grpo": settings(algorithm="grpo")}
    assert flagged(**arms) == []
    words = "the algorithms declare different choices of advantage (ppo: gae; grpo: grpo)"
    assert told("normaliser", **arms) == [words]
    variant = settings(algorithm={"base": "turn-ppo", **MEAN})
    assert flagged(ppo=settings(), turn=variant) == [("normaliser", ("ppo", "turn"))]
    assert flagged(ppo=settings(slots=MEAN), turn=settings(algorithm="turn-ppo", slots=MEAN)) == []


FOUR, FEW = {"learn": {"epochs": 4}}, {"learn": {"epochs": 1}}
ONLINE = ("grpo", "seeupo", "dapo", "loop")
GROUPS: dict[str, Any] = {name: {"algorithm": name, "learn": {"group_size": 8}} for name in ONLINE}


@pytest.mark.parametrize(
    ("check", "arms", "messages"),
    [
        # 80 iterations x 4 epochs x 4 minibatches, and a quarter of it
        ("compute", {"a": FOUR, "b": FOUR, "once": FEW}, ["optimizer updates (1,280 updates, but once: 320)"]),
        ("compute", {"a": {}, "long": {"iterations": 100}}, ["rollouts (5,120 rollouts, but long: 6,400)"]),
        ("compute", {"ppo": {}, "grpo": {"algorithm": "grpo"}}, ["questions (5,120 questions, but grpo: 640)"]),
        ("compute", GROUPS, [
            "sampled episodes (5,120 episodes, but dapo: 5,120 to 20,480)",
            "optimizer updates (320 updates, but seeupo: 320 to 1,920; loop: 80 to 320)",
        ]),
        ("compute", {"four": FOUR | {"stop": {"updates": 320}}, "once": FEW}, ["rollouts (1,280 rollouts, but once: "]),
        ("compute", {"a": {"stop": {"seconds": 60.0}}}, ["how far a run gets depends on what else the machine does"]),
        ("compute", {"ppo": {}, "a": {}, "ppo, once": {"learn": {"epochs": 2}}}, ["but 'ppo, once': 640)"]),
        ("task", {"a": {}, "other": {"world": {"noise": 0.5}}}, ["do not share world.noise"]),
    ],
)  # fmt: skip
def test_unequal_amounts_and_tasks_are_told_with_the_arms_that_stand_out(check, arms, messages):
    found = told(check, **{arm: settings(**changes) for arm, changes in arms.items()})
    assert all(any(message in line for line in found) for message in messages), found
    if arms is GROUPS:
        assert len(found) == 2
    if "stop" in arms.get("four", {}):
        assert not any("optimizer updates" in line for line in found), "the budget makes them equal"


def test_a_budget_of_updates_ends_arms_with_more_updates_a_step_in_fewer_iterations():
    budget = settings(learn={"group_size": 8}, stop={"updates": 40})
    plain, turns = (amounts(budget, resolve(name)) for name in ("grpo", "seeupo"))
    assert (plain["rollouts"], plain["optimizer updates"]) == (Range(640, 640), Range(40, 40))
    assert turns["rollouts"] == Range(128, 640)  # 2 to 10 iterations, of 24 or 4 updates a step
    assert turns["optimizer updates"] == Range(40, 63)  # the step that crosses the budget is completed
