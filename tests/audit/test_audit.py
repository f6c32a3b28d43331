"""The audit: silent on healthy runs however they are set, and a proof for what a trainer did not do as it
says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sorl.agent.engines import hf
from sorl.audit import IDENTITIES, Check, audit, chosen, explain, table_checks
from sorl.audit.identities import DEVIATIONS, dependence
from sorl.audit.run import pooled_evidence
from sorl.learn import loop, update
from sorl.replay.networks import Draws
from sorl.store import batches
from tests.cli.command import sorl, told
from tests.learn.tiny import MakeRun, train

STEPS = (1, 3, 4)
HEALTHY: dict[str, dict[str, Any]] = {
    "stale PPO": {},
    "fresh PPO with AdamW, bounds, a cosine and a warm-up": {
        "learn": {
            "staleness": 0,
            "entropy_coef": 0.01,
            "policy": {"kind": "adamw", "lr": 0.003, "max_grad_norm": 0.5, "schedule": "cosine", "warmup": 5},
        }
    },
    "momentum, decay and micro-batches": {
        "learn": {
            "micro_batch": 4,
            "policy": {"momentum": 0.9, "weight_decay": 0.01, "lr": 0.01, "schedule": "linear"},
        }
    },
    "S-PPO, which acts on the gradient": {"algorithm": "s-ppo", "slots": {"stabilise": {"tau": 1.0}}},
    "ST-PPO": {"algorithm": "st-ppo", "slots": {"stabilise": {"tau": 1.0}}},
    "GRPO with a KL term in the loss": {
        "algorithm": "grpo",
        "slots": {"kl": {"kind": "loss", "beta": 0.05}},
        "learn": {"group_size": 4},
    },
    "GRPO without groups that teach nothing": {
        "algorithm": "grpo",
        "slots": {"select": {"kind": "zero_var"}},
        "learn": {"group_size": 4},
    },
    "old log-probs of the update, an early stop": {"learn": {"old_log_prob": "update", "target_kl": 0.001}},
    "old log-probs of the sampler": {"learn": {"old_log_prob": "behaviour", "old_values": "rollout"}},
    "turn GAE": {"algorithm": "turn-ppo"},
    "another temperature": {"engine": {"temperature": 0.7}},
    "momentum through groups without a signal, a warm-up from 0": {
        "algorithm": "grpo",
        "learn": {"group_size": 4, "policy": {"momentum": 0.9, "lr": 0.01, "warmup": 6}},
    },
    "bfloat16 in trainer and sampler, micro-batches": {
        "engine": {"dtype": "bfloat16"},
        "compute": {"dtype": "bfloat16"},
        "learn": {"micro_batch": 4},
    },
    "an AdamW that decays, a critic with momentum": {
        "learn": {
            "policy": {"kind": "adamw", "lr": 0.001, "weight_decay": 0.1},
            "critic": {"kind": "sgd", "lr": 0.02, "momentum": 0.9, "schedule": "linear"},
        }
    },
}


def violated(found: list[Check]) -> list[str]:
    return list(dict.fromkeys(check.identity for check in found if check.violated))


@pytest.mark.parametrize("changes", HEALTHY.values(), ids=HEALTHY)
def test_no_identity_is_violated_in_a_healthy_run(trained: MakeRun, changes: dict[str, Any]) -> None:
    folder = trained(**changes)
    found = [*audit(folder, STEPS), *table_checks(folder)]
    assert violated(found) == []
    checked = {check.identity for check in found if not check.missing}
    assert {
        "transcripts",
        "loss_mask",
        "reward",
        "sampling",
        "advantages",
        "loss",
        "gradient",
        "weights",
        "trained_mask",
        "log_prob_range",
        "old_log_probs_fixed",
        "entropy_range",
        "peak_learning_rate",
    } <= checked


@pytest.fixture
def run_with(new_run: MakeRun, cache: Path) -> Callable[..., Path]:
    """Train a run in which a function stands in for one of the trainer's, which it gets before
    its arguments.
    """

    def make(owner: Any = None, name: str = "", wrong: Any = None, **changes: Any) -> Path:
        folder = new_run(**changes)
        with pytest.MonkeyPatch.context() as patch:
            if owner:
                honest = getattr(owner, name)
                patch.setattr(owner, name, lambda *given, **more: wrong(honest, *given, **more))
            assert train(folder, cache) == 0
        return folder

    return make


def exchanged(honest: Any, *given: Any, **more: Any) -> Any:
    batch = honest(*given, **more)
    made = batch.advantages.clone()
    made[[1, 2]] = made[[2, 1]]
    return replace(batch, advantages=torch.where(batch.mask, made, 0))


def tripled(honest: Any, *given: Any, **more: Any) -> Any:
    batch = honest(*given, **more)
    return replace(batch, advantages=3 * batch.advantages)


def times_eight(honest: Any, *given: Any, **more: Any) -> Any:
    out = honest(*given, **more)
    return replace(out, loss=8 * out.loss, terms=replace(out.terms, policy_loss=8 * out.terms.policy_loss))


def frozen(honest: Any, optimizer: Any, limit: Any, skip: bool = False) -> Any:
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    weights[1].grad = torch.zeros_like(weights[1])
    return honest(optimizer, limit, skip)


def forgetful(honest: Any, learner: Any, settings: Any) -> None:
    honest(learner, settings)
    if learner.updates == 8:
        learner.policy_optimizer.state.clear()


def decaying(honest: Any, learner: Any, settings: Any) -> None:
    honest(learner, settings)
    learner.policy_optimizer.param_groups[0]["weight_decay"] = 0.01


def critic_forgets(honest: Any, learner: Any, *given: Any) -> Any:
    if learner.updates == 5:
        learner.critic_optimizer.state.clear()
    return honest(learner, *given)


def one_seed_for_all(honest: Any, rows: int, *more: int, **named: Any) -> torch.Tensor:
    return honest(1, *more, **named).expand(rows, *more)


HOT = {"engine": {"temperature": 1.5}, "learn": {"episodes": 32}}  # so that many draws are unsure
SLOW = {"learn": {"policy": {"kind": "adamw", "lr": 5e-4}}}
ADAM = {"learn": {"policy": {"kind": "adamw", "lr": 0.003}}}
LOSS = (update, "policy_loss", times_eight)
# What is replaced and by what, the settings, the identity that it violates, and how the difference reads.
BUGS: dict[str, tuple[tuple[Any, str, Callable[..., Any]], dict[str, Any], str, str]] = {
    "advantages of two trajectories exchanged": (
        (loop, "prepare", exchanged),
        {},
        "advantages",
        "each other's numbers",
    ),
    "advantages three times too large": ((loop, "prepare", tripled), {}, "advantages", "3 times"),
    "the loss times eight": (LOSS, {}, "loss", "8 times"),
    "a layer without a gradient": ((update, "step", frozen), {}, "gradient", "times"),
    "a critic that reads the token before": (
        (update.Learner, "values", lambda honest, *given: honest(*given).roll(1, 1)),
        {},
        "values",
        "token before it",
    ),
    "optimizer state that is lost": ((update.Learner, "follow", forgetful), ADAM, "optimizer_state", "times"),
    "a weight decay of a hundredth of a step": (
        (update.Learner, "follow", decaying),
        SLOW,
        "weights",
        "another decay",
    ),
    "a critic's state that is lost": (
        (update.Learner, "update", critic_forgets),
        {},
        "critic_gradient",
        "begins with other weights",
    ),
    "rows that share random numbers": (
        (hf.torch, "rand", one_seed_for_all),
        HOT,
        "independence",
        "draws at one position go together",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_what_a_trainer_did_not_do_as_it_says_is_proved(run_with: Callable[..., Path], bug: str) -> None:
    instead, changes, name, reading = BUGS[bug]
    found = list(audit(run_with(*instead, iterations=5, **changes), STEPS))
    assert violated(found)[0] == name
    first = next(check for check in found if check.violated and check.identity == name)
    assert reading in first.says
    if "exchanged" in bug:
        assert set(first.trajectories) <= {1, 2}
    if bug.startswith("a layer"):
        assert any("these weights did not move" in check.says and len(check.layers) == 1 for check in found)


def test_what_is_not_stored_is_never_passed(run_with: Callable[..., Path]) -> None:
    folder = run_with(iterations=3, record={"batches": {"weights_mb": 0}})
    found = {check.identity: check for check in audit(folder, [1])}
    assert "needs the weights of step 1" in found["values"].missing
    assert not found["values"].violated
    assert not found["loss"].missing


def test_the_steps_to_audit_are_near_the_events_and_have_neighbours() -> None:
    known = [0, 4, 8, 9, 10, 11, 20, 21, 22]
    assert chosen(known, [10], most=1) == [10]
    assert 20 in chosen(known, [19], most=3)
    assert chosen([], [3]) == []


@given(
    st.floats(0.1, 10).filter(lambda x: abs(x - 1) > 0.05),
    st.floats(-3, 3).filter(lambda x: abs(x) > 0.05),
    st.integers(0, 2**31),
)
def test_the_reading_of_a_difference_is_the_one_that_was_made(
    factor: float, offset: float, seed: int
) -> None:
    stream = np.random.default_rng(seed)
    truth = stream.normal(size=(6, 12))
    mask = stream.random((6, 12)) < 0.8
    mask[:, 3] = True
    assert explain(truth, truth, mask, 1e-6).trajectories == ()
    assert explain(factor * truth, truth, mask, 1e-6).says.startswith(f"{factor:.4g} times")
    assert explain(truth + offset, truth, mask, 1e-6).says == f"{offset:+.4g} at every token"
    swapped = truth.copy()
    swapped[[1, 4]] = truth[[4, 1]]
    found = explain(swapped, truth, np.ones_like(mask), 1e-6)
    assert (found.trajectories, found.says) == ((1, 4), "these two have each other's numbers")
    assert (
        explain(np.roll(truth, 1, 1), truth, mask, 1e-6).says
        == "each token has the number of the token before it"
    )
    assert explain(truth * np.nan, truth, mask, 1e-6).gap == np.inf


@given(st.integers(8, 40), st.integers(0, 2**31))  # of a few rows chance may say anything
def test_draws_go_together_only_where_they_share_their_random_numbers(n: int, seed: int) -> None:
    stream = np.random.default_rng(seed)
    p = stream.dirichlet(np.ones(5), size=(n, 30))
    together = np.broadcast_to(np.arange(30), (n, 30))
    mask = np.ones((n, 30), bool)
    places = []
    for u in (stream.random((n, 30)), np.broadcast_to(stream.random(30), (n, 30))):
        token = (p.cumsum(-1) < u[..., None]).sum(-1).clip(0, 4)[..., None]
        up_to, own = (np.take_along_axis(x, token, -1)[..., 0] for x in (p.cumsum(-1), p))
        places.append(up_to - own / 2 - 0.5)
    spread = (1 - (p**3).sum(-1)) / 12
    free, shared = (dependence(Draws(place, spread, place, spread), mask, together) for place in places)
    assert abs(free) < DEVIATIONS
    assert shared > free
    if n >= 8:
        assert shared > DEVIATIONS
    assert dependence(Draws(spread, spread, spread, 0 * spread), mask, together) == 0.0


def test_every_identity_says_what_must_hold_and_what_it_means_otherwise() -> None:
    assert all(one.must and one.means and one.name in IDENTITIES for one in IDENTITIES.values())
    assert batches.WEIGHTS[-1] == "optimizer."


def test_a_diagnosis_of_one_run_says_what_its_audit_found(run_with: Callable[..., Path]) -> None:
    folder = run_with(*LOSS, iterations=5)
    runs = folder.parent.parent
    said = sorl("diagnose", folder.name, "--fail-on", "critical", runs=runs)
    assert said.exit_code == 1
    lines = said.output.splitlines()
    assert lines[0].startswith("run (ppo, 5 steps): ")
    title = "1. The loss has another scale, sign, mask or clip  [audit.loss: critical, the record shows it"
    assert lines[2].startswith(title)
    assert "`loss` is violated (logged" in lines[3]
    assert "8 times what it must be" in lines[3]
    assert "the record contradicts itself (loss, gradient)" in said.output
    (row,) = told("diagnose", folder.name, runs=runs)
    assert {check["identity"] for check in row["audit"] if check["state"] == "violated"} >= {"loss"}
    assert "audit" not in told("diagnose", folder.name, "--quick", runs=runs)[0]


def test_a_damaged_step_costs_its_own_checks_and_is_counted(run_with: Callable[..., Path]) -> None:
    folder = run_with(iterations=5)
    runs = folder.parent.parent
    known = batches.steps(folder)
    damaged = batches.file_of(folder, known[1])
    os.truncate(damaged, damaged.stat().st_size // 2)
    every = [f"--step={step}" for step in known]
    result = sorl("audit", folder.name, *every, runs=runs)
    assert result.exit_code == 1
    assert f"1 of {len(known)} stored steps could not be read: '{damaged}' cannot be read" in result.stderr
    others = batches.ranges([step for step in known if step != known[1]])
    assert f"steps {others} audited" in result.stdout
    alone = sorl("audit", folder.name, "--step", known[1], runs=runs)
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert f"'{damaged}' cannot be read" in alone.stderr


# ---- a run ----


def test_the_first_broken_step_is_found_by_bisection(run_with: Callable[..., Path]) -> None:
    began = 2
    folder = run_with(iterations=5)
    rewards_from(folder, began)
    checks = list(audit(folder, [4], ["reward"]))
    first = checks[0]
    located = checks[-1]
    assert (first.step, first.holds_until) == (4, None)
    assert (located.step, located.holds_until) == (began, began - 1)


def test_evidence_of_steps_that_are_not_enough_alone_is_pooled() -> None:
    each = [
        Check("sampling", step, gap=3.5, tolerance=DEVIATIONS, logged=3.5, weight=1.0) for step in range(9)
    ]
    together = pooled_evidence(each)
    assert together.violated
    assert together.logged == pytest.approx(3.5 * 3)
    assert "9 stored steps" in together.says
    before = [replace(check, logged=0.1, gap=0.1) for check in each[:4]]
    assert pooled_evidence([*before, *each[4:]]).step == 4, "a fault begins somewhere and stays"


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=30))
def test_pooled_chance_stays_chance(deviations: list[float]) -> None:
    each = [
        Check("sampling", step, gap=abs(z), tolerance=DEVIATIONS, logged=z, weight=1.0 + step % 3)
        for step, z in enumerate(deviations)
    ]
    pooled = pooled_evidence(each)
    largest = 0.0
    for start in range(len(each) - 1):
        weights = np.array([check.weight for check in each[start:]])
        z = np.array([check.logged for check in each[start:]])
        largest = max(largest, abs(weights @ z) / np.linalg.norm(weights))
    assert abs(pooled.logged) == pytest.approx(largest, abs=1e-9)


def test_a_second_audit_computes_nothing_again_until_a_step_changes(
    run_with: Callable[..., Path], monkeypatch: Any
) -> None:
    folder = run_with(iterations=3)
    first = list(audit(folder, [1]))

    def refused(*_: object) -> None:
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr("sorl.audit.case.Case", refused)
        assert repr(list(audit(folder, [1]))) == repr(first)
    rewards_from(folder, 1)
    assert "reward" in violated(list(audit(folder, [1])))


def test_an_identity_that_raises_costs_itself_and_is_tried_again(
    run_with: Callable[..., Path], monkeypatch: Any
) -> None:
    folder = run_with(iterations=3)

    def raises(case: object) -> None:
        raise ValueError("96 flags for 97 tokens")

    with monkeypatch.context() as patch:
        patch.setitem(IDENTITIES, "loss", replace(IDENTITIES["loss"], look=raises))
        checks = list(audit(folder, [1]))
    (failed,) = [check for check in checks if check.identity == "loss"]
    assert failed.failed
    assert "ValueError: 96 flags for 97 tokens" in failed.missing
    assert len({check.identity for check in checks if not check.missing}) > 8
    assert not next(check for check in audit(folder, [1]) if check.identity == "loss").missing


def rewards_from(folder: Path, begin: int) -> None:
    """Rewrite the stored rewards from a step on, as a bug would have logged them."""
    for step in batches.steps(folder):
        if step >= begin:
            file = batches.file_of(folder, step)
            with safe_open(file, "numpy") as opened:
                meta = opened.metadata()
            arrays = load_file(file)
            arrays["score"] = arrays["score"] + 0.25
            save_file(arrays, file, meta)
