"""Every diagnostic is filled for every algorithm, or is NULL for a reason that its description gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.diagnostics.shared_batch import rollouts_of
from tests.learn.test_distinct import TOKENIZER, data
from workbench.agent.tokenizer import Spans
from workbench.algorithms import ALGORITHMS
from workbench.diagnostics import CATALOGUE, measure
from workbench.diagnostics.evidence import Evidence, StepEvidence
from workbench.learn import networks
from workbench.learn.networks import Critic, log_probs
from workbench.learn.probe import controls
from workbench.learn.update import Learner
from workbench.objective import Algorithm, prepare
from workbench.spec import LearnSettings, PolicySettings

SETTINGS = LearnSettings.model_validate({"policy": {"lr": 0.5}, "clip_bias_every": 1, "probe_every": 1})

CRITIC = {
    ("minibatch", name)
    for name in ("value_loss", "critic_grad_norm", "explained_variance", "value_mae", "value_mae_out_of_range",
                 "value_bias", "vf_clip_frac")
} | {
    ("turn", "value"), ("turn", "value_error"), ("turn_step", "value"), ("turn_step", "value_error"),
    ("turn_step", "value_mae"), ("turn_step", "explained_variance"), ("step", "explained_variance"),
}  # fmt: skip
CORRECTION = {
    ("minibatch", "correction_mean"), ("minibatch", "corrected_frac"), ("minibatch", "corrected_positive_frac"),
    ("minibatch", "corrected_negative_frac"), ("step", "corrected_frac"),
}  # fmt: skip
STABILISER = {("minibatch", "stabiliser_ratio"), ("minibatch", "stabiliser_factor"), ("step", "stabiliser_factor")}
# A penalty multiplies nothing and compares nothing with a threshold, so it has neither a factor nor a ratio.
WITHOUT_FACTOR = {"none", "kl_clipfrac"}
# Undefined on some data: a noise scale without signal, the direction of a bias that is 0.
UNDEFINED = {("minibatch", "noise_scale"), ("minibatch", "clip_bias_cosine")}
# What neither rollouts nor clock of this test have: they are no algorithm's.
ELSEWHERE = {
    (d.table, d.name)
    for d in CATALOGUE
    if d.name.startswith(("retrieval_", "seconds_", "heldout_")) or d.name in (
        "status", "search_frac", "answer_frac", "invalid_frac", "sync_error", "memory_peak", "tokens_per_second",
        "batch_hash", "first_log_ratio_abs_max", "token_mismatches",
    )
}  # fmt: skip


def null_columns(algorithm: Algorithm) -> set[tuple[str, str]]:
    """Columns without a number after two updates with a probe and the clipping bias at each."""
    network = networks.create(PolicySettings(hidden=16, layers=1, heads=2, mlp=16), TOKENIZER, seed=0)
    learner = Learner(algorithm, SETTINGS, network, Critic(network) if algorithm.critic else None)
    learner.probe.control, learner.spans = controls(TOKENIZER), Spans(TOKENIZER)
    batch = data()
    with torch.no_grad():
        old = torch.where(batch.mask, log_probs(network, batch.tokens)[0], 0)
    ids = [*controls(TOKENIZER).values(), TOKENIZER.get_vocab()["<think>"]]
    tags = torch.tensor(ids)[torch.arange(batch.tokens.numel()).view_as(batch.tokens) // 2 % 5]
    batch = replace(
        batch,
        tokens=torch.where(batch.mask & (torch.arange(batch.tokens.shape[1]) % 2 == 0), tags, batch.tokens),
        values=batch.values if algorithm.critic else None,
        log_prob_old=torch.where(batch.mask, old + torch.linspace(-0.9, 0.9, old.numel()).view_as(old), 0),
        log_prob_behaviour=torch.where(batch.mask, old + torch.linspace(1.5, -1.5, old.numel()).view_as(old), 0),
    )
    batch = prepare(algorithm, batch)

    def now(part):
        with torch.no_grad():
            return torch.where(part.mask, log_probs(network, part.tokens)[0], 0)

    updates = [learner.update(part, 0, 0) for _ in range(2) for part in algorithm.schedule.parts(batch, now)]
    rewards = [float(x) for x in batch.score]
    rollouts = rollouts_of(rewards, group=batch.group.tolist())
    found = measure(0, StepEvidence(rollouts, Evidence.stack(updates)))
    null = {("step", name) for name, value in found.step.items() if value is None}
    for table in ("minibatch", "trajectory", "turn", "turn_step"):
        for name, column in getattr(found, table).items():
            if column is None or (not isinstance(column, list) and np.ma.getmaskarray(column).all()):
                null.add((table, name))
    return null


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_column_is_filled_or_its_reason_is_the_algorithms(name: str) -> None:
    algorithm = ALGORITHMS[name].within(84)
    no_critic = set() if algorithm.critic else CRITIC
    no_correction = CORRECTION if algorithm.correction.kind == "none" else set()
    no_factor = STABILISER if algorithm.stabilise.kind in WITHOUT_FACTOR else set()
    assert null_columns(algorithm) - ELSEWHERE - UNDEFINED == no_critic | no_correction | no_factor


def test_what_can_be_null_says_so() -> None:
    said = {(d.table, d.name): d.description for d in CATALOGUE}
    assert [place for place in sorted(CRITIC | CORRECTION | STABILISER | UNDEFINED) if "NULL" not in said[place]] == []
