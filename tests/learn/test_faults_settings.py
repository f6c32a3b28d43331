"""What may be asked of the fault lab, and what is said to a request for something else."""

import re
from pathlib import Path
from typing import Any

import pytest

from workbench.algorithms import resolve
from workbench.grid.cell import config_hash
from workbench.grid.config import load
from workbench.learn.faults import FAULTS, Fault, check
from workbench.spec import FaultSettings, InputError, RunSettings


def settings(algorithm: str = "ppo", **fault: Any) -> RunSettings:
    given = {"algorithm": algorithm, "fault": {"at_step": 3, **fault}, "learn": {"policy": {"max_grad_norm": 1.0}}}
    return RunSettings.model_validate(given)


def refusal(run: RunSettings) -> str:
    with pytest.raises(InputError) as error:
        check(run, resolve(run.algorithm, run.slots))
    return str(error.value)


def test_a_run_without_a_fault_is_the_run_that_it_was_before_there_were_faults() -> None:
    assert "fault" not in RunSettings().model_dump(mode="json")
    # Measured before the setting existed: a changed hash would orphan every recorded run.
    assert config_hash(RunSettings()).startswith("7e9b3f6c5444e12e")


def test_what_is_not_set_is_left_out_because_toml_has_no_null() -> None:
    assert settings(kind="turn_shift").model_dump(mode="json")["fault"] == {"kind": "turn_shift", "at_step": 3}


@pytest.mark.parametrize("kind", FAULTS.values(), ids=lambda k: k.name)
def test_every_kind_is_accepted_at_its_default_and_refused_beyond_its_range(kind: Any) -> None:
    algorithm = {"groups": "grpo"}.get(kind.needs, "ppo")
    run = settings(algorithm, kind=kind.name)
    if kind.needs == "reference":
        run = run.model_copy(update={"slots": {"kl": {"kind": "loss"}}})
    check(run, resolve(run.algorithm, run.slots))
    assert Fault(run).strength == kind.default
    beyond = run.model_copy(update={"fault": run.fault.model_copy(update={"strength": kind.low - 1})})
    assert f"fault.strength = {kind.low - 1:g} of '{kind.name}' must be" in refusal(beyond)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (settings(kind="learning_rate", turn=2), "concerns no single turn; delete fault.turn, or use one of: "),
        (settings(kind="wrong_groups"), "ppo compares nothing inside prompt groups"),
        (settings("grpo", kind="critic_diverges"), "grpo has no critic"),
        (settings(kind="reference_wrong"), "set slots.kl"),
        (RunSettings(fault={"kind": "clipping_off", "at_step": 1}), "learn.policy.max_grad_norm is not set"),
        (RunSettings(fault={"kind": "stale_weights", "at_step": 1}, engine={"kind": "vllm"}), 'engine.kind = "hf"'),
        (RunSettings(fault={"kind": "padding_leak", "at_step": 1}, learn={"micro_batch": 4}), "unset learn.micro_"),
        (settings(kind="turn_shift", strength=1.5), "a whole number from 1: tokens by which turns are shifted"),
        (settings(kind="observation_leek"), "'observation_leek' (did you mean 'observation_leak'?); use one of:"),
    ],
)
def test_a_run_that_a_fault_cannot_concern_is_refused_with_the_reason(run: RunSettings, said: str) -> None:
    assert said in refusal(run)


def test_a_fault_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="until_step = 3 must be above at_step = 3"):
        settings(kind="turn_shift", until_step=3)


def test_a_fault_acts_from_its_lead_to_its_end_and_in_its_hook_only() -> None:
    bug = Fault(settings(kind="batch_reused", until_step=5))
    rollouts = ["a", "b", "c", "d", "e", "f"]
    assert [bug("take", rollout, step) for step, rollout in enumerate(rollouts)] == ["a", "b", "c", "c", "e", "f"]
    assert [bug("episodes", rollout, step) for step, rollout in enumerate(rollouts)] == rollouts
    assert Fault(RunSettings())("take", "a", 3) == "a"


GRID = 'question = "Which faults show?"\nseeds = [0]\n[base]\nalgorithm = "ppo"\n'


def test_a_fault_is_an_axis_of_a_grid_and_one_that_does_not_exist_is_refused_by_file_and_arm(tmp_path: Path) -> None:
    file = tmp_path / "faults.toml"
    file.write_text(GRID + '[base.fault]\nat_step = 12\n[axes]\n"fault.kind" = ["turn_shift", "reward_noise"]\n')
    faults = [cell.settings.fault for cell in load(file).cells]
    assert faults == [FaultSettings(kind=name, at_step=12) for name in ("turn_shift", "reward_noise")]
    file.write_text(GRID + '[[arms]]\nname = "odd"\nfault = { kind = "turn_shaft", at_step = 1 }')
    said = f"{file}, arm 'odd': unknown fault.kind 'turn_shaft' (did you mean 'turn_shift'?)"
    with pytest.raises(InputError, match=re.escape(said)):
        load(file)


def test_every_kind_says_which_bug_it_stands_for() -> None:
    assert len(FAULTS) >= 20
    assert all(k.bug.endswith(".") and k.strength for k in FAULTS.values())
    assert sum(k.needs in ("", "clipping", "reference") for k in FAULTS.values()) >= 16  # concern PPO and GRPO
