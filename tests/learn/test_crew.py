"""Several processes that train one run, for real: gloo on the CPU, the leader and one helper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tests.learn.tiny import CLOCK, process, rows, train
from workbench.learn.checkpoint import checkpoints
from workbench.learn.crew import Crew, led
from workbench.learn.run import FAILED, FINISHED, INTERRUPTED
from workbench.spec import ComputeSettings, InputError, RunSettings

pytestmark = pytest.mark.timeout(600)
SHARED = {"compute": {"processes": 2}}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    last = checkpoints(folder / "checkpoints")[-1]
    found = load_file(last / "policy" / "model.safetensors")
    critic = last / "critic.safetensors"
    return found | ({f"critic.{k}": v for k, v in load_file(critic).items()} if critic.exists() else {})


def same(one: Path, other: Path) -> None:
    ours, theirs = weights(one), weights(other)
    assert set(ours) == set(theirs)
    for name, weight in ours.items():
        assert torch.allclose(weight, theirs[name], rtol=1e-6, atol=1e-7), name


def begun(folder: Path, cache: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """The leader of a run, a step after its start, and its helper."""
    command = [sys.executable, "-m", "workbench.learn", str(folder), "--cache", str(cache)]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    assert leader.stdout.readline()
    (helper,) = [p for p in psutil.Process(leader.pid).children() if "workbench.learn" in p.cmdline()]
    return leader, helper


# Its gradient is divided by the norm of the clipping bias, its statistics those of the minibatch, its loss is a mean
# over tokens: what each process must not do by itself.
@pytest.mark.parametrize(
    "algorithm", ["st-ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "so-grpo"))]
)
def test_two_processes_train_what_one_trains(
    algorithm: str, new_run: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = new_run("one", algorithm=algorithm), new_run("two", algorithm=algorithm, **SHARED)
    alone = Crew()
    alone.size = 2  # the same parts, all computed by one process
    monkeypatch.setattr("workbench.learn.crew.led", lambda *_: nullcontext(alone))
    assert train(one, cache) == FINISHED
    ended = process(two, cache)
    assert ended.returncode == FINISHED, ended.stderr
    same(one, two)
    ours, theirs = rows(one, "step"), rows(two, "step")
    measured = [c for c in ours.select_dtypes("number") if not c.startswith(CLOCK)]
    assert len(theirs) == len(ours) == 6
    torch.testing.assert_close(
        torch.tensor(theirs[measured].to_numpy(dtype=float)), torch.tensor(ours[measured].to_numpy(dtype=float)),
        rtol=1e-6, atol=1e-7, equal_nan=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_shared_run_that_is_stopped_goes_on_as_if_it_had_not_been(new_run: Callable[..., Path], cache: Path) -> None:
    whole, stopped = new_run("whole", **SHARED), new_run("stopped", iterations=60, **SHARED)
    running, _ = begun(stopped, cache)
    os.killpg(running.pid, signal.SIGTERM)  # as a scheduler does: everyone hears it
    assert running.wait(120) == INTERRUPTED
    at = int(checkpoints(stopped / "checkpoints")[-1].name)
    assert 0 < at < 6, "too late to compare"
    settings = stopped / "config.toml"
    settings.write_text(settings.read_text().replace("iterations = 60", "iterations = 6"))
    for folder in (stopped, whole):
        ended = process(folder, cache)
        assert ended.returncode == FINISHED, ended.stderr
    same(whole, stopped)


def test_a_helper_that_dies_fails_the_run_which_says_so(new_run: Callable[..., Path], cache: Path) -> None:
    folder = new_run("killed", iterations=1000, **SHARED)
    running, helper = begun(folder, cache)
    helper.kill()
    assert running.wait(120) == FAILED
    last = rows(folder, "run").iloc[-1]
    assert last.status == "failed"
    assert last.reason
    assert len(rows(folder, "step")) >= 1


def test_a_helper_that_never_begins_ends_the_run() -> None:
    waits = """
import subprocess, sys, threading, time
from workbench.learn import crew
helper = subprocess.Popen([sys.executable, "-c", "raise SystemExit('no such world')"])
threading.Thread(target=crew._watch, args=([helper], threading.Event(), 0.1), daemon=True).start()
time.sleep(60)  # as for a rendezvous that nobody comes to
"""
    ended = subprocess.run([sys.executable, "-c", waits], capture_output=True, text=True, check=False, timeout=50)
    assert ended.returncode == FAILED
    assert "no such world" in ended.stderr
    assert "ended with code 1; it says above why" in ended.stderr


def test_a_leader_that_is_killed_leaves_no_helper(new_run: Callable[..., Path], cache: Path) -> None:
    running, helper = begun(new_run("orphan", iterations=1000, **SHARED), cache)
    running.kill()
    running.wait()
    end = time.monotonic() + 60
    while helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.1)
    assert not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE


def test_one_process_is_the_run_it_was_before_there_were_several() -> None:
    told = RunSettings.model_validate({"compute": {"micro_batch_tokens": 400}}).model_dump()
    assert "processes" not in told["compute"]
    assert RunSettings.model_validate(SHARED).model_dump()["compute"]["processes"] == 2


def test_a_fault_is_not_put_into_several_processes() -> None:
    with pytest.raises(ValueError, match="a fault is put into one process"):
        RunSettings.model_validate({"fault": {"kind": "lr_spike", "at_step": 3}, **SHARED})


def test_a_policy_that_diverges_in_one_process_ends_the_run_of_all(new_run: Callable[..., Path], cache: Path) -> None:
    learn = {"epochs": 1, "minibatches": 1, "staleness": 0, "policy": {"lr": 1e30}}
    folder = new_run("diverged", learn=learn, **SHARED)
    ended = process(folder, cache)
    assert ended.returncode == FINISHED, ended.stderr
    last = rows(folder, "run").iloc[-1]
    assert last.status == "finished"
    assert "sampling failed in step 1" in last.reason


def test_vllm_samples_for_one_process() -> None:
    with pytest.raises(ValueError, match=r"compute\.processes > 1 samples with engine.kind"):
        RunSettings.model_validate({"engine": {"kind": "vllm"}, **SHARED})


def test_without_accelerate_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with (
        pytest.raises(InputError, match=r"pip install 'sorl\[accelerate\]'"),
        led(tmp_path, tmp_path, ComputeSettings(processes=2)),
    ):
        pass
