"""The recorder: a step in, rows of every table out; watches that survive a resume."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch

from sorl.measures import CATALOGUE, measure
from sorl.measures.evidence import Evidence, StepEvidence
from sorl.recording.recorder import Recorder, sample, token_rows
from sorl.spec import RunSettings, table
from tests.measures.shared_batch import random_evidence, rollouts_of
from tests.recording.local import table_of as read


def settings_of(**record):
    return RunSettings.model_validate({"record": {"flush_seconds": 2.0, **record}})


@pytest.fixture
def recorder(tmp_path):
    with Recorder(tmp_path, "r", settings_of()) as made:
        yield made


def step_of(step, **changes):
    updates = []
    for u in range(2):
        one = random_evidence(100 * step + u, 3, 2)
        updates.append(
            replace(one, epoch=torch.tensor([u]), scalars={"grad_norm": [1.0 + u], "non_finite": [0.0]})
        )
    seconds = {"total": 1.0, "update": 0.5}
    return replace(
        StepEvidence(rollouts_of([1.0, 0.0, 1.0]), Evidence.stack(updates), None, seconds, 40), **changes
    )


def test_one_step_fills_every_table_with_its_keys(tmp_path):
    with Recorder(tmp_path, "r", settings_of()) as recorder:
        row = recorder.step(7, step_of(7), evaluations=[{"data": "facts", "episodes": 4, "success": 0.5}])
    assert row["success"] == pytest.approx(2 / 3)
    assert row["grad_norm_max"] == 2
    for name in ("step", "minibatch", "trajectory", "turn", "turn_step", "token", "evaluation"):
        rows = read(tmp_path, name)
        assert rows is not None, name
        assert (set(rows["run_id"].to_pylist()), set(rows["step"].to_pylist())) == ({"r"}, {7})
        keys = list(zip(*(rows[k].to_pylist() for k in table(name).key), strict=True))
        assert len(set(keys)) == len(keys), name
        assert not any(part is None for key in keys for part in key), name
    assert read(tmp_path, "minibatch")["epoch"].to_pylist() == [0, 1]
    assert read(tmp_path, "trajectory")["success"].to_pylist() == [True, False, True]
    assert read(tmp_path, "step")["written_at"][0].as_py() is not None


def test_the_dictionary_is_written_once_in_a_run(tmp_path):
    for _ in range(2):
        Recorder(tmp_path, "r", settings_of()).close()
    assert read(tmp_path, "diagnostic").num_rows == len(CATALOGUE)


def test_the_trajectories_of_a_stale_step_are_those_that_were_trained_on(tmp_path, recorder):
    stale = replace(rollouts_of([0.0, 0.0, 0.0]), rollout_step=np.array([2, 2, 2]))
    assert recorder.step(4, step_of(4, trained=stale))["success"] == pytest.approx(2 / 3)  # the fresh ones
    recorder.flush()
    rows = read(tmp_path, "trajectory")
    assert (rows["success"].to_pylist(), rows["rollout_step"].to_pylist()) == ([False] * 3, [2] * 3)


def test_a_share_of_the_trajectories_may_keep_their_turns_to_themselves(tmp_path):
    with Recorder(tmp_path, "r", settings_of(turns=0.34, tokens=0)) as recorder:
        recorder.step(0, step_of(0))
    assert set(read(tmp_path, "turn")["trajectory"].to_pylist()) == {2}
    assert max(read(tmp_path, "turn_step")["n_turns"].to_pylist()) == 3  # the roll-up keeps them all
    assert read(tmp_path, "token") is None


def test_events_of_the_watches_are_written_with_the_step_they_belong_to(tmp_path, recorder):
    for step in range(3):
        bad = step_of(step)
        recorder.step(
            step, replace(bad, updates=replace(bad.updates, scalars={"non_finite": [0.0, float(step)]}))
        )
    recorder.diverged(3, "sampling failed")
    assert recorder.verdict(final=False)["outcome"] == "diverged"
    recorder.flush()
    first, second = read(tmp_path, "event").to_pylist()
    assert [first[k] for k in ("kind", "step", "severity", "diagnostic")] == [
        "non_finite",
        1,
        "critical",
        "non_finite",
    ]
    assert [second[k] for k in ("kind", "step", "severity")] == ["diverged", 3, "critical"]
    assert second["message"] == "sampling failed"


def scored(recorder, step, share):
    recorder.step(
        step, StepEvidence(rollouts_of([1.0] * round(64 * share) + [0.0] * (64 - round(64 * share))))
    )


CURVE = [0.3] * 10 + [0.4, 0.5, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7] + [0.0] * 12


def test_the_verdict_is_that_of_the_collapse_rule_and_open_until_it_is_settled(tmp_path):
    with Recorder(tmp_path, "r", settings_of()) as recorder:
        for step, share in enumerate(CURVE):
            scored(recorder, step, share)
            if step == 17:
                assert recorder.verdict(final=False)["outcome"] is None
                assert recorder.verdict()["outcome"] == "healthy"
        verdict = recorder.verdict(final=False)
    assert verdict["outcome"] == "collapsed"
    assert verdict["peak_success"] == pytest.approx(45 / 64)
    assert verdict["final_success"] == 0
    assert 17 <= verdict["collapse_step"] < verdict["detection_step"]
    assert set(verdict) <= {c.name for c in table("run").columns}
    collapse = [e for e in read(tmp_path, "event").to_pylist() if e["kind"] == "collapse"]
    assert [e["step"] for e in collapse] == [verdict["detection_step"]]


def test_a_resumed_recorder_ends_with_the_rows_and_events_of_one_that_never_stopped(tmp_path):
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    with Recorder(whole, "r", settings_of()) as recorder:
        for step, share in enumerate(CURVE):
            scored(recorder, step, share)
        expected = recorder.verdict()
    with Recorder(parts, "r", settings_of()) as recorder:
        for step in range(15):
            scored(recorder, step, CURVE[step])
        history = json.loads(json.dumps(recorder.history))  # as a checkpoint keeps it
        for step in range(15, 22):  # went on, then was killed: these are on the disk and come again
            scored(recorder, step, CURVE[step])
    with Recorder(parts, "r", settings_of()) as recorder:
        recorder.replay(history)
        assert recorder.history == history
        for step in range(15, len(CURVE)):
            scored(recorder, step, CURVE[step])
        assert recorder.verdict() == expected
    timeless = [f.name for f in read(whole, "step").schema if f.name not in ("written_at", "seconds_record")]
    assert read(parts, "step").select(timeless).equals(read(whole, "step").select(timeless))

    def events(folder):
        rows = read(folder, "event").drop_columns("written_at").to_pylist()
        return {(e["step"], e["kind"], e["diagnostic"]): e for e in rows}  # later rows replace earlier ones

    assert events(parts) == events(whole)
    assert len(events(whole)) >= 2


def test_started_at_is_the_first_start_of_the_run(recorder):
    assert recorder.started_at() is None
    first = datetime(2026, 1, 2, 3, 4, 5)
    for days, status in enumerate(("running", "finished")):
        recorder.rows("run", {"started_at": [first + timedelta(days=days)], "status": [status]})
        recorder.flush()
    assert recorder.started_at() == first


def test_token_rows_carry_the_last_epoch_and_null_where_nothing_was_trained():
    one = random_evidence(1, 3, 2)
    last = replace(random_evidence(1, 3, 2), entropy=one.entropy + 1, epoch=torch.tensor([1]))
    length = one.mask.shape[2] - 1
    rollouts = replace(rollouts_of([1.0] * 3), tokens=[list(range(length))] * 3)
    rows = token_rows([2], rollouts, Evidence.stack([one, last]), lambda ids: [f"t{i}" for i in ids])
    mask = one.mask[0, 2, :length].tolist()
    assert rows["trajectory"] == [2]
    assert rows["token"] == [[f"t{i}" for i in range(length)]]
    assert rows["trained"] == [mask]
    assert [x is not None for x in rows["entropy"][0]] == mask
    position = mask.index(True)
    assert rows["entropy"][0][position] == pytest.approx(float(last.entropy[0, 2, position]))
    assert rows["log_ratio"][0][position] == pytest.approx(
        float((one.log_prob - one.log_prob_old)[0, 2, position])
    )
    assert rows["turn_index"][0] == one.turn[0, 2, :length].tolist()
    unused = token_rows([0], rollouts_of([1.0]), None, None)
    assert unused == {
        "trajectory": [0],
        "token_id": [[0] * 8],
        "token": [None],
    }, "nothing is measured without updates"


def test_token_rows_keep_the_epoch_with_the_largest_gradient_next_to_the_last():
    one = random_evidence(1, 3, 2)
    loud = replace(one, log_prob=one.log_prob + 1)
    for factor, worst in ((10, 0), (math.nan, 0), (0, 1)):
        epochs = [
            replace(loud, gradient_weight=factor * one.gradient_weight),
            replace(one, epoch=torch.tensor([1])),
        ]
        rollouts = replace(rollouts_of([1.0] * 3), tokens=[list(range(one.mask.shape[2]))] * 3)
        (row,) = [{k: v[0] for k, v in token_rows([2], rollouts, Evidence.stack(epochs), None).items()}]
        at = row["trained"].index(True)
        source = epochs[worst]
        expected = (
            float(source.gradient_weight[0, 2, at]),
            float((source.log_prob - source.log_prob_old)[0, 2, at]),
        )
        assert row["worst_epoch"] == worst
        found = row["worst_gradient_weight"][at], row["worst_log_ratio"][at]
        assert found == pytest.approx(expected, nan_ok=True)
        assert row["gradient_weight"][at] == pytest.approx(float(one.gradient_weight[0, 2, at]))


def test_sampled_trajectories_hold_the_culprit_and_change_from_step_to_step():
    share = np.array([0.1, 0.2, 0.6, 0.1])
    assert [sample(step, 2, range(4), share) for step in range(3)] == [[2, 0], [2, 1], [2, 3]]
    assert [sample(0, count, range(4), share) for count in (9, 0)] == [[2, 0, 1, 3], []]
    assert sample(3, 1, range(4), None) == [3]


def test_group_statistics_need_groups_and_equal_rewards_have_no_spread():
    def step(rewards, group=None):
        return measure(0, StepEvidence(rollouts_of(rewards, group=group))).step

    tenths = step([0.1] * 6 + [0.1, 0.2], [0] * 6 + [1] * 2)
    assert tenths["zero_advantage_frac"] == 0.5, "the mean of six rewards of .1 is not .1"
    assert tenths["group_reward_std"] == pytest.approx(np.sqrt(0.005) / 2, rel=1e-12)
    alone = step([1.0, 0.0])
    assert (alone["zero_advantage_frac"], alone["group_reward_std"]) == (None, None)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Recorder(None, "", settings_of()) as recorder:
        assert recorder.step(0, step_of(0))["success"] == pytest.approx(2 / 3)
        recorder.rows("run", {"status": ["running"]})
        assert recorder.flush()
        assert recorder.verdict(final=False)["outcome"] is None
    assert list(tmp_path.iterdir()) == []


def test_the_room_starts_without_torch():
    code = "import sys, sorl.recording.recorder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
