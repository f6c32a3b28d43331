"""Witnesses of a plain torch loop through the ledger, and what they prove."""

import copy
import itertools
import logging

import pytest
import torch
from torch import nn

from sorl.audit import witness_checks, witness_tables
from tests.recording.local import Local, read

STEPS = 6


class Loop:
    """A policy that learns to write tokens it is paid for; a test changes what one of its steps does."""

    def __init__(self, runs, **knobs):
        torch.manual_seed(0)
        self.policy = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8)})
        self.reference = copy.deepcopy(self.policy)
        self.sampler = copy.deepcopy(self.policy)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=0.05)
        self.book = Local(runs, experiment="e", algorithm="grpo", **knobs)
        self.mask = torch.ones(4, 5, dtype=torch.bool)

    def log_probs(self, tokens):
        hidden = self.policy["embed"](tokens)
        logits = self.policy["head"](hidden)
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def sync(self, step):
        self.sampler.load_state_dict(self.policy.state_dict())

    def trained(self, step, tokens):
        return tokens

    def between(self, step):
        pass

    def optimise(self, step):
        self.optimizer.step()

    def run(self):
        with self.book as book:
            for step in range(STEPS):
                self.between(step)
                self.sync(step)
                book.weights(step, "policy", self.policy.named_parameters(), optimizer=self.optimizer)
                book.weights(step, "reference", self.reference.state_dict().items())
                book.weights(step, "sampler", self.sampler.named_parameters(), trainable=False)
                tokens = torch.randint(0, 8, (4, 5))
                book.rollouts(step, [1.0, 0.0, 1.0, 0.0], responses=tokens.tolist(), mask=self.mask)
                for _ in range(2):
                    self.update(step, tokens)
                book.weights(step, "policy", self.policy.state_dict().items(), when="end")
                book.end(step)
        return book.folder

    def update(self, step, tokens):
        self.optimizer.zero_grad()
        tokens = self.trained(step, tokens)
        log_prob = self.log_probs(tokens)
        advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
        (-log_prob * advantages[:, None]).sum().backward()
        self.book.update(
            step,
            log_prob=log_prob.detach(),
            log_prob_old=log_prob.detach(),
            mask=self.mask,
            advantages=advantages,
            tokens=tokens,
            grad_norm=1.0,
        )
        self.optimise(step)


def violations(folder):
    checks = list(witness_checks(witness_tables(folder)))
    return {check.identity: check for check in checks if check.violated}


def test_a_healthy_loop_is_witnessed_and_violates_nothing(tmp_path):
    folder = Loop(tmp_path).run()
    checks = list(witness_checks(witness_tables(folder)))
    assert not [check for check in checks if check.violated or check.missing]
    rows = read(folder, "witness")
    layers = set(itertools.product(("policy", "reference", "sampler"), ("embedding", "head")))
    assert {(row["network"], row["layer"]) for row in rows} == layers
    assert {row["optimizer_steps"] for row in rows if row["network"] == "policy"} == {2}
    batches = read(folder, "witness_batch")
    assert [row["micro_batches"] for row in batches] == [2] * STEPS
    assert all(row["sampled_checksum"] == row["trained_checksum"] is not None for row in batches)


class Stale(Loop):
    def sync(self, step):
        if step < 3:
            super().sync(step)


class Encoded(Loop):
    def trained(self, step, tokens):
        return (tokens + (step >= 3)) % 8


class Moved(Loop):
    def between(self, step):
        if step == 3:
            with torch.no_grad():
                self.policy["head"].weight.mul_(1.01)


class Lost(Loop):
    def optimise(self, step):
        if step < 3:
            super().optimise(step)


class Following(Loop):
    def between(self, step):
        if step >= 3:
            self.reference.load_state_dict(self.policy.state_dict())


BROKEN = {
    Stale: ("sampler_weights", "the weights of step 2, 1 step old"),
    Encoded: ("trained_tokens", "broken from 3"),
    Moved: ("weights_between_steps", "weights that no step before had"),
    Lost: ("optimizer_steps", "0 steps for 2 updates"),
    Following: ("reference_still", "the policy's weights of step 3"),
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_what_a_loop_does_wrong_violates_its_own_identity(tmp_path, kind):
    identity, says = BROKEN[kind]
    found = violations(kind(tmp_path).run())
    assert list(found) == [identity]
    assert found[identity].step == 3
    assert says in found[identity].says


def test_without_the_knob_nothing_is_witnessed(tmp_path):
    assert read(Loop(tmp_path, witnesses=False).run(), "witness") == []


def test_weights_that_are_spread_over_ranks_cost_one_warning(tmp_path, caplog):
    book = Local(tmp_path, experiment="e", algorithm="grpo")
    with caplog.at_level(logging.WARNING), book:
        for step in range(3):
            book.weights(step, "policy", [("w", torch.zeros(3, device="meta"))])
            book.end(step)
    assert len([record for record in caplog.records if "spread over ranks" in record.message]) == 1
