import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.learn.tiny import MakeRun, assert_same_rows, interrupted, process, rows, train
from workbench.grid.process import follow


@pytest.mark.parametrize("algorithm", ["ppo", "so-grpo"])
def test_two_runs_of_one_cell_write_identical_rows(new_run: MakeRun, cache: Path, algorithm: str) -> None:
    folders = [new_run(name, algorithm=algorithm) for name in ("a", "b")]
    for folder in folders:
        assert train(folder, cache) == 0
    assert_same_rows(*folders)
    assert len(rows(folders[0], "step")) == 6
    assert len(rows(folders[0], "minibatch")) == 6 * 2 * 2


def test_questions_depend_on_the_seed_and_not_on_the_staleness_of_an_arm(new_run: MakeRun, cache: Path) -> None:
    fresh, stale = new_run("fresh", learn={"staleness": 0}), new_run("stale", learn={"staleness": 2})
    other = new_run("other", seed=1, iterations=2)
    for folder in (fresh, stale, other):
        train(folder, cache)
    questions = [list(rows(folder, "trajectory")["question"]) for folder in (fresh, stale, other)]
    assert questions[0] == questions[1]
    assert questions[2] != questions[0][: len(questions[2])]
    asked = rows(fresh, "trajectory").groupby("step")["question"].agg(tuple)
    assert asked.nunique() == len(asked), "every step asks new questions"
    updates = rows(stale, "minibatch")
    lag = (updates["step"] - updates["rollout_step"]).groupby(updates["step"]).first()
    assert list(lag) == [0, 1, 2, 2, 2, 2], "iterations between sampling and training"


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_an_interrupted_run_resumes_to_the_same_rows_as_an_uninterrupted_one(
    new_run: MakeRun, cache: Path, kind: str
) -> None:
    changes = {"learn": {"policy": {"kind": kind, "lr": 0.01, **({"momentum": 0.5} if kind == "sgd" else {})}}}
    whole, parts = new_run("whole", **changes), new_run("parts", **changes)
    assert train(whole, cache) == 0
    assert interrupted(parts, cache, after=1) == 3
    assert rows(parts, "run")["status"].iloc[-1] == "interrupted"
    assert len(rows(parts, "step")) < 6
    assert train(parts, cache) == 0
    assert rows(parts, "run")["status"].iloc[-1] == "finished"
    assert_same_rows(whole, parts)


def test_a_killed_run_resumes_from_its_checkpoint_without_a_row_twice(new_run: MakeRun, cache: Path) -> None:
    whole, parts = new_run("whole"), new_run("parts")
    assert train(whole, cache) == 0
    interrupted(parts, cache, after=4, by=signal.SIGKILL)
    assert train(parts, cache) == 0
    assert_same_rows(whole, parts, "step", "minibatch", "turn")
    left, right = ({f.name: f.read_bytes() for f in (run / "batches").iterdir()} for run in (whole, parts))
    assert sorted(left) == [f"{step:06d}.safetensors" for step in range(6)]
    assert left == right, "a batch that is written again is the same file"


def test_a_fresh_rollout_has_ratio_one_at_first_and_the_log_probs_of_the_engine(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(learn={"staleness": 0}, record={"tokens": 4})
    train(folder, cache)
    first = rows(folder, "minibatch").query("update == 0")
    assert (first["ratio_max"] - 1).abs().max() < 1e-4
    assert (first["clip_frac"] == 0).all()
    assert (rows(folder, "minibatch").query("update > 0")["ratio_max"] - 1).abs().max() > 1e-3
    for _, row in rows(folder, "token").iterrows():
        pairs = zip(row["trained"], row["log_prob_behaviour"], row["log_prob_old"], strict=True)
        assert max(abs(mu - old) for trained, mu, old in pairs if trained) < 1e-4


def test_splitting_a_minibatch_into_micro_batches_changes_no_row(new_run: MakeRun, cache: Path) -> None:
    a, b = new_run("a", algorithm="turn-ppo"), new_run("b", algorithm="turn-ppo", learn={"micro_batch": 2})
    for folder in (a, b):
        assert train(folder, cache) == 0
    left, right = rows(a, "minibatch"), rows(b, "minibatch")
    for name in ("grad_norm", "policy_loss", "value_loss", "clip_bias_norm", "critic_grad_norm"):
        first = slice(0, 4)  # rounding differs, and training amplifies it: the first step only
        pd.testing.assert_series_equal(left[name][first], right[name][first], rtol=1e-3, atol=1e-6)


def test_a_run_that_diverges_keeps_its_rows_and_says_so(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(learn={"policy": {"lr": 1e30}})
    assert train(folder, cache) == 0
    last = rows(folder, "run").iloc[-1]
    assert (last["status"], last["outcome"]) == ("finished", "diverged")
    assert last["reason"]
    assert "non_finite" in set(rows(folder, "event")["kind"]) or "diverged" in set(rows(folder, "event")["kind"])
    assert len(rows(folder, "step")) >= 1


def test_the_frozen_start_is_kept_as_reference_only_where_a_kl_term_asks_for_it(new_run: MakeRun, cache: Path) -> None:
    with_kl, without = new_run("with", slots={"kl": {"kind": "loss", "beta": 0.1}}), new_run("without")
    for folder in (with_kl, without):
        assert train(folder, cache) == 0
    assert rows(with_kl, "minibatch")["kl_ref"].notna().all()
    assert rows(without, "minibatch")["kl_ref"].isna().all()


def test_a_folder_that_cannot_be_trained_is_refused_with_an_exit_code_of_its_own(new_run: MakeRun, cache: Path) -> None:
    folder = new_run()
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = process(folder, cache)
    assert done.returncode == 4
    assert "being trained by another process" in done.stderr
    assert "Traceback" not in done.stderr
    done = process(folder.parent, cache)
    assert done.returncode == 2
    assert "no config.toml" in done.stderr
    assert "sorl run" in done.stderr


def test_the_grid_reads_the_progress_lines_of_a_trainer(new_run: MakeRun, cache: Path, tmp_path: Path) -> None:
    done = process(new_run(), cache)
    log = tmp_path / "console.log"
    log.write_text(done.stdout)
    lines = next(follow(log, 0))
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {"steps", "success", "clip_frac", "grad_norm", "seconds"} <= lines[0].keys()


def test_rows_reach_the_disk_while_a_run_is_alive(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(iterations=400)
    command = [sys.executable, "-m", "workbench.learn", str(folder), "--cache", str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cell:
        assert cell.stdout is not None
        seen = json.loads(cell.stdout.readline())["step"]
        time.sleep(2.5)  # the flush interval of 1 s, and a margin for a busy machine
        on_disk = len(rows(folder, "step"))
        os.kill(cell.pid, signal.SIGKILL)
    assert on_disk >= seen


def test_a_minibatch_beyond_the_kl_limit_is_measured_and_not_stepped_on(new_run: MakeRun, cache: Path) -> None:
    """The first minibatch of a step has KL 0 and is trained on; the second has left the limit, which ends the step."""
    limit = {"early_stop": {"limit": 1e-3}, "select": "none"}
    folder = new_run(algorithm="loop", slots=limit, learn={"staleness": 0, "group_size": 4, "policy": {"lr": 0.5}})
    assert train(folder, cache) == 0
    minibatch = rows(folder, "minibatch").set_index("step")
    moved = minibatch.query("update == 0 and grad_norm > 0").index  # elsewhere no rollout beat another
    assert len(moved) > 2
    assert set(minibatch.loc[moved].groupby("step").size()) == {2}, "of four"
    first, second = (minibatch.loc[moved].query("update == @update") for update in (0, 1))
    assert (first["grad_norm_after"] > 0).all()
    assert (second["grad_norm_after"] == 0).all()
    assert (second["grad_norm"] > 0).any()
    assert (rows(folder, "step")["grad_clipped_frac"] == 0).all()


def test_the_ratio_of_every_turn_starts_at_one_where_turns_are_trained_one_after_the_other(
    new_run: MakeRun, cache: Path
) -> None:
    changes = {"world": {"max_turns": 4}, "learn": {"staleness": 1, "minibatches": 1, "policy": {"lr": 0.3}}}
    folder = new_run(algorithm="seeupo", **changes)
    assert train(folder, cache) == 0
    turn = rows(folder, "turn")
    first, last = (turn[turn["epoch"] == epoch] for epoch in (0, 1))
    assert first["turn_index"].nunique() > 1
    assert first["log_ratio_sum"].abs().max() < 1e-4
    assert last["log_ratio_sum"].abs().max() > 1e-3, "an epoch moves the policy away from the start of its turn"
    update = rows(folder, "minibatch").merge(turn, on=["step", "update"])
    order = update.groupby(["step", "update"])["turn_index"].agg(["min", "max"]).reset_index()
    assert (order["min"] == order["max"]).all()
    for _, step in order.groupby("step"):
        turns = step["max"].tolist()
        assert turns == sorted(turns, reverse=True), "all epochs of a turn, the last turn first"
