"""Stop rules and budgets: when they end a run, what it says then, and that a resume changes nothing about it."""

import pytest
from pandas.testing import assert_frame_equal

from tests.learn.tiny import Session, assert_same_rows, interrupted, rows, train
from workbench.grid.cell import config_hash
from workbench.learn.loop import stop_reason
from workbench.spec import RunSettings, StopSettings

# The collapse rule at its most nervous: any dip of a noisy curve is a collapse.
NERVOUS = {"window": 1, "baseline": 1, "points": 1, "severe": 0.05, "mild": 0.05, "sigmas": 0.01}


@pytest.mark.parametrize(
    ("rules", "detection", "part"),
    [
        ({}, 2, ""),
        ({"after_collapse": 5}, None, ""),
        ({"after_collapse": 5}, 5, ""),  # steps 6 to 9: four after it
        ({"after_collapse": 5}, 4, "stopped 5 iterations after the collapse detected at step 4"),
        ({"after_collapse": 0}, 9, "stopped in the iteration of the collapse detected at step 9"),
        ({"updates": 41}, None, ""),
        ({"updates": 40}, None, "stopped by its budget of 40 optimizer updates (stop.updates)"),
        ({"tokens": 901}, None, ""),
        ({"tokens": 850}, None, "stopped by its budget of 850 trained tokens (stop.tokens)"),
        ({"seconds": 8.0}, None, ""),
        ({"seconds": 7.5}, None, "stopped by its budget of 7.5 s of training (stop.seconds)"),
        ({"updates": 41, "tokens": 1}, None, "(stop.tokens)"),
    ],
)
def test_a_run_stops_when_a_rule_holds_and_says_which(rules, detection, part):
    said = stop_reason(StopSettings(**rules), 10, detection, {"updates": 40, "tokens": 900, "seconds": 7.5})
    assert part in said
    assert bool(said) == bool(part)


def test_a_run_without_stop_rules_is_the_run_that_it_was_before_there_were_any():
    assert "stop" not in RunSettings().model_dump()
    assert config_hash(RunSettings.model_validate({"stop": {}})) == config_hash(RunSettings())
    stopping = RunSettings.model_validate({"stop": {"after_collapse": 5}})
    assert config_hash(stopping) != config_hash(RunSettings())
    assert RunSettings.model_validate_json(stopping.model_dump_json()) == stopping
    assert RunSettings.model_validate({"stop": {"updates": "none"}}) == RunSettings()


def test_a_budget_of_updates_ends_the_run_as_finished_with_its_checkpoint_and_its_last_evaluation(
    trained,
):
    whole, short = trained(), trained(stop={"updates": 10})  # 4 updates an iteration: after the third
    last = rows(short, "run").iloc[-1]
    assert (last["status"], last["steps"]) == ("finished", 3)
    assert last["reason"] == "stopped by its budget of 10 optimizer updates (stop.updates)"
    assert rows(whole, "run").iloc[-1]["reason"] is None
    for table in ("step", "minibatch", "turn"):
        expected = rows(whole, table)
        assert_frame_equal(rows(short, table), expected[expected["step"] < 3], check_exact=True, obj=table)
    assert max(p.name for p in (short / "checkpoints").iterdir()) == "000003"
    assert list(rows(short, "evaluation").query("step == 3")["data"]) == ["facts", "facts-no-search"]


@pytest.mark.parametrize("budget", [{"updates": 14}, {"tokens": 2000}])
def test_a_run_with_a_budget_that_was_interrupted_resumes_to_the_same_rows(new_run, trained, cache, budget):
    whole, parts = trained(stop=budget), new_run(stop=budget)
    assert interrupted(parts, cache, after=1) == 3
    assert train(parts, cache) == 0
    assert_same_rows(whole, parts)
    ends = [rows(run, "run").iloc[-1][["status", "reason", "steps", "outcome"]].tolist() for run in (whole, parts)]
    assert ends[0] == ends[1]
    assert "budget" in ends[0][1]
    assert 1 < ends[0][2] < 6


def test_a_run_stops_so_many_iterations_after_its_collapse_and_its_outcome_is_that_of_the_rule(
    trained,
):
    folder = trained(iterations=40, collapse=NERVOUS, stop={"after_collapse": 1})
    last = rows(folder, "run").iloc[-1]
    assert (last["status"], last["outcome"]) == ("finished", "collapsed")
    assert last["steps"] == last["detection_step"] + 2 < 40
    assert "1 iterations after the collapse" in last["reason"]
    assert rows(folder, "evaluation")["step"].max() == last["steps"]


@pytest.mark.parametrize("killed", [False, True])
def test_the_seconds_of_all_sessions_count_and_the_rows_of_a_killed_one_stand(tmp_path, cache, killed):
    first = Session(tmp_path, cache, stop={"seconds": 1e6})
    first.train(2)
    assert 0 < first.trainer.seconds < 1e6
    first.trainer.seconds = 1.0 if killed else 1e6
    first.trainer.save(tmp_path / "checkpoints")
    if killed:  # rows of steps 2 to 4 are on the disk, their seconds are in no checkpoint
        first.train(5)
    first.recorder.close()
    second = Session(tmp_path, cache, stop={"seconds": 1e6})
    if killed:  # as if the first steps had taken the whole budget on this machine
        second.trainer.seconds = 1e6
    second.train(9)
    second.recorder.close()
    end = 5 if killed else 2
    assert second.trainer.step == end
    assert rows(tmp_path, "step")["step"].tolist() == list(range(end))
    assert "(stop.seconds)" in second.trainer.stopped
