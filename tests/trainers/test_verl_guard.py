"""`sorl guard -- COMMAND`: a fall goes back to a checkpoint with one change; what leaves no way back."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from docs.generate.render import ROOT
from sorl.difference.defaults import defaults_of
from sorl.importing.logs import read
from sorl.spec import InputError
from sorl.trainers import verl_guard
from sorl.trainers.verl_guard import (
    Guard,
    Plan,
    Start,
    checkpoint_steps,
    find_fall,
    read_scores,
    with_overrides,
)

TRAINER = str(Path(__file__).with_name("fake_verl_main.py"))
LR = "actor_rollout_ref.actor.optim.lr"


def command(checkpoints: Path, **more: str) -> list[str]:
    options = {LR: "1e-5", "trainer.save_freq": "5", "trainer.default_local_dir": str(checkpoints), **more}
    return [sys.executable, TRAINER, *(f"{name}={value}" for name, value in options.items())]


def plan(checkpoints: Path, *changes: dict[str, str], **more: str) -> Plan:
    return Plan.of(command(checkpoints, **more), None, changes, before=1, poll_seconds=0.2)


class Trained(NamedTuple):
    guard: Guard
    exit_code: int
    said: list[str]


@pytest.fixture
def trained(tmp_path, capfdbinary):
    """Train the stand-in under a guard; returns the guard, its exit code and what it said."""

    def train(*changes: dict[str, str], **more: str) -> Trained:
        said: list[str] = []
        guard = Guard(plan(tmp_path / "checkpoints", *changes, **more), tmp_path / "guard", said.append)
        return Trained(guard, guard.run(), said)

    return train


def test_a_run_that_its_learning_rate_ruins_is_rolled_back_and_recovers(trained, tmp_path):
    guard, code, said = trained({LR: "1e-6"})
    assert code == 0
    (line,) = said
    assert line.startswith("the score collapsed after step ")
    assert line.endswith(f"with {LR}=1e-6 (rollback 1 of 1)")
    _, second = guard.starts
    assert second.at_step in (20, 25, 30)
    assert second.overrides[verl_guard.RESUME_FROM].endswith(f"checkpoints/global_step_{second.at_step}")
    after = read(tmp_path / "guard" / second.log).series("step", "success")
    assert after.index[0] == second.at_step + 1
    assert after.tail(5).mean() > 0.6
    assert read_scores(guard.starts, tmp_path / "guard").index.tolist() == [*range(1, 61)]


def test_when_every_change_is_used_the_training_goes_on_as_it_is(trained):
    guard, code, said = trained({"algorithm.gamma": "1"})
    assert code == 0
    assert len(guard.starts) == 2
    assert "all 1 changes are used, so the training goes on as it is" in said[-1]


def test_without_a_checkpoint_from_before_the_fall_it_goes_on_and_says_so(trained):
    guard, code, said = trained({LR: "1e-6"}, **{"trainer.save_freq": "45"})
    assert (code, len(guard.starts)) == (0, 1)
    assert "has no checkpoint from step" in said[-1]


def test_a_training_that_fails_ends_with_its_own_exit_code(trained):
    _, code, said = trained({LR: "1e-6"}, **{LR: "no number"})
    assert (code, said) == (1, [])


def test_what_cannot_be_judged_never_ends_the_training(trained, monkeypatch):
    def fail(starts, folder):
        raise ValueError("no such shape")

    monkeypatch.setattr(verl_guard, "read_scores", fail)
    _, code, said = trained({LR: "1e-6"})
    assert code == 0
    assert said == [
        "its output cannot be judged (ValueError: no such shape), so the training goes on as it is"
    ]


def test_a_full_disk_never_stops_the_training(trained, monkeypatch):
    opened = Path.open

    def open_full(path, *mode, **more):
        is_log = path.suffix == ".log" and mode == ("wb",)
        return opened(Path("/dev/full") if is_log else path, *mode, **more)

    monkeypatch.setattr(Path, "open", open_full)
    _, code, said = trained({LR: "1e-6"})
    assert code == 0
    assert said[0].startswith("its log cannot be written ([Errno 28]")


def test_an_option_is_replaced_where_the_command_sets_it():
    words = ["python", "-m", "main", "+a.b=1", "c=2"]
    assert with_overrides(words, {"a.b": "3", "d": "4"}) == ["python", "-m", "main", "+a.b=3", "c=2", "d=4"]


def test_a_checkpoint_whose_weights_were_deleted_is_none(tmp_path):
    for step in (5, 20, 100):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
    for step in (20, 100):
        (tmp_path / f"global_step_{step}" / "actor" / "model.pt").touch()
    assert checkpoint_steps(tmp_path) == [20, 100]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"trainer.save_freq": "-1"}, "writes no checkpoints"),
        ({"trainer.logger": "[wandb]"}, "add console to trainer.logger"),
        ({"trainer.del_local_ckpt_after_load": "True"}, "deletes the checkpoint"),
    ],
)
def test_a_command_that_leaves_no_way_back_is_refused(tmp_path, more, says):
    with pytest.raises(InputError, match=says):
        plan(tmp_path, {LR: "1e-6"}, **more)


def test_the_place_of_the_checkpoints_must_be_known(tmp_path):
    words = [word for word in command(tmp_path) if "default_local_dir" not in word]
    with pytest.raises(InputError, match="--checkpoints DIR"):
        Plan.of(words, None, [], before=1, poll_seconds=1.0)
    assert Plan.of(words, tmp_path, [], before=1, poll_seconds=1.0).checkpoints == tmp_path


def test_every_option_that_the_guard_sets_is_one_of_verl():
    verl = defaults_of("verl")
    assert verl is not None
    for option in (verl_guard.RESUME_MODE, verl_guard.RESUME_FROM, verl_guard.SAVE_FREQ):
        assert option in verl.at(verl.versions[-1])


def test_a_score_that_stays_up_never_fell():
    up = pd.Series([0.2 + 0.01 * (step % 3) + 0.005 * step for step in range(60)], index=range(60))
    assert all(find_fall(up.head(steps)) is None for steps in range(1, 61))


def test_a_guard_that_was_killed_goes_on_from_its_own_checkpoints(tmp_path):
    checkpoints = tmp_path / "checkpoints"
    for step in (20, 25, 40):
        (checkpoints / f"global_step_{step}" / "actor").mkdir(parents=True)
        (checkpoints / f"global_step_{step}" / "actor" / "model.pt").touch()
        written_at = 100.0 if step == 40 else 300.0  # step 40 was given up at a rollback
        os.utime(checkpoints / f"global_step_{step}", (written_at, written_at))
    asked = plan(checkpoints, {LR: "1e-6"})
    back = Start("start-2.log", {LR: "1e-6"}, at_step=20, reason="fell", rollbacks=1, started_at=200.0)
    state = {"command": asked.command, "starts": [vars(Start("start-1.log")), vars(back)]}
    (tmp_path / "guard.json").write_text(json.dumps(state))
    following = Guard(asked, tmp_path, print)._continued()
    assert (following.at_step, following.rollbacks, following.log) == (25, 1, "start-3.log")
    assert following.overrides[LR] == "1e-6"
    assert following.overrides[verl_guard.RESUME_FROM].endswith("global_step_25")


def test_a_folder_of_another_command_or_a_damaged_one_is_refused(tmp_path):
    asked = plan(tmp_path, {LR: "1e-6"})
    (tmp_path / "guard.json").write_text(json.dumps({"command": ["other"], "starts": []}))
    with pytest.raises(InputError, match="belongs to another command"):
        Guard(asked, tmp_path, print)
    (tmp_path / "guard.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        Guard(asked, tmp_path, print)


def test_ctrl_c_stops_the_training_and_says_how_to_resume(tmp_path):
    words = [
        sys.executable,
        str(ROOT / "cli.py"),
        "guard",
        "--folder",
        str(tmp_path / "guard"),
        "--change",
        f"{LR}=1e-6",
    ]
    slow = command(tmp_path / "checkpoints", seconds="0.5")
    process = subprocess.Popen(
        [*words, "--", *slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped; run it again to resume" in said
    time.sleep(1.5)
    steps = len((tmp_path / "guard" / "start-1.log").read_text().splitlines())
    time.sleep(1.0)
    assert len((tmp_path / "guard" / "start-1.log").read_text().splitlines()) == steps
