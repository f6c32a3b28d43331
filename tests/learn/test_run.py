"""A run in its folder: the same rows however it is cut into sessions, its black box, stop rules, and the
guard.
"""

import json
import os
import signal
import time
from copy import deepcopy

import numpy as np
import pytest
from pandas.testing import assert_frame_equal

from sorl.grid.process import follow, where
from sorl.learn.__main__ import main
from sorl.learn.loop import stop_reason
from sorl.spec import StopSettings
from sorl.spec.files import lock_file
from sorl.store import batches
from tests.grid.harness import wait_for
from tests.learn.tiny import Session, assert_same_rows, cell, interrupted, merged, resumed, rows, train

FRESH = {"staleness": 0}


def test_questions_depend_on_the_seed_and_not_on_the_staleness_of_an_arm(trained):
    fresh = trained(learn=FRESH)
    stale = trained()
    other = trained(seed=1, iterations=2)
    questions = [list(rows(folder, "trajectory")["question"]) for folder in (fresh, stale, other)]
    assert questions[0] == questions[1]
    assert questions[2] != questions[0][: len(questions[2])]
    asked = rows(fresh, "trajectory").groupby("step")["question"].agg(tuple)
    assert asked.nunique() == len(asked), "every step asks new questions"
    updates = rows(stale, "minibatch")
    lag = (updates["step"] - updates["rollout_step"]).groupby(updates["step"]).first()
    assert list(lag) == [0, 1, 2, 2, 2, 2], "iterations between sampling and training"


@pytest.mark.parametrize(("by", "after", "status"), [("SIGINT", 1, "interrupted"), ("SIGKILL", 4, "running")])
def test_a_run_that_is_cut_off_resumes_to_the_same_rows_and_batches(
    new_run, trained, cache, by, after, status
):
    momentum = {"policy": {"kind": "sgd", "lr": 0.01, "momentum": 0.5}}
    whole = trained(learn=momentum)
    parts = new_run(learn=momentum)
    number = signal.Signals[by]
    assert interrupted(parts, cache, after, number) == (3 if by == "SIGINT" else -number)
    assert rows(parts, "run")["status"].iloc[-1] == status
    assert by == "SIGKILL" or len(rows(parts, "step")) < 6
    assert train(parts, cache) == 0
    assert rows(parts, "run")["status"].iloc[-1] == "finished"
    assert (len(rows(whole, "step")), len(rows(whole, "minibatch"))) == (6, 6 * 2 * 2)
    assert_same_rows(whole, parts, *(() if by == "SIGINT" else ("step", "minibatch", "turn")))
    left, right = ({f.name: f.read_bytes() for f in (run / "batches").iterdir()} for run in (whole, parts))
    assert sorted(left) == [f"{step:06d}.safetensors" for step in range(6)]
    assert left == right, "a batch that is written again is the same file"


@pytest.mark.parametrize(
    "changes",
    [
        {"learn": {"policy": {"kind": "adamw", "lr": 0.01}}},
        {"algorithm": "ppo-ewma", "iterations": 4},
        {"stop": {"updates": 14}},
        {"stop": {"tokens": 2000}},
        # What the fault remembers, the weights of iteration 0, is in no checkpoint: the run starts again.
        {"algorithm": "grpo", "iterations": 4, "fault": {"kind": "stale_weights", "at_step": 1}},
    ],
)
def test_a_session_goes_on_with_the_optimizer_the_budgets_and_the_fault_of_the_one_before(
    new_run, trained, cache, changes
):
    whole = trained(**changes)
    parts = resumed(new_run(**changes), cache, 2, **changes)
    # its evaluations come twice
    again = ("step", "minibatch", "turn", "trajectory") if "fault" in changes else ()
    assert_same_rows(whole, parts, *again)
    ends = [
        rows(run, "run").iloc[-1][["status", "reason", "steps", "outcome"]].tolist() for run in (whole, parts)
    ]
    assert ends[0] == ends[1]
    if "stop" in changes:
        assert "budget" in ends[0][1]
        assert 2 < ends[0][2] < 6


def test_a_fresh_rollout_has_ratio_one_at_first_and_the_log_probs_of_the_engine(trained):
    folder = trained(learn=FRESH)
    first = rows(folder, "minibatch").query("update == 0")
    assert (first["ratio_max"] - 1).abs().max() < 1e-4
    assert (first["clip_frac"] == 0).all()
    assert (rows(folder, "minibatch").query("update > 0")["ratio_max"] - 1).abs().max() > 1e-3
    for _, row in rows(folder, "token").iterrows():
        pairs = zip(row["trained"], row["log_prob_behaviour"], row["log_prob_old"], strict=True)
        assert max(abs(mu - old) for used, mu, old in pairs if used) < 1e-4


def test_a_run_that_diverges_keeps_its_rows_and_says_so(trained):
    folder = trained(learn={"policy": {"lr": 1e30}})
    last = rows(folder, "run").iloc[-1]
    assert (last["status"], last["outcome"]) == ("finished", "diverged")
    assert last["reason"]
    assert {"non_finite", "diverged"} & set(rows(folder, "event")["kind"])
    assert len(rows(folder, "step")) >= 1


def test_the_frozen_start_is_kept_as_reference_only_where_a_kl_term_asks_for_it(trained):
    assert rows(trained(slots={"kl": {"kind": "loss", "beta": 0.1}}), "minibatch")["kl_ref"].notna().all()
    assert rows(trained(), "minibatch")["kl_ref"].isna().all()


def test_a_folder_that_cannot_be_trained_is_refused_with_an_exit_code_of_its_own(new_run, cache, capfd):
    folder = new_run()
    with lock_file(folder / "lock"):
        assert main([str(folder), "--cache", str(cache)]) == 4
    assert main([str(folder.parent), "--cache", str(cache)]) == 2
    held_by_another, no_run = capfd.readouterr().err.splitlines()
    assert "being trained by another process" in held_by_another
    assert "no config.toml" in no_run
    assert "sorl run" in no_run


def test_the_grid_reads_the_progress_lines_of_a_trainer(new_run, cache, tmp_path):
    log = tmp_path / "console.log"
    with log.open("w") as out:
        train(new_run(), cache, out)
    lines = next(follow(log, 0))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {"steps", "success", "clip_frac", "grad_norm", "seconds"} <= lines[0].keys()


def test_a_live_run_beats_writes_its_rows_and_says_where_it_stands_on_a_signal(new_run, cache):
    folder = new_run(iterations=100_000, evaluation={"every": 0})
    log = folder / "console.log"

    def said_where() -> bool:
        # again where a busy machine looked too late: newer lines are read first
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.2)
        return ".py:" in where(log)

    with log.open("w") as out, cell(folder, cache, stdout=out, stderr=out) as process:
        try:
            wait_for(lambda: '"step": 2' in log.read_text())
            first = (folder / "heartbeat").stat().st_mtime_ns
            wait_for(lambda: (folder / "heartbeat").stat().st_mtime_ns > first)
            wait_for(said_where)
            complete = [line for line in log.read_text().splitlines() if line.endswith("}")]
            seen = json.loads(complete[-1])["step"]
            time.sleep(2.5)  # the flush interval of 1 s, and a margin for a busy machine
            assert len(rows(folder, "step")) >= seen
            assert process.poll() is None, "it trains on"
        finally:
            process.kill()


def test_a_stored_batch_is_what_the_ledger_was_measured_on(trained):
    folder = trained()
    assert batches.steps(folder) == list(range(6))
    batch = batches.read(folder, 4, weights=True)
    trajectory = rows(folder, "trajectory").query("step == 4")
    np.testing.assert_allclose(batch.score, trajectory["reward"])
    assert list(batch.group) == list(trajectory["prompt_group"])
    minibatch = rows(folder, "minibatch").query("step == 4").reset_index(drop=True)
    assert len(batch.updates) == len(minibatch) == 4
    for update in batch.updates:
        logged = minibatch.iloc[update.index]
        assert (update.epoch, update.rollout_step) == (logged["epoch"], logged["rollout_step"])
        assert [update.scalars[x] for x in ("policy_loss", "grad_norm")] == [
            logged["policy_loss"],
            logged["grad_norm"],
        ]
        moved = (update.log_prob - batch.log_prob_old[update.rows])[batch.mask[update.rows]].astype(float)
        assert np.exp(moved).max() == pytest.approx(logged["ratio_max"], rel=1e-6)
    turns = rows(folder, "turn").query("step == 4 and epoch == 0")
    assert len(turns) == sum(len(set(row[row > 0])) for row in batch.turn)
    assert batch.meta["model"]["hidden_size"] == 32
    assert {name.split(".")[0] for name in batch.weights} == {"policy", "critic", "optimizer"}
    again = batches.read(folder, 5, weights=True).weights
    assert any((batch.weights[name] != again[name]).any() for name in again)


def test_a_black_box_that_is_off_or_cannot_be_written_stops_no_run(new_run, cache):
    blocked = new_run("blocked", iterations=2)
    off = new_run("off", iterations=2, record={"batches": {"mb": 0}})
    (blocked / "batches").write_text("in the way")
    for folder in (blocked, off):
        assert train(folder, cache) == 0
        assert len(rows(folder, "step")) == 2
        assert batches.steps(folder) == []
    assert not (off / "batches").exists()


def test_a_stored_batch_leaves_out_weights_beyond_their_limit_and_keeps_the_mask_of_dropped_sequences(
    trained,
):
    without = {"batches": {"weights_mb": 0}}
    zero_var = {"select": {"kind": "zero_var"}}
    batch = batches.read(
        trained(algorithm="grpo", iterations=2, slots=zero_var, record=without), 1, weights=True
    )
    assert batch.weights == {}
    assert "model" not in batch.meta
    assert batch.values is None
    flat = [np.ptp(batch.score[batch.group == g]) == 0 for g in batch.group]
    assert (batch.mask_sampled.any(1)).all()
    np.testing.assert_array_equal(batch.mask.any(1), ~np.array(flat))


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


def test_a_budget_of_updates_ends_the_run_as_finished_with_its_checkpoint_and_its_last_evaluation(trained):
    # 4 updates an iteration: after the third
    whole = trained()
    short = trained(stop={"updates": 10})
    last = rows(short, "run").iloc[-1]
    assert (last["status"], last["steps"]) == ("finished", 3)
    assert last["reason"] == "stopped by its budget of 10 optimizer updates (stop.updates)"
    assert rows(whole, "run").iloc[-1]["reason"] is None
    for table in ("step", "minibatch", "turn"):
        expected = rows(whole, table)
        assert_frame_equal(rows(short, table), expected[expected["step"] < 3], check_exact=True, obj=table)
    assert max(p.name for p in (short / "checkpoints").iterdir()) == "000003"
    assert list(rows(short, "evaluation").query("step == 3")["data"]) == ["facts", "facts-no-search"]


def test_a_run_stops_so_many_iterations_after_its_collapse_and_its_outcome_is_that_of_the_rule(trained):
    nervous = {"severe": 0.05, "mild": 0.05}  # any dip of a noisy curve is a collapse
    folder = trained(iterations=40, collapse=nervous, stop={"after_collapse": 1})
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


def test_a_run_goes_on_where_the_selection_drops_every_group_of_a_step(trained):
    unsolvable = {"world": {"top_k": 0}, "warmstart": {"steps": 0}}
    changes = {"algorithm": "grpo", "slots": {"select": {"kind": "zero_var"}}, "learn": {"staleness": 0}}
    folder = trained(**merged(unsolvable, changes), iterations=2)
    assert len(rows(folder, "step")) == 2
    assert (rows(folder, "witness_batch").trajectories == 0).all()
    assert (rows(folder, "trajectory").success == 0).all()


@pytest.mark.parametrize(
    # steps whose first ratio is known to be 1: the first, or all where rollouts are fresh
    ("changes", "checked"),
    [
        ({}, 1),
        ({"learn": {"epochs": 3}}, 1),  # the epochs of one step are no stuck batch
        ({"learn": {"staleness": 0}}, 4),
        ({"learn": {"staleness": 1, "old_log_prob": "update", "epochs": 1, "minibatches": 1}}, 4),
        ({"learn": {"staleness": 0, "old_log_prob": "behaviour"}, "engine": {"temperature": 0.7}}, 4),
        ({"learn": {"staleness": 0, "old_log_prob": "behaviour"}, "engine": {"dtype": "bfloat16"}}, 0),
        ({"algorithm": "grpo", "slots": {"select": "zero_var"}, "learn": {"staleness": 0}}, 4),
    ],
)
def test_a_sound_run_is_not_flagged(tmp_path, cache, changes, checked):
    session = Session(tmp_path, cache, iterations=4, **changes)
    session.trainer.self_test()
    session.train()
    assert session.guard() == []
    step = rows(tmp_path, "step")
    assert (step["token_mismatches"] == 0).all()
    assert step["batch_hash"].is_unique
    assert step["first_log_ratio_abs_max"].notna().sum() == checked


def test_a_policy_that_is_another_one_in_its_update_is_flagged_on_fresh_rollouts_only(tmp_path, cache):
    session = Session(tmp_path, cache, iterations=4)
    learner = session.trainer.learner
    honest = session.trainer.learner.update

    def update(*asked):
        learner.temperature = 1.3  # the update reads the logits at another temperature
        return honest(*asked)

    learner.update = update
    session.train()
    ((kind, step, message),) = session.guard()  # stale by two: step 0 alone is fresh
    assert (kind, step) == ("guard_first_ratio", 0)
    assert "where it is 0 by construction" in message


def test_a_resumed_run_repeats_no_event_and_remembers_the_batches_of_the_session_before(tmp_path, cache):
    session = Session(tmp_path, cache, iterations=4)
    session.train(1)
    first = deepcopy(session.trainer.queue[0])  # what step 1 trains on
    session.train(2, save=True)
    assert session.guard() == []
    session = Session(tmp_path, cache, iterations=4)
    assert session.trainer.queue[0].episodes[0].stretches, "a checkpoint keeps the witness"
    session.trainer.queue[0] = first
    session.train()
    assert [(kind, step) for kind, step, _ in session.guard()] == [("guard_stuck_batch", 2)]
    assert rows(tmp_path, "step")["token_mismatches"].sum() == 0
