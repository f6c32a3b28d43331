"""Audits of runs that other trainers recorded: silent on healthy ones, and exact on each kind of fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sorl.audit import Check, audit, declaration_of, table_checks
from sorl.audit.comparison import spacing
from sorl.recording.ledger import Clip
from sorl.spec import BatchesSettings
from sorl.store import batches
from sorl.trainers import trl, verl, verl_mode, verl_recorder
from tests.cli.command import done, sorl, told
from tests.recording.local import Local
from tests.trainers.fake_trl import FakeGRPO
from tests.trainers.fake_verl import Config, FakeVerl, actor

VOCABULARY = 16
GROUPS = 4
GROUP = 8
MASK = torch.tensor([1, 1, 1, 0, 1, 1, 1])  # of two turns, with an observation between them
EVERYTHING = {
    "learn": {"epochs": 2, "minibatches": 2, "policy": {"lr": 1e-2, "max_grad_norm": 0.05}},
    "num_generations": GROUP,
    "vocab_size": VOCABULARY,
}


class Policy(nn.Module):
    """A policy of 16 tokens that sees the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, VOCABULARY)
        self.head.weight.data *= 4  # so that it is sure of some tokens

    def forward(self, tokens: Tensor) -> Tensor:
        """Log-probs of every next token, (B, T, V)."""
        return self.head(self.embedding(tokens)).log_softmax(-1)


@dataclass
class Step:
    """What a step of the loop trains on; a fault changes one of these."""

    tokens: Tensor  # (B, 1 + T)
    reward: Tensor
    old: Tensor
    advantages: Tensor
    mask: Tensor
    turns: Tensor
    shown: Tensor  # the tokens as they are recorded

    def log_probs(self, policy: Policy) -> Tensor:
        """Of each token of the response, (B, T)."""
        return policy(self.tokens[:, :-1]).gather(2, self.tokens[:, 1:, None])[..., 0]


def sampled(policy: Policy, temperature: float) -> Step:
    """Rollouts, rewards and advantages of a step."""
    tokens = torch.arange(GROUPS).repeat_interleave(GROUP)[:, None]
    for place in MASK.tolist():
        weights = (policy(tokens)[:, -1] / temperature).softmax(-1)
        drawn = torch.multinomial(weights, 1)
        observed = (tokens[:, :1] * 5 + 3) % VOCABULARY
        tokens = torch.cat([tokens, drawn if place else observed], 1)
    reward = (tokens[:, -1] < VOCABULARY // 2).float()
    groups = reward.view(GROUPS, GROUP)
    centred = groups - groups.mean(1, keepdim=True)
    advantages = (centred / (groups.std(1, keepdim=True) + 1e-6)).view(-1)
    old = policy(tokens[:, :-1]).gather(2, tokens[:, 1:, None])[..., 0]
    mask = MASK.expand(len(tokens), -1)
    return Step(tokens, reward, old, advantages, mask, torch.full((len(tokens),), 2), tokens)


def surrogate(ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """PPO's clipped loss, averaged over the tokens of the update."""
    a = advantages[:, None]
    loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
    return (loss * mask).sum() / mask.sum()


def clipped_share(ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The share of tokens that the clip stops."""
    a = advantages[:, None]
    stopped = ((ratio > 1.2) & (a > 0)) | ((ratio < 0.8) & (a < 0))
    return (stopped * mask).sum() / mask.sum()


@dataclass
class Learner:
    """What trains, and on what."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    step: Step

    def backward(self, loss: Tensor, clips: bool) -> dict[str, Tensor]:
        """Gradients of the loss, clipped to 0.05; returns their norm before and after."""
        self.optimizer.zero_grad()
        loss.backward()
        parameters = list(self.policy.parameters())
        norm = nn.utils.clip_grad_norm_(parameters, 0.05 if clips else 1e9)
        gradients = [p.grad for p in parameters if p.grad is not None]
        after = torch.stack([gradient.norm() for gradient in gradients]).norm()
        return {"grad_norm": norm, "grad_norm_after": after}


@dataclass
class Loop:
    """A plain loop with GRPO, recorded; each field is a fault, off by default."""

    spoil: Callable[[Step], None] = lambda step: None  # after sampling
    scale: float = 1.0  # of the loss
    old_is_current: bool = False
    reuses: bool = False  # the rollouts of the first step in every step
    repeats: bool = False  # the first minibatch is trained on twice
    rate: float = 1.0  # times the configured learning rate
    temperature: float = 1.0
    clips: bool = True
    kind: torch.dtype = torch.float32  # of log-probs, advantages and loss
    offset: float = 0.0  # on log-probs, as of a forward pass that does not normalise

    def train(self, runs: Path, steps: int = 3, **declared: Any) -> Path:
        """Train some steps under a ledger; returns the run's folder."""
        torch.manual_seed(0)
        policy = Policy()
        optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2 * self.rate)
        options = {"experiment": "plain", "algorithm": "grpo", "settings": EVERYTHING} | declared
        first: Step | None = None
        with Local(runs, **options) as ledger:
            for number in range(steps):
                with torch.no_grad():
                    step = first if first and self.reuses else sampled(policy, self.temperature)
                    step.old = step.log_probs(policy)
                first = step
                self.spoil(step)
                group = torch.arange(GROUPS).repeat_interleave(GROUP)
                ledger.rollouts(
                    number,
                    step.reward,
                    group=group,
                    turns=step.turns,
                    prompts=step.shown[:, :1],
                    responses=step.shown[:, 1:],
                    mask=MASK.expand_as(step.mask),
                )
                for epoch in range(2):
                    parts = list(torch.randperm(len(step.tokens)).chunk(2))
                    for rows in [parts[0], parts[0]] if self.repeats else parts:
                        self.update(ledger, Learner(policy, optimizer, step), number, epoch, rows)
                ledger.end(number)
        return ledger.folder

    def update(self, ledger: Local, learner: Learner, number: int, epoch: int, rows: Tensor) -> None:
        """One optimizer update on some rows."""
        step = learner.step
        all_log_probs = learner.policy(step.tokens[rows, :-1])
        log_prob = (step.log_probs(learner.policy)[rows] + self.offset).to(self.kind)
        log_prob.retain_grad()
        old = log_prob.detach() if self.old_is_current else (step.old[rows] + self.offset).to(self.kind)
        a = step.advantages[rows].to(self.kind)
        mask = step.mask[rows]
        ratio = (log_prob - old).exp()
        loss = self.scale * surrogate(ratio, a, mask)
        norms = learner.backward(loss, self.clips)
        ledger.update(
            number,
            epoch=epoch,
            log_prob=log_prob,
            log_prob_old=old,
            mask=mask,
            advantages=a,
            trajectory=rows,
            entropy=-(all_log_probs.exp() * all_log_probs).sum(-1),
            terms={"gradient_weight": log_prob.grad},
            policy_loss=loss,
            clip_frac=clipped_share(ratio, a, mask),
            lr=1e-2 * self.rate,
            **norms,
        )
        learner.optimizer.step()


def checks_of(folder: Path) -> list[Check]:
    """All checks of a run, those of its stored steps before those of its rows."""
    return [*audit(folder, batches.steps(folder)), *table_checks(folder)]


def violated(checks: Sequence[Check]) -> list[str]:
    return list(dict.fromkeys(check.identity for check in checks if check.violated))


def held(checks: Sequence[Check]) -> set[str]:
    return {check.identity for check in checks if not check.missing and not check.violated}


def missing(checks: Sequence[Check]) -> dict[str, str]:
    return {check.identity: check.missing for check in checks if check.missing}


def test_a_healthy_loop_violates_nothing_and_most_is_checked(tmp_path: Path) -> None:
    checks = checks_of(Loop().train(tmp_path))
    assert violated(checks) == []
    assert held(checks) >= {
        "token_ids",
        "row_lengths",
        "trained_mask",
        "turns",
        "fresh_batch",
        "log_prob_range",
        "sampled_entropy",
        "entropy_range",
        "old_log_probs_fixed",
        "group_size",
        "advantages",
        "group_advantages",
        "order",
        "clip_fraction",
        "loss",
        "token_weights",
        "gradient_clip",
        "peak_learning_rate",
    }
    assert "only sorl's own trainer stores" in missing(checks)["weights"]
    assert missing(checks)["old_log_probs"].endswith(
        '{"old_log_prob": "behaviour"}} to the Ledger if they are the sampler\'s'
    )


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_coarse_numbers_are_given_the_rounding_of_their_precision(tmp_path: Path, kind: torch.dtype) -> None:
    assert violated(checks_of(Loop(kind=kind).train(tmp_path))) == []
    eightfold = violated(checks_of(Loop(kind=kind, scale=8.0).train(tmp_path)))
    assert eightfold == ["loss", "token_weights"]


def test_a_loop_that_tells_little_is_accused_of_nothing(tmp_path: Path) -> None:
    with Local(tmp_path, experiment="bare", algorithm="my-own") as ledger:
        for step in range(2):
            log_prob = torch.full((4, 3), -1.0)
            ledger.rollouts(step, [1.0, 0.0, 0.5, 0.0], responses=[[step, 2, 3]] * 4)
            ledger.update(
                step, log_prob=log_prob, log_prob_old=log_prob, mask=log_prob < 0, advantages=torch.zeros(4)
            )
    checks = checks_of(ledger.folder)
    assert violated(checks) == []
    assert "replay_as" in missing(checks)["advantages"]
    assert (
        "give policy_loss= to Ledger.update" in missing(checks)["loss"]
        or "replay_as" in missing(checks)["loss"]
    )


def clip_fraction_of(runs: Path, logged: float, level: str) -> Check:
    """The check of an update on sequences of one and of three tokens, of which only the first is clipped."""
    mask = torch.tensor([[True, False, False], [True, True, True]])
    old = torch.full((2, 3), -2.0)
    log_prob = torch.where(torch.tensor([[True], [False]]), -1.0, old)  # ratios of e and 1
    replay = {"base": "grpo", "ratio": {"level": level}}
    options = {"experiment": level, "algorithm": "theirs", "replay_as": replay, "run": f"of-{logged}"}
    with Local(runs, **options, clip=Clip(level=level)) as ledger:
        ledger.rollouts(0, [1.0, 0.0], group=[0, 0], responses=[[1], [2, 3, 4]])
        advantages = torch.tensor([0.7, -0.7])
        told = {"log_prob": log_prob, "log_prob_old": old, "mask": mask, "advantages": advantages}
        ledger.update(0, **told, clip_frac=logged)
        ledger.end(0)
    return next(check for check in checks_of(ledger.folder) if check.identity == "clip_fraction")


@pytest.mark.parametrize(
    ("level", "logged", "holds"),
    [
        ("sequence", 0.25, True),  # of the tokens
        ("sequence", 0.5, True),  # of the sequences, as TRL counts
        ("sequence", 0.75, False),
        ("token", 0.25, True),
        ("token", 0.5, False),
    ],
)
def test_a_clip_fraction_may_count_sequences_where_a_sequence_has_one_ratio(
    tmp_path: Path, level: str, logged: float, holds: bool
) -> None:
    check = clip_fraction_of(tmp_path, logged, level)
    assert not check.missing
    assert check.violated is not holds


def wrong_group(step: Step) -> None:
    groups = step.reward.view(GROUP, GROUPS)  # the other way round
    step.advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).view(
        -1
    )


def with_observations(step: Step) -> None:
    step.mask = torch.ones_like(step.mask)


def foreign_tokens(step: Step) -> None:
    step.shown = torch.where(step.tokens == VOCABULARY - 1, VOCABULARY, step.tokens)


FAULTS: dict[str, tuple[Loop, set[str]]] = {
    "advantages of the wrong group": (Loop(spoil=wrong_group), {"advantages", "group_advantages"}),
    "loss times eight": (Loop(scale=8.0), {"loss", "token_weights"}),
    "observations in the mask": (Loop(spoil=with_observations), {"trained_mask", "turns"}),
    "old log-probs are the current ones": (
        Loop(old_is_current=True),
        {"old_log_probs_fixed", "minibatches"},
    ),
    "a batch is trained on in every step": (Loop(reuses=True), {"fresh_batch"}),
    "a minibatch is repeated": (Loop(repeats=True), {"order"}),
    "a learning rate times four": (Loop(rate=4.0), {"peak_learning_rate"}),
    "log-probs that are not normalised": (Loop(offset=8.0), {"log_prob_range", "sampled_entropy"}),
    "a hot sampler": (Loop(temperature=3.0), {"sampled_entropy"}),
    "token ids of another tokenizer": (Loop(spoil=foreign_tokens), {"token_ids"}),
    "no clip of the gradient": (Loop(clips=False), {"gradient_clip"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_violates_its_own_identity_and_no_other(tmp_path: Path, fault: str) -> None:
    loop, expected = FAULTS[fault]
    checks = checks_of(loop.train(tmp_path))
    found = set(violated(checks))
    # A batch that is trained on again was not sampled by the policy that trains on it.
    assert found - ({"sampled_entropy"} if loop.reuses else set()) == expected


@pytest.fixture
def of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Record what a real GRPOTrainer did."""
    monkeypatch.setattr(trl, "Ledger", Local)

    def train(change: Callable[[Any], Any] = lambda inputs: inputs) -> Path:
        trainer = FakeGRPO(change=change)
        book = trl.record(trainer, tmp_path / "runs", experiment="e", tokens=16)
        trainer.train()
        return book.folder

    return train


@pytest.fixture
def of_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Record what verl's actor did."""
    monkeypatch.delenv("SORL_RECORD", raising=False)
    monkeypatch.setattr(verl_recorder, "Ledger", Local)
    fake = FakeVerl(monkeypatch)
    verl_mode.loss_of.cache_clear()
    verl.install()

    def train(knobs: str = "", change: Callable[[Any], Any] = lambda rows: rows) -> Path:
        mode = f"sorl:vanilla?record={tmp_path}/runs/mine&tokens=16{knobs}"
        engine = fake.train(actor(policy_loss=Config(loss_mode=mode)), change)
        folder: Path = engine.sorl_recorder.ledger.folder
        return folder

    return train


ROWS = {"row_lengths", "fresh_batch", "entropy_range", "peak_learning_rate"}


def test_what_trl_did_holds_and_what_is_not_checked_is_said_in_its_words(of_trl: Callable[..., Path]) -> None:
    folder = of_trl()
    checks = checks_of(folder)
    assert violated(checks) == []
    expected = {"trained_mask", "log_prob_range", "sampled_entropy", "old_log_probs_fixed"}
    expected |= {"advantages", "group_advantages", "order", "clip_fraction"} | ROWS
    assert held(checks) >= expected
    says = missing(checks)
    assert "in TRL set use_vllm and vllm_importance_sampling_correction" in says["behaviour_log_probs"]
    assert "in TRL set beta=0" in says["loss"]
    assert "in TRL set beta=0" in says["token_weights"]
    assert "in TRL" in says["gradient_clip"]
    assert declaration_of(folder).trainer == "TRL"


def without_baseline(inputs: dict[str, Any]) -> dict[str, Any]:
    return inputs | {"advantages": inputs["advantages"] + 0.5}


def with_tool_results(inputs: dict[str, Any]) -> dict[str, Any]:
    return inputs | {"tool_mask": torch.ones_like(inputs["tool_mask"])}


def shifted(inputs: dict[str, Any]) -> dict[str, Any]:
    return inputs | {"old_per_token_logps": inputs["old_per_token_logps"] - 0.3}


OF_TRL: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "advantages without their baseline": (without_baseline, {"advantages", "group_advantages"}),
    "tool results in the mask": (with_tool_results, {"trained_mask"}),
    "old log-probs of another policy": (shifted, {"clip_fraction"}),
}


@pytest.mark.parametrize("fault", OF_TRL)
def test_a_fault_in_trl_violates_its_identity(of_trl: Callable[..., Path], fault: str) -> None:
    change, expected = OF_TRL[fault]
    assert set(violated(checks_of(of_trl(change)))) >= expected


def test_what_verl_did_holds_and_its_loss_is_the_declared_one(of_verl: Callable[..., Path]) -> None:
    checks = checks_of(of_verl())
    assert violated(checks) == []
    expected = {"trained_mask", "log_prob_range", "sampled_entropy", "old_log_probs_fixed"}
    assert held(checks) >= expected | {"order", "clip_fraction", "loss", "token_weights"} | ROWS
    assert "SORL_RECORD=runs/x&advantage=grpo" in missing(checks)["advantages"]
    exact = [check for check in checks if check.identity == "token_weights"]
    assert all(check.gap < 1e-7 for check in exact)


def test_advantages_that_are_not_those_of_the_declared_estimator_are_found_in_verl(
    of_verl: Callable[..., Path],
) -> None:
    checks = checks_of(of_verl("&advantage=grpo"))  # the recorded ones were drawn at random
    assert violated(checks) == ["advantages", "group_advantages"]


def test_the_command_audits_a_recording_of_trl_and_a_diagnosis_does(of_trl: Callable[..., Path]) -> None:
    healthy = of_trl()
    runs = healthy.parent.parent
    result = sorl("audit", healthy.name, runs=runs)
    assert result.exit_code == 0, result.output
    assert "No identity is violated." in result.stdout
    assert "in TRL set use_vllm" in result.stdout
    said = sorl("diagnose", healthy.name, runs=runs)
    assert "identities that could be checked hold" in said.stdout


def test_a_violation_says_how_it_may_be_innocent_what_to_do_and_where_to_read(
    of_trl: Callable[..., Path],
) -> None:
    broken = of_trl(without_baseline)
    runs = broken.parent.parent
    result = sorl("audit", broken.name, runs=runs)
    assert result.exit_code == 1
    assert "  Innocent if: The declared algorithm" in result.stdout
    assert "  More: docs/identities.md#advantages" in result.stdout
    rows = json.loads(sorl("audit", broken.name, "--format", "json", runs=runs).stdout)
    row = next(row for row in rows if row["state"] == "violated")
    assert {"means", "innocent", "change", "page"} <= row.keys()
    said = sorl("diagnose", broken.name, runs=runs)
    assert "the record contradicts itself" in said.stdout


def test_a_run_without_stored_batches_is_audited_by_its_rows(tmp_path: Path) -> None:
    folder = Loop().train(tmp_path / "runs", batches=BatchesSettings(mb=0))
    assert batches.steps(folder) == []
    result = sorl("audit", folder.name, runs=tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert "rows and witnesses of all steps checked" in result.stdout
    assert "needs a stored batch: give responses= to Ledger.rollouts" in result.stdout
    rows = told("audit", folder.name, runs=tmp_path / "runs")
    held_rows = {row["identity"] for row in rows if row["state"] == "holds"}
    assert held_rows >= ROWS | {"group_advantages", "group_size"}


def test_an_imported_log_of_scalars_is_audited_by_what_it_has(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = ({"step": step, "reward": 0.1 * step, "entropy": 1.0 - 0.1 * step} for step in range(20))
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done("import", log, runs=tmp_path / "runs")
    (run,) = [path.name for path in (tmp_path / "runs" / "imported").iterdir() if path.is_dir()]
    result = sorl("audit", run, runs=tmp_path / "runs")
    assert result.exit_code == 1  # an entropy below 0
    assert "Traceback" not in result.output
    assert "entropy_range" in result.stdout


@pytest.mark.parametrize(
    ("kind", "expected"), [(torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10), (torch.float32, 2.0**-23)]
)
def test_the_spacing_is_that_of_the_precision_that_the_numbers_came_in(
    kind: torch.dtype, expected: float
) -> None:
    values = torch.rand(100, generator=torch.Generator().manual_seed(0)).to(kind).float().numpy()
    assert spacing(values) == expected


def test_rewards_that_are_equal_but_for_rounding_accuse_nobody(tmp_path: Path) -> None:
    def nearly_equal(step: Step) -> None:
        step.reward = torch.full_like(step.reward, 0.1)
        step.advantages = torch.randn(len(step.reward)) * 1e-3

    assert "advantages" not in violated(checks_of(Loop(spoil=nearly_equal).train(tmp_path)))
