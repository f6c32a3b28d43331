"""What is recorded of a GRPOTrainer equals its own tensors and its own log."""

import copy
import json
import logging

import numpy as np
import pytest
import torch

from sorl.audit import witness_checks, witness_tables
from sorl.spec import InputError
from sorl.store import batches
from sorl.trainers import trl
from tests.recording.local import Local, read
from tests.trainers.fake_trl import FakeGRPO


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Train a fake under the recorder; returns the trainer and the run's folder."""
    monkeypatch.setattr(trl, "Ledger", Local)

    def train(trainer=None, **knobs):
        trainer = trainer or FakeGRPO()
        book = trl.record(trainer, tmp_path / "runs", experiment="e", **knobs)
        trainer.train()
        return trainer, book.folder

    return train


def mask_of(micro):
    return (micro["completion_mask"] * micro["tool_mask"]).astype(bool)


def test_every_ratio_is_that_of_the_trainers_own_tensors(recorded):
    trainer, folder = recorded(tokens=16)
    moved = {}
    for number, micro in enumerate(trainer.micro):
        for row, trajectory in enumerate(micro["sorl_trajectory"]):
            apart = (micro["log_prob"].astype(float) - micro["old_per_token_logps"])[row]
            moved[number // 8, number % 8, int(trajectory)] = (
                apart[mask_of(micro)[row]],
                micro["gradient"][row],
            )
    tokens = 0
    for step in batches.steps(folder):
        stored = batches.read(folder, step)
        for update in stored.updates:
            for row, log_prob in zip(update.rows, update.log_prob, strict=True):
                apart = (log_prob - stored.log_prob_old[row])[stored.mask[row]]
                assert np.exp(apart) == pytest.approx(
                    np.exp(moved[step, update.index, int(row)][0]), abs=1e-5
                )
                tokens += len(apart)
    assert tokens == sum(mask_of(micro).sum() for micro in trainer.micro)
    turns = read(folder, "turn")
    for turn in turns:
        apart, _ = moved[turn["step"], turn["update"], turn["trajectory"]]
        assert turn["ratio_max"] <= np.exp(apart.max()) + 1e-6
    assert sum(turn["n_tokens"] for turn in turns) == tokens
    assert {turn["turn_index"] for turn in turns} == {1, 2, 3}
    for row in read(folder, "token"):
        last = max(update for step, update, i in moved if (step, i) == (row["step"], row["trajectory"]))
        apart, gradient = moved[row["step"], last, row["trajectory"]]
        assert [x for x in row["log_ratio"] if x is not None] == pytest.approx(apart.tolist(), abs=1e-6)
        weights = [x for x in row["gradient_weight"] if x is not None]
        assert weights == pytest.approx([x for x in gradient.tolist() if x], abs=1e-9) or 0.0 in weights


def test_clip_fraction_kl_entropy_and_gradient_norm_are_what_trl_logs(recorded):
    trainer, folder = recorded()
    rows = sorted(read(folder, "minibatch"), key=lambda row: (row["step"], row["update"]))
    assert len(rows) == len(trainer.log) == 16
    pairs = {
        "clip_frac": "clip_ratio/region_mean",
        "clip_low_frac": "clip_ratio/low_mean",
        "kl_ref": "kl",
        "clip_high_frac": "clip_ratio/high_mean",
        "entropy": "entropy",
        "grad_norm": "grad_norm",
    }
    for ours, theirs in pairs.items():
        assert [row[ours] for row in rows] == pytest.approx(
            [line[theirs] for line in trainer.log], abs=1e-6
        ), ours
    assert any(row["clip_frac"] > 0 for row in rows)
    assert [row["epoch"] for row in rows] == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert {row["lr"] for row in rows} == {1e-3}


def test_rewards_and_lengths_of_a_step_are_what_trl_logs(recorded):
    trainer, folder = recorded()
    lines = [line for line in trainer.log if "reward" in line]
    rows = sorted(read(folder, "step"), key=lambda row: row["step"])
    assert len(rows) == len(lines) == 2
    for ours, theirs in {
        "reward": "reward",
        "success": "rewards/right/mean",
        "searches": "tools/call_frequency",
        "zero_advantage_frac": "frac_reward_zero_std",
        "response_tokens": "completions/mean_length",
    }.items():
        assert [row[ours] for row in rows] == pytest.approx([line[theirs] for line in lines], abs=1e-6), ours


def test_a_step_holds_whole_rollouts_and_whole_updates_whatever_is_accumulated(recorded):
    _, alone = recorded(arm="one")
    for accumulate in (2, 4, 16):
        _, folder = recorded(FakeGRPO(accumulate), arm=str(accumulate))
        rows = read(folder, "minibatch")
        assert len(rows) == 16 // accumulate
        tokens = sum(row["tokens"] for row in read(alone, "minibatch"))
        assert sum(row["tokens"] for row in rows) == tokens
        steps = read(folder, "step")
        assert len(steps) == (2 if accumulate < 16 else 1)
        assert {row["trajectory"] for row in read(folder, "trajectory")} == set(
            range(16 if accumulate < 16 else 32)
        )


def test_a_resumed_trainer_goes_on_with_the_steps_that_follow(recorded):
    recorded(run="r")
    trainer = FakeGRPO()
    # a checkpoint in the second step; its micro-batches are counted from 0 again
    trainer.state.global_step = 12
    _, folder = recorded(trainer, run="r", resume=True)
    assert [row["step"] for row in read(folder, "step")] == [0, 1, 2, 3]
    rows = [row for row in read(folder, "minibatch") if row["step"] == 2]
    assert sorted(row["update"] for row in rows) == list(range(8))


def test_the_transcript_is_the_trainers_with_question_answer_and_end(recorded):
    trainer, folder = recorded(tokens=16)
    rows = {(row["step"], row["trajectory"]): row for row in read(folder, "trajectory")}
    told = trainer.told["rollouts"][0]
    assert rows[0, 0]["question"] == told["prompts"][0][0]["content"]
    assert [rows[0, i]["gold"] for i in range(16)] == [row["answer"] for row in told["inputs"]]
    assert {row["ended"] for row in rows.values()} <= {"answer", "max_turns", "max_tokens"}
    assert [rows[0, i]["prompt_group"] for i in range(16)] == [i // 4 for i in range(16)]
    token = next(row for row in read(folder, "token") if row["step"] == 0)
    i = token["trajectory"]
    mask = torch.tensor(told["out"]["prompt_mask"][i]).bool()
    prompt = torch.tensor(told["out"]["prompt_ids"][i])[mask].tolist()
    assert token["token_id"][: len(prompt)] == prompt
    assert token["token"][0] == f"<{prompt[0]}>"
    assert not any(token["trained"][: len(prompt)])


def test_what_vllm_sampled_with_is_kept_and_its_correction_counted(recorded):
    def sampled(inputs):
        old = inputs["old_per_token_logps"]
        ratio = torch.ones_like(old)
        ratio[:, 0] = 2.0
        sampler = old - 0.1
        sampler[0, 0] = float("nan")  # vLLM could not score it
        return inputs | {"sampling_per_token_logps": sampler, "importance_sampling_ratio": ratio}

    trainer = FakeGRPO(change=sampled)
    trainer.vllm_importance_sampling_clip_max = 2.0
    _, folder = recorded(trainer)
    rows = read(folder, "minibatch")
    assert all(
        0 < row["mismatch_kl"] <= -0.1 or row["mismatch_kl"] == pytest.approx(-0.1, abs=0.02) for row in rows
    )
    assert all(0 < row["corrected_frac"] < 1 for row in rows)


def test_without_old_log_probs_the_ratio_is_one(recorded):
    def fresh(inputs):
        return {name: x for name, x in inputs.items() if name != "old_per_token_logps"}

    _, folder = recorded(FakeGRPO(change=fresh))
    assert {row["ratio_max"] for row in read(folder, "minibatch")} == {1.0}
    assert {row["mismatch_kl"] for row in read(folder, "minibatch")} == {None}


def test_evaluation_is_not_recorded_and_another_trl_costs_the_rows_only(recorded, caplog):
    trainer = FakeGRPO()
    trainer.model.training = False
    _, folder = recorded(trainer, arm="eval")
    assert read(folder, "step") == []

    def strange(inputs):
        return {"completion_ids": inputs["completion_ids"], trl.ROW: inputs[trl.ROW]}

    with caplog.at_level(logging.WARNING, "sorl.recording"):
        _, folder = recorded(FakeGRPO(change=strange), arm="strange")
    assert len([r for r in caplog.records if "could not be recorded" in r.message]) == 1
    assert [row["reward"] is None for row in read(folder, "step")] == [False, False]


def test_the_settings_are_those_that_change_what_is_computed_and_the_algorithm_has_our_words(recorded):
    from sorl.algorithms import resolve

    trainer, folder = recorded()
    config = json.loads(read(folder, "run")[-1]["config"])
    assert config["learning_rate"] == 1e-3
    assert config["iterations"] == 2
    assert config["learn"] == {
        "epochs": 2,
        "minibatches": 4,
        "policy": {"lr": 1e-3, "max_grad_norm": 1.0},
        "episodes": 16,
        "group_size": 4,
    }
    assert {"output_dir", "seed"}.isdisjoint(config)
    meta = batches.read(folder, 0).meta
    found = resolve(meta["algorithm"])
    assert (found.clip.low, found.clip.high) == (0.2, 0.2)
    assert (found.aggregate.kind, found.kl.kind) == ("seq_mean_token_mean", "loss")
    for loss in ("cispo", "sapo", "vespo"):
        trainer.loss_type = loss
        assert not trl.clip_of(trainer).stops


def test_what_is_no_trainer_and_no_reward_function_is_refused_by_name(recorded, tmp_path):
    with pytest.raises(InputError, match="takes a GRPOTrainer"):
        trl.record(object(), tmp_path, experiment="e")
    with pytest.raises(InputError, match="no reward function 'left'; there is: right"):
        trl.record(FakeGRPO(), tmp_path, experiment="e", success="left")


def test_of_a_rollout_function_nobody_knows_what_its_turns_did(recorded):
    trainer = FakeGRPO()
    trainer.tools = []
    for told in trainer.told["rollouts"]:
        told["completions"] = ["one text for all turns" for _ in told["completions"]]
    _, folder = recorded(trainer)
    turns = read(folder, "turn")
    many = {(t["step"], t["trajectory"]) for t in turns if t["turn_index"] > 1}
    assert {t["status"] for t in turns if (t["step"], t["trajectory"]) in many} == {None}
    rows = read(folder, "trajectory")
    assert {row["n_searches"] for row in rows} == {None}
    assert {row["answer"] for row in rows} == {"one text for all turns"}


class Trained(FakeGRPO):
    """A fake with weights, whose optimizer takes a step for each update."""

    def __init__(self):
        super().__init__()
        weights = torch.nn.ModuleDict({"lm_head": torch.nn.Linear(3, 2)})
        self.model = weights.train()
        self.ref_model = copy.deepcopy(weights)
        self.optimizer = torch.optim.SGD(weights.parameters(), lr=1e-3)

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs) + model["lm_head"](torch.ones(3)).sum()

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, *args, learning_rate=None):
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_weights_and_tokens_are_witnessed_and_hold(recorded):
    _, folder = recorded(Trained())
    rows = read(folder, "witness")
    policy = [row for row in rows if row["network"] == "policy"]
    assert [row["optimizer_steps"] for row in policy] == [8] * len(policy)
    assert all(row["moved"] > 0 for row in policy)
    assert {row["network"] for row in rows} == {"policy", "reference"}
    batches = read(folder, "witness_batch")
    assert all(row["sampled_checksum"] == row["trained_checksum"] is not None for row in batches)
    checks = list(witness_checks(witness_tables(folder)))
    assert not [check for check in checks if check.violated]
    assert {check.identity for check in checks if check.missing} == {"sampler_weights"}
