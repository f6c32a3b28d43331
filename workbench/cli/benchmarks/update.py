"""Training: the full update of a step beside a bare forward and backward of the same minibatches."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from workbench.agent.engines.hf import HFEngine
from workbench.agent.worlds.facts import Facts
from workbench.algorithms import resolve
from workbench.batch import Batch
from workbench.cli.benchmarks.pairs import Comparison, Side, Target, Work, alternate, timed
from workbench.cli.benchmarks.scene import Scene
from workbench.diagnostics import measure as measure_step
from workbench.diagnostics.evidence import Evidence, Rollouts, StepEvidence
from workbench.learn import policy
from workbench.learn.critic import Critic
from workbench.learn.rollouts import ORDER, Rollout, Sampler, batch_of, generator, trainer_log_probs
from workbench.learn.update import Learner
from workbench.objective.algorithm import Algorithm
from workbench.objective.pipeline import prepare
from workbench.spec import RunSettings

ALGORITHMS = ("ppo", "st-ppo")  # the base, and the one with the most beside the surrogate


@dataclass(frozen=True)
class Step:
    """One step's data, ready to train on: both networks at its start, and which rows each update takes."""

    settings: RunSettings
    algorithm: Algorithm
    policy: PreTrainedModel
    critic: Critic
    rollout: Rollout
    batch: Batch
    rows: list[tuple[int, torch.Tensor]]  # (epoch, rows) of each update

    @property
    def tokens(self) -> float:
        """Tokens trained on: those that the policy wrote, counted once an epoch."""
        return float(self.batch.mask.sum()) * self.settings.learn.epochs


def sampled(scene: Scene, algorithm: str) -> Step:
    """A fresh rollout of the warm start, with old log-probs, values and advantages."""
    settings, chosen = scene.variant(algorithm), resolve(algorithm)
    model = policy.load(scene.start)
    critic, learn = Critic(model), settings.learn
    engine = HFEngine(model, scene.tokenizer, settings.engine)
    sampler = Sampler(settings, Facts(settings.world), engine, learn.group_size or chosen.group_size, chosen.select)
    rollout = sampler.rollout(0, 0)
    batch = batch_of(rollout, scene.tokenizer.pad_token_id)
    with torch.no_grad():
        values = critic(batch.tokens)
    old = trainer_log_probs(model, batch, settings.engine.temperature)
    batch = prepare(chosen, replace(batch, log_prob_old=old, values=values))
    stream = generator(settings.seed, ORDER, 0)
    rows = [
        (epoch, part)
        for epoch in range(learn.epochs)
        for part in torch.randperm(len(batch.tokens), generator=stream).chunk(learn.minibatches)
    ]
    return Step(settings, chosen, model, critic, rollout, batch, rows)


def full(step: Step) -> Work:
    """All updates of the step by a fresh learner, and its diagnostics: what a run does between sampling and writing."""
    model = deepcopy(step.policy)
    temperature = step.settings.engine.temperature
    learner = Learner(step.algorithm, step.settings.learn, model, deepcopy(step.critic), temperature)

    def work() -> float:
        updates = [learner.update(step.batch.rows(rows).trimmed(), epoch, 0) for epoch, rows in step.rows]
        rollouts = Rollouts.of(step.rollout.episodes, 0)
        tokens = sum(int(u.mask.sum()) for u in updates)
        measure_step(0, StepEvidence(rollouts, Evidence.stack(updates), tokens_trained=tokens))
        return step.tokens

    return work


def bare(step: Step) -> Work:
    """Forward and backward of both networks over the same minibatches, already cut; no optimizer, no old log-probs."""
    model, critic = deepcopy(step.policy), deepcopy(step.critic)
    minibatches = [step.batch.rows(rows).trimmed().tokens for _, rows in step.rows]

    def work() -> float:
        for tokens in minibatches:
            model.zero_grad()
            critic.zero_grad()
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            torch.autograd.backward(loss)
            torch.autograd.backward(critic(tokens).square().mean())
        return step.tokens

    return work


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Trained tokens/s of both sides, for each of ALGORITHMS; every repetition starts from the same weights."""
    found = []
    for name in ALGORITHMS:
        step = sampled(scene, name)
        a, b = alternate(timed(lambda s=step: full(s)), timed(lambda s=step: bare(s)), rounds)  # type: ignore[misc]
        found.append(
            Comparison(
                name=f"update, {name}",
                unit="tokens/s",
                ours=Side("objective, both networks, optimizers, diagnostics", a),
                baseline=Side("forward and backward of both networks by transformers", b),
                target=Target("ratio", 0.7),
                note="the baseline runs no optimizer",
                facts={
                    "updates": len(step.rows),
                    "sequences": len(step.batch.tokens),
                    "trained_tokens": step.tokens,
                    "mean_sequence": float(step.batch.length.float().mean()),
                },
            )
        )
    return found
