"""The fair-comparison guard: each check flags an experiment that violates it, and no shipped experiment is flagged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from workbench.algorithms import ALGORITHMS, resolve
from workbench.grid import guard
from workbench.grid.cell import differing
from workbench.grid.config import load
from workbench.grid.guard import Finding, Range, rollouts, updates
from workbench.learn.checks import gradient_at_one
from workbench.spec import RunSettings

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))
ONCE = {"epochs": 1, "minibatches": 1}  # one update a rollout


def settings(**changes: object) -> RunSettings:
    return RunSettings.model_validate(changes)


def planned(seeds: Mapping[str, int] | None = None, **arms: RunSettings) -> list[Finding]:
    return guard.planned(arms, resolve, seeds)


def flagged(**arms: RunSettings) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.check, finding.arms) for finding in planned(**arms) if finding.flagged]


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.stem)
def test_the_shipped_experiments_are_not_flagged(file: Path) -> None:
    arms = {cell.arm: cell.settings for cell in load(file, resolve=resolve).cells}
    assert [finding for finding in guard.planned(arms, resolve) if finding.flagged] == []


def test_there_are_experiments_to_check() -> None:
    assert {"quickstart", "six_by_five", "controls", "learning"} <= {file.stem for file in EXPERIMENTS}


def test_arms_that_differ_in_what_the_grid_asks_about_are_comparable() -> None:
    assert planned(a=settings(), b=settings(learn={"staleness": 8}), c=settings(algorithm="turn-ppo")) == []


def test_only_the_keys_whose_values_differ_are_shown_and_the_seed_is_not_one() -> None:
    arms = {"a": settings(seed=0), "b": settings(seed=1, learn={"staleness": 8})}
    assert differing(arms) == {"learn.staleness": {"a": 0, "b": 8}}


# -- idle ratio


@pytest.mark.parametrize(
    ("learn", "engine", "idle"),
    [
        ({}, {}, True),
        ({"epochs": 2}, {}, False),
        ({"minibatches": 2}, {}, False),
        ({"staleness": 1}, {}, False),
        ({"staleness": 1, "old_log_prob": "update"}, {}, True),
        ({"old_log_prob": "behaviour"}, {}, True),
        ({"old_log_prob": "behaviour"}, {"dtype": "bfloat16"}, False),
        ({"old_log_prob": "behaviour", "staleness": 1}, {}, False),
        ({"micro_batch": 4}, {}, True),
    ],
)
def test_the_ratio_is_one_by_construction_where_each_rollout_makes_one_update_by_its_own_log_probs(
    learn: dict[str, object], engine: dict[str, object], idle: bool
) -> None:
    both = {"learn": {**ONCE, **learn}, "engine": engine}
    wide = {**both, "slots": {"clip": {"high": 0.4}}}
    assert settings(**both).ratio_is_one == idle
    assert flagged(narrow=settings(**both), wide=settings(**wide)) == (
        [("idle_ratio", ("narrow", "wide"))] if idle else []
    )


def test_idle_arms_are_one_arm_only_where_nothing_that_acts_sets_them_apart() -> None:
    ppo = settings(learn=ONCE)
    stabilised, dual = settings(algorithm="s-ppo", learn=ONCE), settings(slots={"clip": {"dual": 3.0}}, learn=ONCE)
    ((check, arms),) = flagged(ppo=ppo, s_ppo=stabilised, dual=dual)
    assert (check, arms) == ("idle_ratio", ("ppo", "s_ppo", "dual"))
    assert flagged(ppo=ppo, grpo=settings(algorithm="grpo", learn=ONCE)) == []
    assert flagged(ppo=ppo, slow=settings(learn={**ONCE, "policy": {"lr": 0.01}}, slots={"clip": {"high": 0.4}})) == []
    # Turn-PPO spreads a gradient over its turn even at ratio 1, so with advantages that vary inside a turn it acts.
    assert flagged(ppo=ppo, turn=settings(algorithm="turn-ppo", learn=ONCE)) == []
    # GRPO gives every token of a sequence the same advantage, and there it does not.
    grpo = {"algorithm": "grpo", "learn": ONCE}
    assert flagged(token=settings(**grpo), turn=settings(**grpo, slots={"ratio": "turn"})) == [
        ("idle_ratio", ("token", "turn"))
    ]


def test_a_single_idle_arm_is_told_and_not_flagged() -> None:
    (note, *_) = planned(reused=settings(), strict=settings(learn=ONCE))
    assert (note.check, note.flagged, note.arms) == ("idle_ratio", False, ("strict",))
    assert planned(free=settings(learn=ONCE, slots={"clip": "none"})) == [], "nothing that a ratio of 1 could idle"


def test_the_gradient_at_ratio_one_tells_algorithms_apart_by_their_advantage_not_by_their_clip() -> None:
    ppo = gradient_at_one(ALGORITHMS["ppo"], 1)
    assert ppo.abs().max() > 0.01
    assert (ppo - gradient_at_one(ALGORITHMS["s-ppo"], 1)).abs().max() < 1e-12
    assert (ppo - gradient_at_one(ALGORITHMS["turn-ppo"], 1)).abs().max() > 1e-3
    assert (ppo - gradient_at_one(resolve("ppo", {"advantage": {"whiten": "none"}}), 1)).abs().max() > 1e-3


# -- normaliser and aggregation


TURN = {"ratio": "turn"}
MEAN = {"aggregate": "seq_mean_token_mean"}


def test_an_arm_that_changes_the_ratio_and_the_aggregation_at_once_is_flagged() -> None:
    both = settings(slots={**TURN, **MEAN})
    assert flagged(token=settings(), turn=both) == [("normaliser", ("token", "turn"))]
    (finding,) = [f for f in planned(token=settings(), turn=both) if f.flagged]
    assert "turn differs from token in aggregate and in more besides" in finding.message


@pytest.mark.parametrize("change", [{"advantage": {"whiten": "none"}}, MEAN], ids=["advantage", "aggregate"])
@pytest.mark.parametrize(
    "other",
    [{"slots": TURN}, {"slots": {"clip": {"high": 0.3}}}, {"learn": {"staleness": 8}}, {"algorithm": "st-ppo"}],
    ids=["ratio", "clip", "staleness", "algorithm"],
)
def test_a_normaliser_that_changes_along_with_anything_else_is_flagged_unless_an_arm_isolates_it(
    change: dict[str, object], other: dict[str, object]
) -> None:
    base, asked = settings(), settings(**other)
    smuggled = settings(**{**other, "slots": {**other.get("slots", {}), **change}})  # type: ignore[dict-item]
    alone = settings(slots=change)
    assert flagged(base=base, asked=asked) == []
    assert flagged(base=base, alone=alone) == [], "the normaliser is what this grid asks about"
    assert flagged(base=base, smuggled=smuggled) == [("normaliser", ("base", "smuggled"))]
    assert flagged(base=base, asked=asked, smuggled=smuggled) == []
    assert flagged(base=base, alone=alone, smuggled=smuggled) == []
    assert flagged(base=base, asked=asked, alone=alone) == []
    assert flagged(asked=asked, alone=alone) == [("normaliser", ("asked", "alone"))]


def test_algorithms_that_declare_different_normalisers_are_told_apart_and_not_flagged() -> None:
    findings = planned(ppo=settings(), grpo=settings(algorithm="grpo"))
    assert not any(finding.flagged for finding in findings)
    (note,) = [f.message for f in findings if f.check == "normaliser"]
    assert note == "the algorithms declare different choices of advantage (ppo: gae; grpo: grpo)"


def test_a_change_to_a_slot_that_two_algorithms_declare_alike_is_flagged_between_them() -> None:
    assert flagged(ppo=settings(), turn=settings(algorithm={"base": "turn-ppo", **MEAN})) == [
        ("normaliser", ("ppo", "turn"))
    ]
    assert flagged(ppo=settings(slots=MEAN), turn=settings(algorithm="turn-ppo", slots=MEAN)) == []


# -- compute, task, seeds


def test_unequal_updates_rollouts_tasks_and_seeds_are_named_with_the_arms_that_stand_out() -> None:
    four, once = settings(learn={"epochs": 4}), settings(learn={"epochs": 1})
    (note,) = planned(a=four, b=four, once=once)
    # 80 iterations x 4 epochs x 4 minibatches, and a quarter of it
    assert note.message == "the arms had different numbers of optimizer updates (1,280 updates, but once: 320)"
    assert (note.check, note.flagged) == ("compute", False)
    longer = [f.message for f in planned(a=settings(), long=settings(iterations=100))]
    assert any("different numbers of rollouts (5,120 rollouts, but long: 6,400)" in message for message in longer)
    groups = [f.message for f in planned(ppo=settings(), grpo=settings(algorithm="grpo"))]
    assert any("different numbers of questions (5,120 questions, but grpo: 640)" in message for message in groups)
    (task,) = planned(a=settings(), other=settings(world={"noise": 0.5}))
    assert "do not share world.noise" in task.message
    (seeds,) = planned({"a": 3, "b": 2}, a=settings(), b=settings())
    assert "different numbers of seeds (3 seeds, but b: 2)" in seeds.message


def test_what_the_settings_leave_open_is_told_as_a_range() -> None:
    arms = {name: settings(algorithm=name, learn={"group_size": 8}) for name in ("grpo", "seeupo", "dapo", "loop")}
    messages = [finding.message for finding in guard.planned(arms, resolve) if finding.check == "compute"]
    assert messages == [
        "the arms had different numbers of sampled episodes (5,120 episodes, but dapo: 5,120 to 20,480)",
        "the arms had different numbers of optimizer updates (320 updates, but seeupo: 320 to 1,920; loop: 80 to 320)",
    ]


def test_a_budget_of_updates_is_reached_in_fewer_iterations_by_whoever_makes_more_of_them() -> None:
    budget = {"learn": {"group_size": 8}, "stop": {"updates": 40}}
    plain, turns = (settings(algorithm=name, **budget) for name in ("grpo", "seeupo"))
    grpo, seeupo = resolve("grpo"), resolve("seeupo")
    assert (rollouts(plain, grpo), updates(plain, grpo)) == (Range(640, 640), Range(40, 40))
    assert rollouts(turns, seeupo) == Range(128, 640)  # 2 to 10 iterations, of 24 or 4 updates a step
    assert updates(turns, seeupo) == Range(40, 63)  # the step that crosses the budget is completed


def test_a_budget_of_updates_makes_unequal_arms_equal_and_one_of_seconds_is_told() -> None:
    four, once = settings(learn={"epochs": 4}, stop={"updates": 320}), settings(learn={"epochs": 1})
    messages = [f.message for f in planned(four=four, once=once)]
    assert not any("optimizer updates" in message for message in messages)
    assert any("different numbers of rollouts (1,280 rollouts, but once: 5,120)" in message for message in messages)
    (timed,) = planned(a=settings(stop={"seconds": 60.0}))
    assert "depends on what else the machine does" in timed.message


def test_violations_are_printed_before_differences() -> None:
    findings = [Finding("compute", "one arm did more"), Finding("questions", "other questions", ("a",), flagged=True)]
    assert guard.lines(findings) == ["Warning: other questions.", "Note: one arm did more."]
    assert findings[1].as_dict() == {
        "check": "questions", "severity": "warning", "arms": ["a"], "message": "other questions",
    }  # fmt: skip


def test_an_arm_with_a_comma_in_its_name_is_quoted_in_a_list() -> None:
    (note,) = planned(**{"ppo": settings(), "again": settings(), "ppo, once": settings(learn={"epochs": 2})})
    assert note.message.endswith("but 'ppo, once': 640)")
