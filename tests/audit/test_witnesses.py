"""Identities over time: silent on healthy runs however they are set; each fault violates its own identity."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sorl.audit import Check, WitnessTables, witness_checks, witness_tables
from sorl.audit.witnesses import ROUNDOFF, adam_bound, steps_due
from sorl.learn import loop, update
from sorl.learn.loop import Trainer
from sorl.learn.witnesses import Witnesses
from sorl.recording.witness import Witness
from tests.cli.command import sorl, told
from tests.learn.tiny import MakeRun, Session, rows, train
from tests.store.processes import ROOT

GRPO = {
    "algorithm": "grpo",
    "slots": {"kl": {"kind": "loss", "beta": 0.05}},
    "learn": {"group_size": 4, "staleness": 0},
}
HEALTHY: dict[str, dict[str, Any]] = {
    "stale PPO by SGD, two epochs of two minibatches": {},
    "fresh PPO by AdamW with decay, bounds and a warm-up from 0": {
        "learn": {
            "staleness": 0,
            "policy": {"kind": "adamw", "lr": 0.003, "weight_decay": 0.1, "max_grad_norm": 0.5, "warmup": 3},
        }
    },
    "GRPO with a reference": GRPO,
    "GRPO without groups that teach nothing, momentum and decay": {
        "algorithm": "grpo",
        "slots": {"select": {"kind": "zero_var"}},
        "learn": {"group_size": 4, "policy": {"momentum": 0.9, "lr": 0.01, "weight_decay": 0.01}},
    },
    "bfloat16 in trainer and sampler, micro-batches": {
        "engine": {"dtype": "bfloat16"},
        "compute": {"dtype": "bfloat16"},
        "learn": {"micro_batch": 4},
    },
    "an early stop and a tied head": {"learn": {"target_kl": 0.001}, "policy": {"tied": True}},
    "one update a step": {"learn": {"epochs": 1, "minibatches": 1, "staleness": 0}},
    "a mixture of experts": {"policy": {"family": "mixtral", "experts": 4}},
}


def checks_of(folder: Path) -> dict[str, Check]:
    """The checks of a run by identity; a violation before anything that is missing."""
    found: dict[str, Check] = {}
    for check in witness_checks(witness_tables(folder)):
        if check.violated or check.identity not in found:
            found[check.identity] = check
    return found


def violated(checks: dict[str, Check]) -> list[str]:
    return [name for name, check in checks.items() if check.violated]


@pytest.mark.parametrize("changes", HEALTHY.values(), ids=HEALTHY)
def test_no_identity_is_violated_in_a_healthy_run(trained: MakeRun, changes: dict[str, Any]) -> None:
    found = checks_of(trained(**changes))
    assert violated(found) == []
    lacking = {name for name, check in found.items() if check.missing}
    assert lacking == (set() if changes is GRPO else {"reference_still"})


def test_a_run_that_was_resumed_violates_nothing(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(evaluation={"every": 0, "episodes": 2})
    changes: dict[str, Any] = {"evaluation": {"every": 0, "episodes": 2}}
    first = Session(folder, cache, **changes)
    first.train(2, save=True)
    first.train(4)  # killed two steps after its checkpoint
    first.recorder.close()
    assert train(folder, cache) == 0
    assert rows(folder, "witness")["step"].nunique() == 6
    assert violated(checks_of(folder)) == []


def test_weights_after_a_resume_that_are_others_are_not_checked(trained: MakeRun) -> None:
    tables = witness_tables(trained())
    changed = [
        {**row, "started_at": None, "fingerprint_start": row["fingerprint_start"] + 1.0}
        if row["step"] == 3
        else row
        for row in tables.witness
    ]
    found = list(witness_checks(WitnessTables(changed, tables.witness_batch, tables.minibatch)))
    between = [check for check in found if check.identity == "weights_between_steps"]
    assert any("a resume lies between" in check.missing for check in between if check.missing)


def test_frozen_layers_and_adapters_violate_nothing(
    new_run: MakeRun, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = loop.networks.load

    def partly(*given: Any, **more: Any) -> Any:
        model = honest(*given, **more)
        model.get_input_embeddings().requires_grad_(False)
        model.model.layers[0].self_attn.requires_grad_(False)
        return model

    monkeypatch.setattr(loop.networks, "load", partly)
    folder = new_run()
    assert train(folder, cache) == 0
    assert violated(checks_of(folder)) == []
    policy = rows(folder, "witness").query("network == 'policy' and layer == 'embedding'")
    assert not policy["trainable"].any()
    assert (policy["moved"] == 0).all()


# ---- faults ----


def frozen(honest: Any, optimizer: Any, limit: Any, skip: bool = False) -> Any:
    first = optimizer.param_groups[0]["params"][0]
    first.grad = torch.zeros_like(first)
    return honest(optimizer, limit, skip)


def skipping() -> Callable[..., Any]:
    calls = iter(range(10**6))

    def step(honest: Any, optimizer: Any, limit: Any, skip: bool = False) -> Any:
        is_lost = next(calls) == 17
        return honest(optimizer, limit, skip or is_lost)

    return step


def reloading() -> Callable[..., Any]:
    stored: dict[int, dict[str, torch.Tensor]] = {}

    def start(honest: Any, witnesses: Witnesses) -> None:
        policy = witnesses.learner.policy
        number = len(stored)
        stored[number] = deepcopy(policy.state_dict())
        if number == 4:
            policy.load_state_dict(stored[2])
        honest(witnesses)

    return start


def undone(honest: Any, trainer: Trainer, *given: Any) -> Any:
    before = deepcopy(trainer.learner.policy.state_dict())
    done = honest(trainer, *given)
    if trainer.step >= 3:
        trainer.learner.policy.load_state_dict(before)
    return done


def drifting(honest: Any, trainer: Trainer, rollout: Any) -> Any:
    if trainer.reference is not None and trainer.step >= 3:
        trainer.reference.load_state_dict(trainer.learner.policy.state_dict())
    return honest(trainer, rollout)


def leaping(honest: Any, trainer: Trainer, *given: Any) -> Any:
    done = honest(trainer, *given)
    if trainer.step == 3:
        with torch.no_grad():
            trainer.learner.policy.lm_head.weight.mul_(3.0)  # type: ignore[union-attr]
    return done


FAULTS: dict[str, tuple[Any, str, Any, dict[str, Any], str, int, str]] = {
    "a layer without a gradient": (update, "step", frozen, {}, "frozen_layers", 0, "stands still"),
    "a step that is skipped": (update, "step", skipping(), {}, "optimizer_steps", 2, "3 steps for 4 updates"),
    "weights loaded from an older step": (
        Witnesses,
        "start",
        reloading(),
        {},
        "weights_between_steps",
        4,
        "with which step 2 began; holds until step 3, broken in 4 alone",
    ),
    "updates that are undone": (
        Trainer,
        "_optimise",
        undone,
        {},
        "policy_moves",
        3,
        "stood still; SGD took 4 steps with a gradient; holds until step 2, broken from 3",
    ),
    "weights that leap": (Trainer, "_optimise", leaping, {}, "policy_moves", 3, "further than"),
    "a reference that follows the policy": (
        Trainer,
        "_old_log_probs",
        drifting,
        GRPO,
        "reference_still",
        3,
        "the policy's weights of step 3; holds until step 2, broken from 3",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_trainer_does_wrong_violates_its_own_identity(
    new_run: MakeRun, cache: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    owner, name, wrong, changes, identity, step, says = FAULTS[fault]
    honest = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **more: wrong(honest, *given, **more))
    folder = new_run(**changes)
    assert train(folder, cache) == 0
    found = checks_of(folder)
    assert violated(found) == [identity]
    assert found[identity].step == step
    assert says in found[identity].says


INJECTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "stale_weights": ({}, "sampler_weights", "the weights of step 2, 1 step old; holds until step 2"),
    "low_precision": ({}, "sampler_weights", "the weights of step 3, rounded to bfloat16"),
    "reference_wrong": (GRPO, "reference_still", "holds until step 2, broken from 3"),
    "observation_leak": ({}, "trained_tokens", "holds until step 2, broken from 3"),
    "retokenised": ({}, "trained_tokens", "broken"),
}


@pytest.mark.parametrize("kind", INJECTED)
def test_an_injected_bug_violates_its_own_identity(trained: MakeRun, kind: str) -> None:
    changes, identity, says = INJECTED[kind]
    found = checks_of(trained(fault={"kind": kind, "at_step": 3}, **changes))
    assert violated(found) == [identity]
    assert found[identity].step >= 3
    assert says in found[identity].says


# ---- what is not measured ----


def test_without_witnesses_nothing_is_recorded_and_nothing_is_checked(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(iterations=2, record={"witnesses": False})
    assert train(folder, cache) == 0
    assert not (folder / "segments" / "witness").exists()
    assert checks_of(folder) == {}


def test_a_run_trains_the_same_with_and_without_witnesses(
    new_run: MakeRun, trained: MakeRun, cache: Path
) -> None:
    folder = new_run(record={"witnesses": False})
    assert train(folder, cache) == 0
    plain = rows(folder, "minibatch")["grad_norm"].tolist()
    assert plain == rows(trained(), "minibatch")["grad_norm"].tolist()


def row(step: int, network: str = "policy", **changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "step": step,
        "network": network,
        "layer": "head",
        "parameters": 100,
        "sampled": 100,
        "trainable": True,
        "dtype": "float32",
        "of_step": None,
        "weight_norm": 1.0,
        "moved": 0.01,
        "moved_least": 0.01,
        "fingerprint_start": float(step),
        "fingerprint_end": float(step + 1),
        "fingerprint_bfloat16": step + 0.25,
        "fingerprint_norm": 1.0,
        "optimizer": None,
        "optimizer_steps": None,
        "lr_sum": None,
        "gradient_path": None,
        "started_at": 0,
    }
    return plain | changes


def check_of(identity: str, *witness: dict[str, Any]) -> Check:
    found = list(witness_checks(WitnessTables(witness), [identity]))
    return next((check for check in found if check.violated), found[0])


def test_a_sampler_is_compared_in_its_own_precision_and_by_the_step_that_it_claims() -> None:
    steps = [row(step) for step in range(5)]

    def sampler(**changes: Any) -> Check:
        return check_of("sampler_weights", *steps, row(4, "sampler", **changes))

    assert not sampler(of_step=2, fingerprint_start=2.0).violated
    assert not sampler(of_step=2, fingerprint_start=2.25, dtype="bfloat16").violated
    assert not sampler(of_step=2, fingerprint_start=2.0 + 2**-12, dtype="float16").violated
    assert sampler(of_step=2, fingerprint_start=2.0 + 2**-12).violated
    assert "the weights of step 1, 3 steps old" in sampler(fingerprint_start=1.0).says
    assert "the weights of no step that is recorded" in sampler(fingerprint_start=1.5).says
    assert "by the policy's names" in sampler(parameters=90).missing
    assert "not scaled" in sampler(dtype="float8_e4m3fn").missing
    assert "the policy's weights of step 9" in sampler(of_step=9).missing
    assert "a resume lies between" in sampler(of_step=2, fingerprint_start=1.5, started_at=1).missing


def test_steps_that_the_number_format_cannot_hold_are_not_checked() -> None:
    adam = json.dumps({"kind": "AdamW", "betas": [0.9, 0.999], "weight_decay": 0.0})
    still = {
        "moved": 0.0,
        "moved_least": 0.0,
        "optimizer": adam,
        "optimizer_steps": 1,
        "lr_sum": 1e-6,
        "gradient_path": 1e-6,
    }
    assert "bfloat16 can hold" in check_of("policy_moves", row(0, dtype="bfloat16", **still)).missing
    large = check_of("policy_moves", row(0, **still | {"lr_sum": 1e-3}))
    assert large.violated
    assert "stood still" in large.says


def test_numbers_that_are_not_finite_are_equal_to_themselves() -> None:
    nan = math.nan
    rows_ = [row(0, fingerprint_end=nan), row(1, fingerprint_start=nan)]
    assert not check_of("weights_between_steps", *rows_).violated
    rows_ = [row(0, fingerprint_end=nan), row(1, fingerprint_start=1.0)]
    assert check_of("weights_between_steps", *rows_).violated


def test_steps_are_due_for_gradients_that_are_finite_and_not_stopped() -> None:
    update_ = {"grad_norm": 1.0, "grad_norm_after": 1.0, "critic_grad_norm": None}
    stopped = update_ | {"grad_norm_after": 0.0}
    broken = update_ | {"grad_norm": math.nan}
    unknown = update_ | {"grad_norm": None}
    assert steps_due([update_, stopped, broken, unknown], "policy") == 2
    assert steps_due([update_], "critic") is None
    assert steps_due([], "policy") is None


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=40), st.sampled_from([0.9, 0.95, 0.999]))
def test_no_step_of_adam_is_longer_than_its_bound(gradients: list[float], beta2: float) -> None:
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=1.0, betas=(0.9, beta2), weight_decay=0.0)
    for gradient in gradients:
        before = float(weight.detach())
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        assert abs(float(weight.detach()) - before) <= adam_bound(0.9, beta2) * (1 + 1e-9)


def test_the_roundoff_of_a_format_is_that_of_torch() -> None:
    for name, roundoff in ROUNDOFF.items():
        assert roundoff == torch.finfo(getattr(torch, name)).eps / 2


# ---- the command ----


def test_sorl_audit_checks_witnesses_where_no_step_is_stored(new_run: MakeRun, cache: Path) -> None:
    folder = new_run(fault={"kind": "stale_weights", "at_step": 3}, record={"batches": {"mb": 0}})
    assert train(folder, cache) == 0
    result = sorl("audit", folder.name, runs=folder.parent.parent)
    assert result.exit_code == 1
    assert "run: rows and witnesses of all steps checked" in result.output
    assert (
        "sampler_weights: the sampler's weights are the policy's of the step that it claims" in result.output
    )
    only = told("audit", folder.name, "--only", "optimizer_steps", runs=folder.parent.parent)
    assert [check["identity"] for check in only] == ["optimizer_steps"]


def test_sorl_audit_checks_both_where_steps_are_stored(trained: MakeRun) -> None:
    folder = trained()
    result = sorl("audit", folder.name, runs=folder.parent.parent)
    assert result.exit_code == 0
    assert " audited, rows and witnesses of all steps checked" in result.output
    assert "weights_between_steps" in result.output


def test_checks_that_are_kept_are_shown_without_torch(trained: MakeRun) -> None:
    folder = trained()
    first = sorl("audit", folder.name, runs=folder.parent.parent)
    code = (
        "import sys\nsys.modules |= dict.fromkeys(('torch', 'transformers'))\n"  # their import fails
        "from sorl.cli.main import main\nmain()\n"
    )
    command = [sys.executable, "-c", code, "--runs", str(folder.parent.parent), "audit", folder.name]
    second = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (second.returncode, second.stdout) == (0, first.output), second.stderr


def parameters() -> Iterator[tuple[str, torch.Tensor]]:
    yield "w", torch.ones(3)


def test_a_witness_that_saw_nothing_has_no_rows() -> None:
    witness = Witness("policy")
    witness.finish(parameters())
    assert witness.rows() == []
