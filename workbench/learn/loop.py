"""The training loop of one run: sample, wait in the queue, estimate advantages, update, write down."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from workbench.agent.engines.choose import engine_for
from workbench.agent.errors import NonFinite, StaleWeights
from workbench.agent.sentences import Sentences
from workbench.agent.spans import Spans
from workbench.agent.wording import WORDINGS
from workbench.agent.worlds.build import build
from workbench.algorithms import resolve
from workbench.batch import Batch
from workbench.diagnostics.evidence import Evidence, Rollouts, StepEvidence
from workbench.diagnostics.rules import Event
from workbench.learn import checkpoint, identity, memory, policy, selftest, stop
from workbench.learn.blackbox import Packer
from workbench.learn.crew import Crew
from workbench.learn.critic import Critic
from workbench.learn.evaluate import evaluate
from workbench.learn.faults.hooks import Lab
from workbench.learn.faults.inject import inject
from workbench.learn.probe import controls
from workbench.learn.rollouts import (
    ORDER,
    PLACEBO,
    Rollout,
    Sampler,
    batch_of,
    generator,
    trainer_log_probs,
)
from workbench.learn.update import Learner, non_finite
from workbench.objective.pipeline import prepare
from workbench.record.recorder import Recorder
from workbench.spec import RunSettings, check


class Diverged(ArithmeticError):
    """A loss, a gradient or the policy's output is no longer finite; the run ends here and keeps what it logged."""


class SelfTestFailed(RuntimeError):
    """The mask self-test failed: what this run would train on is not what it sampled."""


def learner_of(settings: RunSettings, start: Path, crew: Crew) -> Learner:
    """The networks of a run at its start, with the rule that updates them."""
    algorithm = resolve(settings.algorithm, settings.slots).within(settings.world.completion_budget)
    compute = settings.compute
    model = policy.load(start, compute)
    critic = Critic(model) if algorithm.critic else None
    return Learner(algorithm, settings.learn, model, critic, settings.engine.temperature, compute=compute, crew=crew)


def sampler_of(settings: RunSettings, learner: Learner, tokenizer: Any, lab: Lab) -> Sampler:
    """What asks the questions of a run and has its policy answer them."""
    engine = engine_for(learner.policy, tokenizer, settings.engine, WORDINGS[settings.wording])
    algorithm = learner.algorithm
    group_size = settings.learn.group_size or algorithm.group_size
    return Sampler(settings, build(settings.world), engine, group_size, algorithm.select, lab, learner.crew)


class Trainer:
    """One run. `steps()` yields after every iteration, so that whoever drives it can stop between two of them."""

    def __init__(
        self, settings: RunSettings, start: Path, recorder: Recorder, tokenizer: Any, crew: Crew | None = None
    ) -> None:
        torch.set_num_threads(settings.threads)
        self.settings, self.recorder, self.tokenizer = settings, recorder, tokenizer
        self.learner = learner_of(settings, start, crew or Crew())
        self.algorithm, model = self.learner.algorithm, self.learner.policy
        needed = self.algorithm.needs_reference
        self.reference = policy.load(start, settings.compute).requires_grad_(False) if needed else None
        self.lab = inject(settings, self.algorithm, model, tokenizer)
        self.sampler = sampler_of(settings, self.learner, tokenizer, self.lab)
        self.engine, self.group_size = self.sampler.engine, self.sampler.group_size
        self.sentences = Sentences(tokenizer)
        self.learner.probe.control = controls(tokenizer)
        self.learner.spans = Spans(tokenizer)
        self.packer = Packer(settings, self.learner)
        self.queue: deque[Rollout] = deque()
        self.step = 0
        self.tokens = 0  # trained on so far, each epoch counted
        self.seconds = 0.0
        self.stopped = ""  # why training ended before its last iteration

    def self_test(self) -> None:
        """Run the mask self-test; raises SelfTestFailed, and leaves the event, when it fails."""
        pad, temperature = self.tokenizer.pad_token_id, self.settings.engine.temperature
        problem = selftest.problem(self.algorithm, self.group_size, self.learner.policy, pad, temperature)
        if problem:
            failed = check("mask")
            self.recorder.events([Event(self.step, failed.kind, failed.severity, problem)])
            raise SelfTestFailed(f"mask self-test: {problem}")

    def steps(self) -> Iterator[dict[str, Any]]:
        """Train to the end; yields the measured row of each finished step.

        Raises Diverged after the step that broke has been recorded.
        """
        settings = self.settings
        while self.step < settings.iterations and not self._stop():
            began = time.perf_counter()
            evaluated = self._evaluate()
            judged = time.perf_counter()
            hooks = self.lab.at(self.step)
            self.learner.follow(hooks.learn(settings.learn, self.step))
            self._sample()
            sampled = time.perf_counter()
            fresh, stale = self.queue[-1], hooks.take(self.queue.popleft(), self.step)
            batch = self._estimate(stale)
            updates = self._optimise(batch, stale.policy_step)
            ended = time.perf_counter()
            self.seconds += ended - began
            tokens = sum(int(u.mask.sum()) for u in updates)
            self.tokens += tokens
            self.recorder.batch(self.step, self.packer.close(batch, updates))
            row = self.recorder.step(
                self.step,
                StepEvidence(
                    rollouts=Rollouts.of(fresh.first, fresh.policy_step),
                    trained=None if stale.episodes is fresh.first else Rollouts.of(stale.episodes, stale.policy_step),
                    episodes_sampled=fresh.sampled,
                    updates=Evidence.stack(updates),
                    seconds={
                        "evaluation": judged - began,
                        "rollout": sampled - judged,
                        "update": ended - sampled,
                        "total": ended - began,
                    },
                    tokens_trained=tokens,
                    heldout=(evaluated[0]["success"], evaluated[0]["episodes"]) if evaluated else None,
                    sync_error=self._sync_error(),
                    memory_peak=memory.peak(self.learner.policy.device),
                    fresh=settings.starts_at_one(self.step - stale.policy_step),
                    batch_hash=identity.fingerprint(batch),
                    mismatches=identity.mismatches(batch, stale.episodes),
                ),
                evaluations=evaluated,
            )
            self.seconds += time.perf_counter() - ended
            self.step += 1
            yield row
            for number, u in enumerate(updates):
                if broken := non_finite({name: values[0] for name, values in u.scalars.items()}):
                    raise Diverged(f"{broken[0]} is not finite in update {number} of step {self.step - 1}")
        self.recorder.evaluations(self.step, self._evaluate(last=True))

    def _stop(self) -> bool:
        """Whether a stop rule ends the run here; `stopped` says which."""
        rules = self.settings.stop
        if self.step <= self.recorder.recorded:
            # An earlier session came further within the same budget of seconds, and its rows stand.
            rules = rules.model_copy(update={"seconds": None})
        spent = stop.Spent(self.step, self.learner.updates, self.tokens, self.seconds, self.recorder.detection)
        self.stopped = stop.reason(rules, spent)
        return bool(self.stopped)

    def _sample(self) -> None:
        """Fill the queue: `staleness` rollouts wait in it, the newest is by the policy as it is now."""
        learn = self.learner.settings
        for _ in range(max(1, learn.staleness + 1 - len(self.queue))):
            try:
                # Step t trains on rollout t whatever the staleness, so that every arm trains on the same questions.
                with self._synced():
                    rollout = self.sampler.rollout(self.step + len(self.queue), self.step)
            except NonFinite as error:
                raise Diverged(f"sampling failed in step {self.step}: {error}") from error
            batch = self._batch(rollout)
            if learn.old_log_prob == "rollout":
                rollout.log_prob_old = self._log_probs(batch)
            if learn.old_values == "rollout":
                rollout.values = self.learner.values(batch)
            self.queue.append(rollout)

    def _estimate(self, rollout: Rollout) -> Batch:
        """Advantages and returns of the whole batch, by the critic as it is now unless its values were stored."""
        batch, hooks = self._batch(rollout), self.lab.at(self.step)
        batch = replace(batch, sentence=self.sentences.of(batch))
        if self.settings.learn.old_log_prob == "update":
            batch = replace(batch, log_prob_old=self._log_probs(batch))
        if self.reference is not None:
            reference = hooks.reference(self.reference, self.step)
            batch = replace(batch, log_prob_ref=self._log_probs(batch, reference))
        if batch.values is None:
            batch = replace(batch, values=self.learner.values(batch))
        stream = generator(self.settings.seed, PLACEBO, self.step)
        estimated = hooks.estimate(batch, self.step)
        self.packer.open(replace(estimated, group=batch.group))
        return replace(prepare(self.algorithm, estimated, stream), group=batch.group)

    def _batch(self, rollout: Rollout) -> Batch:
        """The rollout as tensors."""
        batch = batch_of(rollout, self.tokenizer.pad_token_id)
        return self.lab.at(rollout.number).batch(batch, rollout.number)

    def _optimise(self, batch: Batch, rollout_step: int) -> list[Evidence]:
        """`epochs` passes over each part that the schedule makes, in `minibatches` shuffled anew each pass."""
        learn, stop = self.learner.settings, self.learner.early_stop
        stream = generator(self.settings.seed, ORDER, self.step)
        done: list[Evidence] = []
        for part in self.algorithm.schedule.parts(batch, self._log_probs):
            for epoch in range(learn.epochs):
                order = torch.randperm(len(part.tokens), generator=stream)
                moves: list[tuple[torch.Tensor, torch.Tensor]] = []
                for rows in order.chunk(learn.minibatches):
                    minibatch = part.rows(rows).trimmed()
                    done.append(self.learner.update(minibatch, epoch, rollout_step))
                    moves.append(((done[-1].log_prob - done[-1].log_prob_old)[0], minibatch.mask))
                    if done[-1].scalars["non_finite"][0] or self.learner.skipped:
                        return done
                if stop.reached(moves):
                    return done
        return done

    def _log_probs(self, batch: Batch, model: PreTrainedModel | None = None) -> torch.Tensor:
        """Log-probs of the batch under `model`, (B, T); without one, under the policy as it is now."""
        if model is None:
            return self.learner.log_probs(batch)
        return trainer_log_probs(model, batch, self.settings.engine.temperature, self.settings.compute)

    def _evaluate(self, last: bool = False) -> list[dict[str, Any]]:
        """Held-out success of the policy as it stands before this step; first and last also without the retriever."""
        settings, world = self.settings.evaluation, self.settings.world
        edge = last or self.step == 0
        if not edge and not (settings.every and self.step % settings.every == 0):
            return []
        with self._synced():
            rows = [evaluate(self.engine, world, settings, self.settings.seed)]
            if edge:
                rows.append(evaluate(self.engine, world, settings, self.settings.seed, search=False))
        return rows

    @contextmanager
    def _synced(self) -> Iterator[None]:
        """Leave the event of a weight sync that did not reach the engine; the run ends with it."""
        try:
            yield
        except StaleWeights as stale:
            said = Event(self.step, "stale_weights", "critical", str(stale), "sync_error", stale.error, stale.tolerance)
            self.recorder.events([said])
            raise

    def _sync_error(self) -> float | None:
        weights = getattr(self.engine, "weights", None)
        return None if weights is None else weights.error

    def save(self, folder: Path) -> Path:
        """Checkpoint the run as it stands between two steps; its rows are on disk before it is."""
        self.recorder.flush()
        progress = checkpoint.Progress(
            self.step, self.learner.updates, self.seconds, self.recorder.history, list(self.queue)
        )
        return checkpoint.save(folder, self.learner, progress)

    def resume(self, folder: Path) -> bool:
        """Go on from the newest checkpoint in `folder`; False when there is none.

        A run with a fault starts again: what the fault remembers is in no checkpoint, and its rows come out the same.
        """
        found = checkpoint.checkpoints(folder)
        if not found or self.settings.fault is not None:
            return False
        self.learner.crew.call("restore", str(found[-1]))
        progress = checkpoint.load(found[-1], self.learner)
        self.step, self.seconds = progress.step, progress.seconds
        self.tokens = sum(int(row.get("tokens_trained") or 0) for row in progress.history)
        self.queue = deque(progress.rollouts)
        self.recorder.replay(progress.history)
        return True
