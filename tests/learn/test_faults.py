"""Every kind of fault leaves the fingerprint of its bug from its step on, and nothing before; others are
refused.

Runs share the iterations before the fault: the first one is trained once, the others on copies of its
trainer.
"""

import re
from collections.abc import Mapping
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sorl.agent.tokenizer import build_tokenizer
from sorl.algorithms import resolve
from sorl.collapse.events import Event
from sorl.grid.config import load
from sorl.learn.faults import FAULTS, Fault, check
from sorl.learn.faults.declare import HOOKS
from sorl.learn.faults.kinds import rounded
from sorl.learn.loop import Trainer
from sorl.learn.warmstart import ensure
from sorl.measures import Measurements, measure
from sorl.measures.evidence import Evidence, Rollouts, StepEvidence
from sorl.recording.recorder import Recorder
from sorl.spec import FaultSettings, InputError, PolicySettings, RunSettings
from tests.grid.harness import grid_file
from tests.learn.tiny import CLOCK, TINY, merged

AT = 2  # the first iteration with a fault; iteration 0 is shared, 1 is trained with the fault waiting
CHANGES: dict[str, Any] = {
    "iterations": 4,
    "world": {"max_turns": 4},
    "evaluation": {"every": 0, "episodes": 2},
    "learn": {"epochs": 1, "staleness": 0, "policy": {"lr": 0.05, "max_grad_norm": 0.1}},
}
KL: dict[str, Any] = {"slots": {"kl": {"kind": "loss", "beta": 0.01}}}
MOE: dict[str, Any] = {"policy": {"family": "mixtral", "experts": 4}}
NEEDED = {"reference": KL, "experts": MOE}


class Run(Recorder):
    """Keeps what a recorder would have measured and written; `row`, `column` and the others are of a step."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(None, "", settings)
        self.evidence: list[StepEvidence] = []
        self.measured: list[Measurements] = []
        self.said: list[Event] = []

    def step(self, step: int, evidence: StepEvidence, _: Any = ()) -> dict[str, float | None]:
        self.evidence.append(evidence)
        self.measured.append(measure(step, evidence))
        self.said += self._see(step, self.measured[-1].step, evidence.mismatches or ())
        return self.measured[-1].step

    def row(self, step: int) -> dict[str, Any]:
        return {k: v for k, v in self.measured[step].step.items() if not k.startswith(CLOCK)}

    def column(self, table: str, name: str, step: int = AT) -> Any:
        return np.ma.getdata(getattr(self.measured[step], table)[name])

    def updates(self, step: int = AT) -> Evidence:
        return self.evidence[step].updates

    def rollouts(self, step: int = AT) -> Rollouts:
        return self.evidence[step].rollouts

    def trained(self, step: int = AT) -> int:
        return int(self.column("minibatch", "tokens", step).sum())

    def written(self, step: int = AT) -> int:
        return int(sum(self.rollouts(step).response_tokens))

    def mismatch(self, step: int = AT) -> float:
        return float(self.column("turn", "mismatch", step).mean())

    @property
    def guard(self) -> list[tuple[str, int]]:
        return [(e.kind, e.step) for e in self.said if e.kind.startswith("guard_")]


class Lab:
    """Trains iterations 1 .. with a fault from `AT` on, or without one."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.begun: dict[str, Trainer] = {}
        self.finished: dict[str, Run] = {}

    def healthy(self, algorithm: str = "grpo", changes: Mapping[str, Any] | None = None) -> Run:
        return self._run(algorithm, None, changes or {})

    def faulty(
        self, kind: str, algorithm: str = "grpo", changes: Mapping[str, Any] | None = None, **fault: Any
    ) -> Run:
        settings = FaultSettings.model_validate({"at_step": AT, **fault, "kind": kind})
        return self._run(algorithm, settings, changes or {})

    def _run(self, algorithm: str, fault: FaultSettings | None, changes: Mapping[str, Any]) -> Run:
        start = f"{algorithm} {changes}"
        key = f"{algorithm} {fault} {changes}"
        if key not in self.finished:
            if start not in self.begun:
                given = merged(
                    merged(merged(TINY, CHANGES), dict(changes)), {"algorithm": algorithm, "iterations": 1}
                )
                settings = RunSettings.model_validate(given)
                self.begun[start] = Trainer(
                    settings, ensure(settings, self.cache), Run(settings), build_tokenizer()
                )
                list(self.begun[start].steps())
            trainer = deepcopy(self.begun[start])
            trainer.settings = trainer.settings.model_copy(
                update={"iterations": CHANGES["iterations"], "fault": fault}
            )
            trainer.fault = Fault(trainer.settings, trainer.learner.policy, trainer.tokenizer)
            trainer.sampler.fault = trainer.fault
            list(trainer.steps())
            self.finished[key] = trainer.recorder
        return self.finished[key]


@pytest.fixture(scope="module")
def lab(cache: Path) -> Lab:
    return Lab(cache)


def test_every_fault_sits_in_a_hook_of_the_trainer_and_says_which_bug_it_stands_for():
    assert {kind.hook for kind in FAULTS.values()} == set(HOOKS)
    assert all(k.bug.endswith(".") and k.strength for k in FAULTS.values())


@pytest.mark.parametrize("kind", FAULTS.values(), ids=lambda k: k.name)
def test_until_its_step_a_run_with_a_fault_is_the_run_without_one(lab, kind):
    algorithm = "ppo" if kind.needs == "critic" else "grpo"
    changes = NEEDED.get(kind.needs, {})
    healthy = lab.healthy(algorithm, changes)
    faulty = lab.faulty(kind.name, algorithm, changes)
    assert faulty.row(AT - 1) == healthy.row(AT - 1)
    same = [faulty.row(step) == healthy.row(step) for step in (AT, AT + 1)]
    # Slowness changes wall times only; a critic of another learning rate is first asked for its values a step
    # later.
    assert same == {"retriever_slow": [True, True], "critic_diverges": [True, False]}.get(
        kind.name, [False, False]
    )


def test_a_fault_that_ended_leaves_the_next_step_to_the_trainer(lab):
    run = lab.faulty("temperature", strength=3.0, until_step=AT + 1)
    assert [run.mismatch(step) > 0.1 for step in (AT - 1, AT, AT + 1)] == [False, True, False]


def test_stale_weights_part_sampler_and_trainer_while_the_books_say_fresh(lab):
    frozen = lab.faulty("stale_weights")
    late = lab.faulty("stale_weights", strength=1)
    assert frozen.mismatch(AT - 1) < 1e-5
    assert 1e-4 < frozen.mismatch() < frozen.mismatch(AT + 1)
    assert [frozen.row(step)["staleness"] for step in range(4)] == [0, 0, 0, 0]
    assert late.row(AT) == frozen.row(AT)
    assert late.mismatch(AT + 1) != frozen.mismatch(AT + 1), (
        "weights of one iteration ago follow at that distance"
    )


def test_low_precision_is_a_mismatch_that_grows_with_the_bits_that_are_gone(lab):
    fine = lab.faulty("low_precision")
    coarse = lab.faulty("low_precision", strength=3)
    assert fine.mismatch(AT - 1) < 1e-5
    assert 1e-4 < fine.mismatch() < coarse.mismatch()
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 3
    assert torch.equal(rounded(x, 7), x.bfloat16().float()), "seven bits are bfloat16"
    assert (rounded(x, 3) - x).abs().max() > (rounded(x, 7) - x).abs().max() > 0


def test_a_perturbed_router_takes_other_experts_than_the_trainer_and_all_other_weights_are_its_own(lab):
    run = lab.faulty("route_mismatch", changes=MOE)
    apart = [float(np.mean(run.measured[step].minibatch["route_mismatch_frac"])) for step in (AT - 1, AT)]
    assert apart[0] == 0.0 < apart[1]
    assert run.mismatch(AT - 1) < 1e-5 < run.mismatch(AT)


def test_a_sampler_at_another_temperature_reports_log_probs_that_the_trainer_does_not_find(lab):
    run = lab.faulty("temperature", strength=2.0)
    assert abs(run.row(AT - 1)["mismatch_kl"]) < 1e-5
    assert run.row(AT)["mismatch_kl"] > 0.05  # samples of the sampler: its KL from the trainer


def test_a_hidden_temperature_shows_in_tokens_less_likely_than_the_entropy_says_and_in_no_mismatch(lab):
    def surprise(run):
        u = run.updates()
        return float(-u.log_prob[u.mask].mean() - u.entropy[u.mask].mean())

    run = lab.faulty("temperature_hidden", strength=2.0)
    assert 0 < run.mismatch() < 1e-5
    assert surprise(run) > surprise(lab.healthy()) + 0.1


def test_an_empty_retriever_leaves_observations_without_facts(lab):
    found, healthy = (
        run.row(AT)["observation_frac"] for run in (lab.faulty("retriever_empty"), lab.healthy())
    )
    assert found < 0.7 * healthy
    assert lab.faulty("retriever_empty", turn=3).row(AT)["observation_frac"] > found


def test_a_slow_retriever_takes_its_time_and_changes_nothing_else(lab):
    run = lab.faulty("retriever_slow", strength=0.02)
    assert run.measured[AT].step["seconds_rollout"] > 0.5 * 0.02 * sum(run.rollouts().searches) > 0.05
    assert run.row(AT) == lab.healthy().row(AT)


def test_a_retriever_out_of_step_answers_another_query(lab):
    run = lab.faulty("retriever_junk").rollouts()
    healthy = lab.healthy().rollouts()
    assert sum(a != b for a, b in zip(run.tokens, healthy.tokens, strict=True)) > 8
    for a, b, written in zip(run.tokens, healthy.tokens, run.written, strict=True):
        assert a[: len(written[0])] == b[: len(written[0])], (
            "the prompt and the first turn are what they were"
        )


def test_a_cut_budget_of_turns_leaves_no_answer_and_one_of_tokens_breaks_the_format(lab):
    run = lab.faulty("truncated", strength=1)
    assert max(run.rollouts().turns) == 1
    assert run.row(AT)["truncated_frac"] > 0.8 > run.row(AT - 1)["truncated_frac"]
    run = lab.faulty("turn_cut", strength=3)
    assert run.column("turn", "n_tokens").max() == 3
    assert run.row(AT)["valid_action_frac"] < 0.5 * run.row(AT - 1)["valid_action_frac"]


def test_a_wrong_reward_pays_what_its_bug_pays_and_leaves_success_true(lab):
    r = lab.faulty("reward_format").rollouts()
    assert r.reward.tolist() == (r.answered & (r.valid_turns == r.turns)).tolist()
    assert r.success.tolist() == lab.healthy().rollouts().success.tolist()
    assert r.reward.sum() > r.success.sum()
    found = [lab.faulty("reward_noise", strength=0.4).rollouts(step) for step in (AT, AT + 1)]
    assert 0.15 < np.concatenate([r.reward != r.success for r in found]).mean() < 0.65
    assert lab.faulty("reward_noise", strength=0.0).row(AT) == lab.healthy().row(AT)
    r = lab.faulty("reward_inverted").rollouts()
    assert r.reward.tolist() == (-1.0 * r.success).tolist()
    assert r.success.any()
    r = lab.faulty("reward_shifted").rollouts()
    assert r.reward[1:].tolist() == r.success[:-1].tolist()
    assert r.reward.tolist() != r.success.tolist()


def test_a_retokenised_turn_is_trained_on_other_tokens_than_were_sampled(lab):
    run = lab.faulty("retokenised", turn=1)
    assert [run.row(step)["token_mismatches"] for step in (AT - 1, AT)] == [0, 4]
    assert {turn for _, turn in run.evidence[AT].mismatches or ()} == {1}
    assert run.guard == [("guard_token_identity", AT)]
    # The sampler's log-prob is that of another token.
    turns, odd = (run.column("turn", name) for name in ("turn_index", "mismatch"))
    assert odd[turns > 1].max() < odd[turns == 1].max() / 2


def test_a_reused_batch_is_the_one_of_the_step_before(lab):
    run = lab.faulty("batch_reused")
    hashes = [run.row(step)["batch_hash"] for step in range(4)]
    assert [a == b for a, b in pairwise(hashes)] == [False, True, False]
    assert run.guard == [("guard_stuck_batch", AT)]


def test_a_growing_queue_ages_what_is_trained_on(lab):
    run = lab.faulty("staleness")
    assert [run.row(step)["staleness"] for step in range(4)] == [0, 0, 0, 1]
    assert run.row(AT)["questions_hash"] == lab.healthy().row(AT)["questions_hash"]


def test_what_leaks_through_the_mask_is_trained_on(lab):
    run = lab.faulty("observation_leak")
    written = run.written()
    observed = int(sum(run.rollouts().observation_tokens))
    assert run.trained(AT - 1) == run.written(AT - 1)
    assert run.trained() == written + observed
    assert run.guard == [("guard_token_identity", AT)]
    one = lab.faulty("observation_leak", turn=2)
    assert written < one.trained() < run.trained()
    assert {turn for _, turn in one.evidence[AT].mismatches or ()} == {2}
    run = lab.faulty("prompt_leak")  # but for its first token, which nothing predicts
    assert run.trained() == sum(map(len, run.rollouts().tokens)) - observed - 16
    half = lab.faulty("padding_leak", strength=0.5)
    whole = lab.faulty("padding_leak")
    assert written < half.trained() < whole.trained()
    assert whole.row(AT)["success"] == lab.healthy().row(AT)["success"]


def test_shifted_turns_lose_their_first_token(lab):
    shifted = lab.faulty("turn_shift").updates()
    healthy = lab.healthy().updates()
    first = healthy.turn != torch.nn.functional.pad(healthy.turn, (1, 0))[..., :-1]
    assert not (shifted.mask & healthy.mask & (healthy.turn > 0) & first).any()
    moved = lab.faulty("turn_shift", turn=2).updates().mask != healthy.mask
    assert moved.any()
    assert not (moved & (healthy.turn == 1)).any()


def test_a_corrupt_log_prob_is_one_ratio_out_of_proportion_in_its_turn(lab):
    run = lab.faulty("corrupt_log_prob", turn=2)
    turns = run.column("turn", "turn_index")
    largest = run.column("turn", "ratio_max")
    assert largest.max() == pytest.approx(np.exp(8), rel=0.2)
    assert (largest > 100).sum() == 1
    assert turns[largest.argmax()] == 2
    assert run.column("turn", "ratio_max", AT - 1).max() < 2


def test_wrong_groups_leave_advantages_that_do_not_add_up_to_zero_in_the_right_ones(lab):
    def bias(run):
        group, advantage = (run.column("trajectory", name) for name in ("prompt_group", "advantage"))
        return max(abs(advantage[group == g].mean()) for g in set(group))

    run = lab.faulty("wrong_groups")
    assert bias(lab.healthy()) < 1e-6
    assert bias(run) > 0.1
    assert run.row(AT)["group_reward_std"] == lab.healthy().row(AT)["group_reward_std"]


def test_the_learning_rate_and_the_clipping_in_effect_are_logged(lab):
    run = lab.faulty("learning_rate")
    assert [set(run.column("minibatch", "lr", step)) for step in (AT - 1, AT)] == [{0.05}, {0.5}]
    run = lab.faulty("clipping_off")
    norm, after = (run.column("minibatch", name) for name in ("grad_norm", "grad_norm_after"))
    assert norm.max() > 0.1
    assert (norm == after).all()
    assert run.column("minibatch", "grad_norm_after", AT - 1).max() <= 0.1


def test_a_critic_that_diverges_loses_its_value(lab):
    run = lab.faulty("critic_diverges", "ppo")
    healthy = lab.healthy("ppo")
    loss = [r.column("minibatch", "value_loss", AT + 1).mean() for r in (healthy, run)]
    assert loss[1] > 2 * loss[0]
    assert set(run.column("minibatch", "lr")) == {0.05}


def test_an_entropy_bonus_that_is_too_high_raises_the_entropy(lab):
    assert (
        lab.faulty("entropy_bonus", strength=1.0).row(AT + 1)["entropy"]
        > lab.healthy().row(AT + 1)["entropy"]
    )


def test_a_wrong_reference_is_far_away_at_once(lab):
    run = lab.faulty("reference_wrong", changes=KL)
    assert run.row(AT)["kl_ref"] > 5 * run.row(AT - 1)["kl_ref"]
    assert run.row(AT)["success"] == lab.healthy(changes=KL).row(AT)["success"]


def settings(algorithm: str = "ppo", **fault: Any) -> RunSettings:
    given = {
        "algorithm": algorithm,
        "fault": {"at_step": 3, **fault},
        "learn": {"policy": {"max_grad_norm": 1.0}},
    }
    return RunSettings.model_validate(given)


def refusal(run: RunSettings) -> str:
    with pytest.raises(InputError) as error:
        check(run, resolve(run.algorithm, run.slots))
    return str(error.value)


@pytest.mark.parametrize("kind", FAULTS.values(), ids=lambda k: k.name)
def test_every_kind_is_accepted_at_its_default_and_refused_beyond_its_range(kind):
    algorithm = {"groups": "grpo"}.get(kind.needs, "ppo")
    run = settings(algorithm, kind=kind.name)
    if kind.needs == "reference":
        run = run.model_copy(update={"slots": {"kl": {"kind": "loss"}}})
    if kind.needs == "experts":
        assert "is dense" in refusal(run)
        run = run.model_copy(update={"policy": PolicySettings(family="mixtral")})
    check(run, resolve(run.algorithm, run.slots))
    assert Fault(run).strength == kind.default
    beyond = run.model_copy(update={"fault": run.fault.model_copy(update={"strength": kind.low - 1})})
    assert f"fault.strength = {kind.low - 1:g} of '{kind.name}' must be" in refusal(beyond)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (
            settings(kind="learning_rate", turn=2),
            "concerns no single turn; delete fault.turn, or use one of: ",
        ),
        (settings(kind="wrong_groups"), "ppo compares nothing inside prompt groups"),
        (settings("grpo", kind="critic_diverges"), "grpo has no critic"),
        (settings(kind="reference_wrong"), "set slots.kl"),
        (RunSettings(fault={"kind": "clipping_off", "at_step": 1}), "learn.policy.max_grad_norm is not set"),
        (
            RunSettings(fault={"kind": "stale_weights", "at_step": 1}, engine={"kind": "vllm"}),
            'engine.kind = "hf"',
        ),
        (
            RunSettings(fault={"kind": "padding_leak", "at_step": 1}, learn={"micro_batch": 4}),
            "unset learn.micro_",
        ),
        (
            settings(kind="turn_shift", strength=1.5),
            "a whole number from 1: tokens by which turns are shifted",
        ),
        (
            settings(kind="observation_leek"),
            "'observation_leek' (did you mean 'observation_leak'?); use one of:",
        ),
    ],
)
def test_a_run_that_a_fault_cannot_concern_is_refused_with_the_reason(run, said):
    assert said in refusal(run)


def test_a_fault_that_ends_before_it_begins_is_refused():
    with pytest.raises(ValueError, match="until_step = 3 must be above at_step = 3"):
        settings(kind="turn_shift", until_step=3)


def test_a_fault_acts_from_its_lead_to_its_end_and_in_its_hook_only():
    bug = Fault(settings(kind="batch_reused", until_step=5))
    rollouts = ["a", "b", "c", "d", "e", "f"]
    assert [bug("take", rollout, step) for step, rollout in enumerate(rollouts)] == [
        "a",
        "b",
        "c",
        "c",
        "e",
        "f",
    ]
    assert [bug("episodes", rollout, step) for step, rollout in enumerate(rollouts)] == rollouts
    assert Fault(RunSettings())("take", "a", 3) == "a"


def test_a_fault_is_an_axis_of_a_grid_and_one_that_does_not_exist_is_refused_by_file_and_arm(tmp_path):
    axis = '[base.fault]\nat_step = 12\n[axes]\n"fault.kind" = ["turn_shift", "reward_noise"]\n'
    faults = [cell.settings.fault for cell in load(grid_file(tmp_path, axis)).cells]
    assert faults == [FaultSettings(kind=name, at_step=12) for name in ("turn_shift", "reward_noise")]
    file = grid_file(tmp_path, '[[arms]]\nname = "odd"\nfault = { kind = "turn_shaft", at_step = 1 }')
    said = f"{file}, arm 'odd': unknown fault.kind 'turn_shaft' (did you mean 'turn_shift'?)"
    with pytest.raises(InputError, match=re.escape(said)):
        load(file)
