"""The guard of a run: which events it answers, to which checkpoint it goes back, and when it gives up."""

import json
from pathlib import Path
from typing import Any

import pytest

from sorl.collapse.events import Event
from sorl.learn.checkpoint import checkpoints
from sorl.learn.guard import Decision, Guard, goes_on
from sorl.spec import GuardSettings, RunSettings
from sorl.spec.rollback import Rollback
from sorl.spec.settings import ForkSettings
from tests.learn.tiny import rows, train

IDENTITY = {"experiment": "demo", "run_id": "ppo-s0"}
FALL = Event(14, "collapse", "critical", "success fell", "success")
RANG = Event(12, "alarm", "warning", "low", "ess_frac_min")


def guard(folder: Path, rungs: tuple[int, ...] = (4, 8, 12), **more: Any) -> Guard:
    """A guard of a run with checkpoints of these steps on its ladder."""
    for step in rungs:
        rung = folder / "ladder" / f"{step:06d}"
        rung.mkdir(parents=True)
        (rung / "progress.json").write_text("{}")
    fork = more.pop("fork", None)
    told = {"changes": [{"learn.epochs": 1}, {"learn.staleness": 0}], **more}
    settings = RunSettings(guard=GuardSettings(**told), fork=fork)
    return Guard(settings, folder, IDENTITY)


def decided(decision: Decision | None) -> Rollback:
    assert decision is not None
    assert decision.ends
    assert decision.rollback is not None
    return decision.rollback


def test_a_fall_goes_back_to_the_newest_checkpoint_well_before_its_onset(tmp_path):
    back = decided(guard(tmp_path).decide([FALL], onset=12))
    assert (back.run, back.at_step, back.alarm_step) == ("ppo-s0", 8, 14)
    assert (back.number, back.most, back.change) == (1, 2, {"learn.epochs": 1})
    assert back.words == (
        "collapse at step 14, the fall began after step 12; back to step 8 with learn.epochs = 1, 7 steps are"
        " trained again (rollback 1 of 2)"
    )


@pytest.mark.parametrize(("before", "at_step"), [(0, 12), (1, 8), (4, 8), (5, 4)])
def test_how_far_before_is_a_setting(tmp_path, before, at_step):
    assert decided(guard(tmp_path, before=before).decide([FALL], onset=12)).at_step == at_step


def test_an_alarm_goes_back_from_its_own_step(tmp_path):
    chosen = guard(tmp_path, on=("alarm:ess_frac_min",))
    assert decided(chosen.decide([RANG], onset=None)).at_step == 8


@pytest.mark.parametrize("on", [("alarm",), ("alarm:ess_frac_min",)])
def test_an_alarm_is_named_by_its_kind_or_with_its_diagnostic(tmp_path, on):
    assert guard(tmp_path, on=on).decide([RANG], onset=None) is not None


@pytest.mark.parametrize("on", [("collapse",), ("alarm:entropy",), ()])
def test_other_events_are_left_alone(tmp_path, on):
    assert guard(tmp_path, on=on).decide([RANG], onset=None) is None


def test_without_a_checkpoint_from_before_the_run_stops_and_says_so(tmp_path):
    found = guard(tmp_path, rungs=(12,)).decide([FALL], onset=12)
    assert found is not None
    assert found.ends
    assert found.rollback is None
    assert "there is no checkpoint from step 8 or before (record.ladder)" in found.event.message


def test_a_start_after_a_rollback_may_go_back_to_where_it_began(tmp_path):
    fork = ForkSettings(experiment="demo", run="parent", at_step=8, seed=0)
    back = decided(guard(tmp_path, rungs=(12,), fork=fork, done=1).decide([FALL], onset=12))
    assert (back.run, back.at_step, back.number, back.change) == ("parent", 8, 2, {"learn.staleness": 0})
    back.write(tmp_path)
    assert Rollback.read(tmp_path) == back


def test_when_all_rollbacks_are_used_the_run_goes_on_and_says_so_once(tmp_path):
    used = guard(tmp_path, done=2)
    found = used.decide([FALL], onset=12)
    assert found is not None
    assert not found.ends
    assert "all 2 rollbacks are used" in found.event.message
    assert used.decide([FALL], onset=12) is None


@pytest.mark.parametrize(("do", "ends"), [("alert", False), ("stop", True)])
def test_a_guard_may_only_say_so_or_only_stop(tmp_path, do, ends):
    found = guard(tmp_path, do=do, changes=()).decide([FALL], onset=12)
    assert found is not None
    assert (found.ends, found.rollback) == (ends, None)
    assert found.event.kind == do


def test_a_run_says_that_it_goes_on_after_a_rollback():
    fork = ForkSettings(experiment="demo", run="parent", at_step=8, seed=0)
    changed = RunSettings(guard=GuardSettings(changes=({"learn.epochs": 1},), done=1), fork=fork)
    event = goes_on(changed)
    assert event is not None
    assert (event.step, event.message) == (8, "goes on from step 8 of parent, after rollback 1")
    assert goes_on(RunSettings()) is None


def test_a_run_ends_with_the_decision_on_the_disk(trained):
    folder = trained(
        iterations=8,
        record={"ladder": 1},
        fault={"kind": "retokenised", "at_step": 3},
        guard={"on": ["guard_token_identity"], "changes": [{}], "before": 1},
    )
    back = Rollback.read(folder)
    assert back is not None
    assert back.at_step == 4
    assert f"{back.at_step:06d}" in [rung.name for rung in checkpoints(folder / "ladder")]
    (event,) = rows(folder, "event").query("kind == 'rollback'").to_dict("records")
    assert event["message"] == back.words
    last = rows(folder, "run").iloc[-1]
    assert (last["status"], last["reason"]) == ("finished", back.words)
    assert rows(folder, "step")["step"].max() == back.alarm_step == 5


def test_a_run_that_leaves_the_band_of_its_baseline_is_stopped(new_run, cache):
    folder = new_run(
        iterations=16,
        record={"baseline": "usual"},
        guard={"on": ["baseline"], "do": "stop"},
    )
    steps = list(range(16))
    band = {"column": "entropy", "runs": 3, "steps": steps, "mean": [50.0] * 16, "unit": [0.01] * 16}
    (folder / "baseline.json").write_text(json.dumps({"bands": [band]}))
    assert train(folder, cache) == 0
    (event,) = rows(folder, "event").query("kind == 'baseline'").to_dict("records")
    assert (event["step"], event["diagnostic"]) == (11, "entropy")
    assert rows(folder, "run").iloc[-1]["reason"].startswith("baseline entropy at step 11")
