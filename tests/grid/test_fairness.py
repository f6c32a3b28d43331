"""The fair-comparison guard: what it flags and tells of the settings of arms, and of what their runs
recorded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sorl.algorithms import resolve
from sorl.grid import fairness
from sorl.grid.cell import Cell, differing
from sorl.grid.fairness import Finding, Range, Run, amounts, write_events
from sorl.spec import RunSettings
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.learn.tiny import merged
from tests.store.fixture import write_run, write_segment

ONCE = {"epochs": 1, "minibatches": 1}  # one update a rollout
TURN = {"ratio": "turn"}
MEAN = {"aggregate": "seq_mean_token_mean"}


def settings(**changes: object) -> RunSettings:
    return RunSettings.model_validate(changes)


def planned(**arms: RunSettings) -> list[Finding]:
    return fairness.planned(
        Cell("x", arm, 0, one, resolve(one.algorithm, one.slots)) for arm, one in arms.items()
    )


def violations(findings: Iterable[Finding]) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.check, finding.arms) for finding in findings if finding.flagged]


def flagged(**arms: RunSettings) -> list[tuple[str, tuple[str, ...]]]:
    return violations(planned(**arms))


def told(check: str, **arms: RunSettings) -> list[str]:
    return [finding.message for finding in planned(**arms) if finding.check == check and not finding.flagged]


def test_arms_that_differ_in_what_the_grid_asks_about_are_comparable():
    assert planned(a=settings(), b=settings(learn={"staleness": 8}), c=settings(algorithm="turn-ppo")) == []
    arms = {"a": settings(seed=0), "b": settings(seed=1, learn={"staleness": 8})}
    assert differing(arms) == {"learn.staleness": {"a": 0, "b": 8}}, "the seed is no difference"


@pytest.mark.parametrize(
    ("learn", "engine", "idle"),
    [
        ({}, {}, True),
        ({"micro_batch": 4}, {}, True),
        ({"epochs": 2}, {}, False),
        ({"minibatches": 2}, {}, False),
        ({"staleness": 1}, {}, False),
        ({"staleness": 1, "old_log_prob": "update"}, {}, True),
        ({"old_log_prob": "behaviour"}, {}, True),
        ({"old_log_prob": "behaviour"}, {"dtype": "bfloat16"}, False),
        ({"old_log_prob": "behaviour", "staleness": 1}, {}, False),
    ],
)
def test_the_ratio_is_one_by_construction_where_each_rollout_makes_one_update_by_its_own_log_probs(
    learn, engine, idle
):
    both = {"learn": {**ONCE, **learn}, "engine": engine}
    assert settings(**both).ratio_is_one == idle
    found = flagged(narrow=settings(**both), wide=settings(**both, slots={"clip": {"high": 0.4}}))
    assert found == ([("idle_ratio", ("narrow", "wide"))] if idle else [])


def test_idle_arms_are_one_arm_only_where_nothing_that_acts_sets_them_apart():
    ppo = settings(learn=ONCE)
    stabilised = settings(algorithm="s-ppo", learn=ONCE)
    dual = settings(slots={"clip": {"dual": 3.0}}, learn=ONCE)
    assert flagged(ppo=ppo, s_ppo=stabilised, dual=dual) == [("idle_ratio", ("ppo", "s_ppo", "dual"))]
    assert flagged(ppo=ppo, grpo=settings(algorithm="grpo", learn=ONCE)) == []
    assert (
        flagged(ppo=ppo, slow=settings(learn={**ONCE, "policy": {"lr": 0.01}}, slots={"clip": {"high": 0.4}}))
        == []
    )
    # Turn-PPO spreads a gradient over its turn even at ratio 1, so with advantages that vary inside a turn it
    # acts.
    assert flagged(ppo=ppo, turn=settings(algorithm="turn-ppo", learn=ONCE)) == []
    # GRPO gives every token of a sequence the same advantage, and there it does not.
    grpo = {"algorithm": "grpo", "learn": ONCE}
    found = flagged(token=settings(**grpo), turn=settings(**grpo, slots=TURN))
    assert found == [("idle_ratio", ("token", "turn"))]
    note, *_ = planned(reused=settings(), strict=settings(learn=ONCE))
    assert (note.check, note.flagged, note.arms) == ("idle_ratio", False, ("strict",)), "a single one is told"
    assert planned(free=settings(learn=ONCE, slots={"clip": "none"})) == [], (
        "nothing that a ratio of 1 could idle"
    )


def test_a_learning_rate_by_samples_and_an_averaged_policy_set_arms_apart_at_ratio_one():
    grpo = {"algorithm": "grpo", "learn": ONCE}
    scaled = settings(**grpo, slots={"rate": "effective_samples"})
    averaged = settings(**grpo, slots={"proximal": "averaged"})
    assert flagged(plain=settings(**grpo), scaled=scaled, averaged=averaged) == []
    notes = planned(plain=settings(**grpo), averaged=averaged)
    assert all("averaged" not in note.arms for note in notes if note.check == "idle_ratio")


@pytest.mark.parametrize("change", [{"advantage": {"whiten": "none"}}, MEAN], ids=["advantage", "aggregate"])
@pytest.mark.parametrize(
    "other",
    [
        {"slots": TURN},
        {"slots": {"clip": {"high": 0.3}}},
        {"learn": {"staleness": 8}},
        {"algorithm": "st-ppo"},
    ],
    ids=["ratio", "clip", "staleness", "algorithm"],
)
def test_a_normaliser_that_changes_along_with_anything_else_is_flagged_unless_an_arm_isolates_it(
    change, other
):
    base = settings()
    asked = settings(**other)
    alone = settings(slots=change)
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


FOUR = {"learn": {"epochs": 4}}
FEW = {"learn": {"epochs": 1}}
ONLINE = ("grpo", "seeupo", "dapo", "loop")
GROUPS: dict[str, Any] = {name: {"algorithm": name, "learn": {"group_size": 8}} for name in ONLINE}


@pytest.mark.parametrize(
    ("check", "arms", "messages"),
    [
        # 80 iterations x 4 epochs x 4 minibatches, and a quarter of it
        (
            "compute",
            {"a": FOUR, "b": FOUR, "once": FEW},
            ["optimizer updates (1,280 updates, but once: 320)"],
        ),
        ("compute", {"a": {}, "long": {"iterations": 100}}, ["rollouts (5,120 rollouts, but long: 6,400)"]),
        (
            "compute",
            {"ppo": {}, "grpo": {"algorithm": "grpo"}},
            ["questions (5,120 questions, but grpo: 640)"],
        ),
        (
            "compute",
            GROUPS,
            [
                "sampled episodes (5,120 episodes, but dapo: 5,120 to 20,480)",
                "optimizer updates (320 updates, but seeupo: 320 to 1,920; loop: 80 to 320)",
            ],
        ),
        (
            "compute",
            {"four": FOUR | {"stop": {"updates": 320}}, "once": FEW},
            ["rollouts (1,280 rollouts, but once: "],
        ),
        (
            "compute",
            {"a": {"stop": {"seconds": 60.0}}},
            ["how far a run gets depends on what else the machine does"],
        ),
        ("compute", {"ppo": {}, "a": {}, "ppo, once": {"learn": {"epochs": 2}}}, ["but 'ppo, once': 640)"]),
        ("task", {"a": {}, "other": {"world": {"noise": 0.5}}}, ["do not share world.noise"]),
    ],
)
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


BASE: dict[str, Any] = {"iterations": 4, "learn": {"episodes": 8, "minibatches": 2}}


def run(arm: str, seed: int, **changes: Any) -> Run:
    settings = RunSettings.model_validate(merged(BASE, changes))
    return Run(f"{arm}-s{seed}", arm, seed, settings, resolve(settings.algorithm))


def written(runs: Path, *done: tuple[Run, Sequence[int | None]], tokens: int = 1000) -> Reader:
    """A database in which each run trained on questions with these fingerprints, step by step."""
    for one, hashes in done:
        n = len(hashes)
        updates = one.settings.learn.epochs * one.settings.learn.minibatches
        steps = {"step": range(n), "questions_hash": hashes, "updates": updates, "tokens_trained": tokens / n}
        write_segment(runs / "demo" / one.run_id, "step", steps)
    sync(runs)
    return Reader(runs)


A0 = run("a", 0)
A1 = run("a", 1)
B0 = run("b", 0)
B1 = run("b", 1)
ZERO = [10, 11, 12, 13]
ONE = [20, 21, 22, 23]
QUESTIONS = [("questions", ("a", "b"))]


@pytest.mark.parametrize(
    ("done", "found"),
    [
        ([(A0, ZERO), (A1, ONE), (B0, ZERO[:2]), (B1, ONE)], []),  # shared, one ended early
        # a seed that did not reach an arm
        ([(A0, ZERO), (A1, ONE), (B0, [10, 11, 99, 13]), (B1, ONE)], QUESTIONS),
        ([(A0, ZERO), (B0, ZERO[::-1])], QUESTIONS),  # another order
        ([(A0, ZERO), (A1, ZERO)], [("questions", ("a", "a"))]),  # seeds that are no replicates
        ([(A0, ZERO), (run("b", 0, learn={"group_size": 8}), [1, 2, 3, 4])], []),
        ([(A0, ZERO), (run("b", 0, learn={"episodes": 16}), [1, 2, 3, 4])], []),
        ([(A0, ZERO), (run("b", 0, world={"entities": 8}), [1, 2, 3, 4])], []),
        ([(A0, ZERO[:2]), (A1, [None, None, *ONE[2:]])], []),  # no step in common
        ([(A0, ZERO), (B0, [None] * 4), (B1, [None] * 4)], []),  # no fingerprint
    ],
)
def test_a_seed_gives_comparable_arms_the_same_questions_and_another_seed_other_ones(runs, done, found):
    findings = fairness.recorded(written(runs, *done), [one for one, _ in done])
    assert violations(findings) == found
    messages = [finding.message for finding in findings]
    if len(done) == 4 and found:
        assert "a and b trained on different questions with seed 0, from step 2 on" in messages
    if found and found != QUESTIONS:
        assert any("seeds 0 and 1 trained on the same questions (a)" in message for message in messages)


def test_recorded_amounts_are_told_where_they_differ_from_the_plan_or_by_more_than_a_hundredth(runs):
    more = run("c", 0)
    less = run("d", 0)
    for one, tokens in ((B0, 1008), (more, 2000)):
        written(runs, (one, ZERO), tokens=tokens)
    reader = written(runs, (A0, ZERO), (less, ZERO[:2]))
    assert fairness.recorded(reader, [A0, B0]) == []
    (note,) = fairness.recorded(reader, [A0, B0, more])
    assert (
        note.message
        == "the arms recorded different numbers of trained tokens (mean of a finished run: 1,000 in a to"
        " 2,000 in c)"
    )
    assert (note.check, note.flagged) == ("compute", False)
    assert fairness.recorded(reader, [A0, replace(more, finished=False)]) == [], "it may still catch up"
    messages = [finding.message for finding in fairness.recorded(reader, [A0, less])]
    assert any("rollouts (mean of a finished run: 16 in d to 32 in a)" in message for message in messages)
    assert any(
        "optimizer updates (mean of a finished run: 4 in d to 8 in a)" in message for message in messages
    )
    (seeds,) = (f.message for f in fairness.recorded(reader, [A0, A1, B0]) if f.check == "seeds")
    assert "different numbers of seeds (2 seeds, but b: 1)" in seeds


def test_what_the_trainers_flagged_is_told_once_for_each_check(runs):
    reader = written(runs, (A0, ZERO), (A1, ONE), (B0, ZERO), (B1, ONE))
    for one, step, kind in ((A0, 3, "guard_stuck_batch"), (B0, 2, "guard_stuck_batch"), (A1, 1, "alarm")):
        row = {"step": step, "kind": kind, "severity": "warning", "message": f"told at {step}"}
        write_segment(runs / "demo" / one.run_id, "event", row)
    sync(runs)
    (finding,) = fairness.recorded(reader, [A0, A1, B0, B1])
    assert (finding.check, finding.arms, finding.flagged) == ("stuck_batch", ("b", "a"), True)
    assert finding.message == "b, seed 0, step 2: told at 2 (and in 1 more runs of b and a)"


def test_flagged_findings_become_events_of_the_runs_of_their_arms_once_and_are_withdrawn(runs):
    names = [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    cells = [Cell("demo", arm, seed, RunSettings(seed=seed), resolve("ppo")) for arm, seed in names]
    for one in cells[:3]:  # c never ran
        write_run(runs, "demo", one.run_id, arm=one.arm, seed=one.seed)

    def stored():
        sync(runs)
        return (
            Reader(runs)
            .rows("SELECT run_id, step, kind, severity, message FROM event ORDER BY run_id, kind")
            .rows
        )

    findings = [
        Finding("idle_ratio", "a and c are one arm", ("a", "c"), flagged=True),
        Finding("compute", "b did more", ("b",)),
        Finding("stuck_batch", "a trainer writes it itself", ("a",), flagged=True),
    ]
    assert write_events(runs, cells, findings) == 2
    row = (None, "guard_idle_ratio", "warning", "a and c are one arm")
    assert stored() == [(cells[0].run_id, *row), (cells[1].run_id, *row)]
    assert write_events(runs, cells, findings) == 0
    changed = [replace(findings[0], message="a and c are still one arm")]
    assert write_events(runs, cells, changed) == 2
    assert [r[4] for r in stored()] == ["a and c are still one arm"] * 2
    assert write_events(runs, cells, []) == 2
    assert stored() == []
    assert write_events(runs, cells, []) == 0
    assert write_events(runs, cells, changed) == 2
    assert len(stored()) == 2
