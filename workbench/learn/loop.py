"""The training loop: roll out, old log-probs, values, advantages, epochs of updates, log."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sorl.agent.draws import ORDER, PLACEBO, generator
from sorl.agent.engines import NonFinite, engine_for, listen
from sorl.agent.routing import routers
from sorl.agent.tokenizer import Sentences, Spans
from sorl.agent.worlds import build
from sorl.algorithms import resolve
from sorl.batch import Batch
from sorl.collapse.events import Event
from sorl.learn import checkpoint, checks, faults, networks
from sorl.learn.blackbox import Packer
from sorl.learn.evaluate import evaluate
from sorl.learn.information import measure_information
from sorl.learn.networks import Critic, scored, squared_probs
from sorl.learn.probe import controls
from sorl.learn.pulse import Pulse
from sorl.learn.rollout import Rollout, batch_of
from sorl.learn.rollouts import Sampler
from sorl.learn.update import Learner, non_finite
from sorl.learn.witnesses import Witnesses
from sorl.measures.evidence import Evidence, Known, PromptInformation, Rollouts, StepEvidence
from sorl.objective import prepare
from sorl.recording.recorder import MB, Recorder
from sorl.spec import InputError, RunSettings, StopSettings, check

USUAL_RUNGS = 4  # steps between the checkpoints to fork from, where the settings name no number
BEFORE = 8  # steps before the black box's own first one that a ladder reaches back


class Diverged(ArithmeticError):
    """A loss, a gradient or the policy's output is no longer finite; the run ends here and keeps what it
    logged.
    """


class SelfTestFailed(RuntimeError):
    """The mask self-test failed: what this run would train on is not what it sampled."""


class Trainer:
    """One run. `steps()` yields after every iteration, so that the caller can stop between two of them."""

    def __init__(
        self,
        settings: RunSettings,
        start: Path,
        recorder: Recorder,
        tokenizer: Any,
        pulse: Pulse | None = None,
    ) -> None:
        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.pulse = pulse or Pulse()
        self.recorder = recorder
        self.tokenizer = tokenizer
        algorithm = resolve(settings.algorithm, settings.slots).within(settings.world.completion_budget)
        faults.check(settings, algorithm)
        self.algorithm = algorithm
        self.group_size = recorder.group = settings.learn.group_size or algorithm.group_size
        recorder.replay([])  # its collapse rule depends on the group size
        self.learner = self._load_learner(start)
        self.sentences = Sentences(tokenizer)
        self.reference = self._load_reference(start) if algorithm.needs_reference else None
        self.fault = faults.Fault(settings, self.learner.policy, tokenizer)
        self.pulse.part("starting the sampler")
        self.engine = engine_for(self.learner.policy, tokenizer, settings.engine, settings.wording)
        world = build(settings.world)
        select = algorithm.select
        self.sampler = Sampler(settings, world, self.engine, self.group_size, select, self.fault)
        self.sampler.report = self._say_sampled
        listen(self.engine, self._say_sampled)
        self.packer = Packer(settings, self.learner)
        self.witnesses = Witnesses(self.learner) if settings.record.witnesses else None
        self._check_routing()
        self.queue: deque[Rollout] = deque()
        self.step = 0
        self.tokens = 0  # trained on so far, each epoch counted
        self.seconds = 0.0
        self.clock: dict[str, float] = defaultdict(float)  # seconds of this iteration by part
        self.stopped = ""  # why training ended before its last iteration

    def _load_learner(self, start: Path) -> Learner:
        """The policy and its critic, ready for the first update."""
        self.pulse.part("loading the model")
        settings = self.settings
        model = networks.load(start, settings.compute)
        critic = Critic(model) if self.algorithm.critic else None
        learner = Learner(
            self.algorithm,
            settings.learn,
            model,
            critic,
            settings.engine.temperature,
            compute=settings.compute,
        )
        learner.pulse = self.pulse
        learner.planned = settings.planned_iterations * settings.learn.epochs * settings.learn.minibatches
        learner.probe.control = controls(self.tokenizer)
        learner.spans = Spans(self.tokenizer)
        return learner

    def _load_reference(self, start: Path) -> PreTrainedModel:
        self.pulse.part("loading the reference")
        return networks.load(start, self.settings.compute).requires_grad_(False)

    def steps(self) -> Iterator[dict[str, Any]]:
        """Train to the end; yields the measured row of each step. Raises Diverged after that of the step that
        broke.
        """
        while self.step < self.settings.iterations and not self._stop():
            self.pulse.step(self.step, self.settings.iterations)
            with self._timed("evaluation"):
                heldout = self._evaluate()
            with self._timed("rollout"):
                if self.witnesses:
                    self.pulse.part("fingerprints of the weights")
                    self.witnesses.start()
                sampled, rollout = self._roll_out()
            with self._timed("evaluation"):
                information = self._measure_information(sampled)
            with self._timed("update"):
                batch = self._old_log_probs(rollout)
                batch = self._values(batch)
                batch = self._advantages(batch)
                updates = self._optimise(batch, rollout.policy_step)
                if self.witnesses:
                    self.pulse.part("fingerprints of the weights")
                    self.witnesses.finish()
            row = self._log(sampled, rollout, batch, updates, heldout, information)
            self.step += 1
            yield row
            for number, u in enumerate(updates):
                if broken := non_finite({name: values[0] for name, values in u.scalars.items()}):
                    raise Diverged(f"{broken[0]} is not finite in update {number} of step {self.step - 1}")
        self.pulse.step(None)
        self.recorder.evaluations(self.step, self._evaluate(last=True))

    def _roll_out(self) -> tuple[Rollout, Rollout]:
        """Fill the queue and take one out: the rollout sampled last, and the one to train on, `staleness`
        older.
        """
        learn = self.fault("learn", self.settings.learn, self.step)
        self.learner.follow(learn)
        for _ in range(max(1, learn.staleness + 1 - len(self.queue))):
            self.pulse.part("rollout", learn.episodes, "episodes ended")
            # step t trains on rollout t whatever the staleness, so that every arm trains on the same
            # questions
            try:
                rollout = self.sampler.rollout(self.step + len(self.queue), self.step)
            except NonFinite as error:
                raise Diverged(f"sampling failed in step {self.step}: {error}") from error
            batch = self._batch(rollout)
            if learn.old_log_prob == "rollout":
                rollout.log_prob_old, rollout.routes_old = self._scored(batch)
            if learn.old_values == "rollout":
                rollout.values = self.learner.values(batch)
            self.queue.append(rollout)
        sampled = self.queue[-1]
        if self.witnesses:
            self.witnesses.sampler(self.sampler.sampled_by, sampled.policy_step)
        return sampled, self.fault("take", self.queue.popleft(), self.step)

    def _old_log_probs(self, rollout: Rollout) -> Batch:
        """The rollout as a batch, with log-probs under pi_old and the reference, (B, T)."""
        batch = self._batch(rollout)
        batch = replace(batch, sentence=self.sentences.of(batch))
        if self.settings.learn.old_log_prob == "update":
            old, routes = self._scored(batch)
            batch = replace(batch, log_prob_old=old, routes_old=routes)
        if "squared_probs" in self.algorithm.inputs:
            batch = replace(batch, squared_probs=self._squared_probs(batch))
        if self.reference is not None:
            reference = self.fault("reference", self.reference, self.step)
            if self.witnesses:
                self.witnesses.reference(reference)
            batch = replace(batch, log_prob_ref=self._log_probs(batch, reference))
        return batch

    def _values(self, batch: Batch) -> Batch:
        """Values (B, T) by the critic as it is now, unless they were stored with the rollout."""
        return batch if batch.values is not None else replace(batch, values=self.learner.values(batch))

    def _advantages(self, batch: Batch) -> Batch:
        """Advantages and returns of the whole batch, (B, T)."""
        self.pulse.part("advantages")
        self.packer.open(batch)
        estimated = self.fault("estimate", batch, self.step)
        stream = generator(self.settings.seed, PLACEBO, self.step)
        return replace(prepare(self.algorithm, estimated, stream), group=batch.group)

    def _optimise(self, batch: Batch, rollout_step: int) -> list[Evidence]:
        """Make `epochs` passes over each part of the schedule, in `minibatches` that are shuffled for each
        pass.
        """
        learn = self.learner.settings
        early_stop = self.learner.early_stop
        stream = generator(self.settings.seed, ORDER, self.step)
        most_parts = self.algorithm.schedule.updates(self.settings.world.max_turns)[1]
        most_updates = most_parts * learn.epochs * learn.minibatches
        done: list[Evidence] = []
        for part in self.algorithm.schedule.parts(batch, self._log_probs):
            self.pulse.part("update", most_updates)
            for epoch in range(learn.epochs):
                order = torch.randperm(len(part.tokens), generator=stream)
                moves: list[tuple[Tensor, Tensor]] = []
                for rows in order.chunk(learn.minibatches):
                    self.pulse.count(len(done) + 1)
                    minibatch = part.rows(rows).trimmed()
                    done.append(self.learner.update(minibatch, epoch, rollout_step))
                    seen = Known(done[-1])
                    moves.append(((seen.log_prob - seen.log_prob_old)[0], minibatch.mask))
                    if done[-1].scalars["non_finite"][0] or self.learner.skipped:
                        return done
                if early_stop.reached(moves):
                    return done
        return done

    def _evaluate(self, last: bool = False) -> list[dict[str, Any]]:
        """Held-out success of the policy before this step; first and last also without the retriever."""
        every = self.settings.evaluation.every
        edge = last or self.step == 0
        if not edge and not (every and self.step % every == 0):
            return []
        rows = []
        for search in (True, False)[: 1 + edge]:
            what = "last evaluation" if last else "evaluation"
            what += "" if search else " without search"
            self.pulse.part(what, self.settings.evaluation.episodes, "episodes")
            rows.append(evaluate(self.engine, self.settings, search=search))
        return rows

    def _measure_information(self, sampled: Rollout) -> PromptInformation | None:
        """What the first turns of the fresh rollouts say about their prompts; None between measurements."""
        every = self.settings.learn.information_every
        if not every or self.step % every:
            return None
        self.pulse.part("information of turns about prompts")
        learner = self.learner
        return measure_information(
            learner.policy, sampled.first, self.tokenizer.pad_token_id, learner.temperature, learner.compute
        )

    def _log(
        self,
        sampled: Rollout,
        rollout: Rollout,
        batch: Batch,
        updates: list[Evidence],
        heldout: list[dict[str, Any]],
        information: PromptInformation | None,
    ) -> dict[str, Any]:
        self.pulse.part("recording")
        began = time.perf_counter()
        seconds = {**self.clock, "total": sum(self.clock.values())}
        self.clock.clear()
        tokens = sum(int(u.mask.sum()) for u in updates)
        self.tokens += tokens
        self.recorder.batch(self.step, self.packer.close(batch, updates))
        if self.witnesses:
            self.witnesses.record(self.recorder, self.step, checks.checksums(batch, rollout.episodes))
        weights = getattr(self.engine, "weights", None)
        stale = rollout.episodes is not sampled.first
        evidence = StepEvidence(
            rollouts=Rollouts.of(sampled.first, sampled.policy_step),
            trained=Rollouts.of(rollout.episodes, rollout.policy_step) if stale else None,
            episodes_sampled=sampled.sampled,
            updates=Evidence.stack(updates),
            seconds=seconds,
            tokens_trained=tokens,
            heldout=(heldout[0]["success"], heldout[0]["episodes"]) if heldout else None,
            sync_error=None if weights is None else weights.error,
            memory_peak=networks.memory_peak(self.learner.policy.device),
            fresh=self.settings.starts_at_one(self.step - rollout.policy_step),
            batch_hash=checks.fingerprint(batch),
            mismatches=checks.mismatches(batch, rollout.episodes),
            information=information,
        )
        row = self.recorder.step(self.step, evidence, heldout)
        self.seconds += seconds["total"] + time.perf_counter() - began
        return row

    def _say_sampled(self, tokens: int, ended: int, turn: int) -> None:
        detail = f"turn {turn} of {self.settings.world.max_turns}, {tokens:,} tokens"
        self.pulse.count(ended, detail=detail)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.clock[part] += time.perf_counter() - began

    def _batch(self, rollout: Rollout) -> Batch:
        batch = batch_of(rollout, self.tokenizer.pad_token_id)
        staleness = torch.full_like(batch.length, self.step - rollout.policy_step)
        return self.fault("batch", replace(batch, staleness=staleness), rollout.number)

    def _log_probs(self, batch: Batch, model: PreTrainedModel | None = None) -> Tensor:
        """Return log-probs of the batch under `model`, (B, T); without one, under the policy as it is now."""
        if model is None:
            return self._scored(batch)[0]
        self.pulse.part("log-probs of the reference")
        told = self.pulse.count
        return scored(model, batch, self.learner.temperature, self.learner.compute, report=told)[0]

    def _scored(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Log-probs (B, T) of the batch under the policy as it is now, and the experts that its routers
        choose.
        """
        learner = self.learner
        replay = self.algorithm.routing.replayed(batch)
        self.pulse.part("old log-probs")
        return scored(
            learner.policy, batch, learner.temperature, learner.compute, replay, report=self.pulse.count
        )

    def _squared_probs(self, batch: Batch) -> Tensor:
        """Sums of squared probabilities under the policy as it is now, (B, T)."""
        learner = self.learner
        self.pulse.part("squared probabilities")
        return squared_probs(
            learner.policy, batch, learner.temperature, learner.compute, report=self.pulse.count
        )

    def _check_routing(self) -> None:
        """Raise InputError where the routes that are to be replayed are not recorded, or a pass could not
        repeat them.

        A dense model has none, and its replay changes nothing.
        """
        kind = self.algorithm.routing.kind
        settings = self.settings
        if kind == "none" or not routers(self.learner.policy):
            return
        if kind == "r2" and settings.learn.old_log_prob == "behaviour":
            raise InputError(
                'slots.routing = "r2" repeats the pass that takes the old log-probs, and '
                'learn.old_log_prob = "behaviour" takes none; set it to "rollout" or "update"'
            )
        if kind == "r3" and settings.engine.kind != "hf":
            raise InputError(
                'slots.routing = "r3" needs the experts of the sampler, which engine.kind = "vllm" does not '
                'hand over: set engine.kind = "hf", or slots.routing = "r2"'
            )
        if settings.compute.gradient_checkpointing:
            raise InputError(
                f'slots.routing = "{kind}" and compute.gradient_checkpointing exclude each other: the '
                "activations are recomputed after the pass whose experts are replayed"
            )

    def _stop(self) -> bool:
        """Return whether a stop rule ends the run here; `stopped` says which."""
        # Where an earlier session came further within the same budget of seconds, its rows stand.
        seconds = 0.0 if self.step <= self.recorder.recorded else self.seconds
        spent = {"updates": self.learner.updates, "tokens": self.tokens, "seconds": seconds}
        self.stopped = stop_reason(self.settings.stop, self.step, self.recorder.watch.detection, spent)
        return bool(self.stopped)

    def self_test(self) -> None:
        """Run the mask self-test; raises SelfTestFailed, and leaves the event, when it fails."""
        self.pulse.part("mask self-test")
        asked = self.algorithm, self.group_size, self.learner.policy, self.tokenizer.pad_token_id
        if problem := checks.problem(*asked, self.settings.engine.temperature):
            failed = check("mask")
            self.recorder.events([Event(self.step, failed.kind, failed.severity, problem)])
            raise SelfTestFailed(f"mask self-test: {problem}")

    def save(self, folder: Path, last: int = 2, pinned: Collection[int] = ()) -> None:
        """Checkpoint the run as it stands between two steps; its rows are on disk before it is."""
        self.pulse.part("writing a checkpoint")
        self.recorder.flush()
        progress = checkpoint.Progress(self.step, self.seconds, self.recorder.history, list(self.queue))
        checkpoint.save(folder, self.learner, progress, last, pinned)

    @property
    def steps_between_rungs(self) -> int:
        """Steps between the checkpoints to fork from; 0: none are kept."""
        record = self.settings.record
        if record.ladder is not None:
            return record.ladder
        weights = sum(p.numel() * p.element_size() for p in self.learner.policy_parameters)
        return USUAL_RUNGS if weights <= record.batches.weights_mb * MB else 0

    def save_rung(self, folder: Path) -> None:
        """Put a checkpoint on the ladder to fork from: the newest rungs stay, and those before a fall."""
        falling = self.recorder.falling
        pinned = range(min(falling) - BEFORE, max(falling) + 1) if falling else ()
        last = 1 + 2 * BEFORE // self.steps_between_rungs
        with suppress(OSError):  # of a full disk the checkpoints say so
            self.save(folder, last, pinned)

    def resume(self, folder: Path) -> bool:
        """Resume from the newest checkpoint in `folder`; False without one.

        A run with a fault starts again, a fork with one from its parent's state: what the fault remembers is
        in no checkpoint, and the rows come out the same.
        """
        found = checkpoint.checkpoints(folder)
        if not found or (self.settings.fault is not None and self.settings.fork is None):
            return False
        self.pulse.part("loading a checkpoint")
        progress = checkpoint.load(found[-1], self.learner)
        self.step = progress.step
        self.seconds = progress.seconds
        self.tokens = sum(int(row.get("tokens_trained") or 0) for row in progress.history)
        self.queue = deque(progress.rollouts)
        fork = self.settings.fork
        learn = self.fault("learn", self.settings.learn, self.step)
        if fork is not None and self.step == fork.at_step and len(self.queue) > learn.staleness:
            # fresher than the parent: filled again by the policy as it is, as at the start of a run
            self.queue.clear()
        self.recorder.replay(progress.history)
        return True


def stop_reason(stop: StopSettings, steps: int, detection: int | None, spent: dict[str, float]) -> str:
    """Why training ends before iteration `steps`; empty while it continues. `detection`: step of the
    collapse, if any.

    `spent` are updates, tokens and seconds of all sessions; the iteration that crosses a budget is completed.
    """
    since = None if detection is None else steps - 1 - detection
    if stop.after_collapse is not None and since is not None and since >= stop.after_collapse:
        when = f"{since} iterations after" if since else "in the iteration of"
        return f"stopped {when} the collapse detected at step {detection} (stop.after_collapse)"
    for name, unit in (
        ("updates", "optimizer updates"),
        ("tokens", "trained tokens"),
        ("seconds", "s of training"),
    ):
        budget = getattr(stop, name)
        if budget is not None and spent[name] >= budget:
            return f"stopped by its budget of {budget:,} {unit} (stop.{name})"
    return ""
