"""Training: sampling, updating, writing down and where the time of an iteration goes, on the default warm
start.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel

from bench.generate import GenerateEngine
from bench.measure import Comparison, Sample, Share, Side, Target, Work, alternate, timed
from sorl.agent.draws import ORDER, ROLLOUT, generator
from sorl.agent.engines.hf import HFEngine
from sorl.agent.worlds.facts import Facts
from sorl.algorithms import resolve
from sorl.batch import Batch
from sorl.grid.cell import merge
from sorl.learn import networks
from sorl.learn.faults import Fault
from sorl.learn.loop import Trainer
from sorl.learn.networks import Critic, scored
from sorl.learn.rollout import Rollout, batch_of
from sorl.learn.rollouts import Sampler
from sorl.learn.update import Learner
from sorl.learn.warmstart import ensure
from sorl.measures import measure as measure_step
from sorl.measures.evidence import Evidence, Known, Rollouts, StepEvidence
from sorl.objective import Algorithm
from sorl.objective.pipeline import prepare
from sorl.recording.recorder import Recorder
from sorl.spec import EvaluationSettings, LearnSettings, RunSettings

ENDLESS = 1_000_000  # iterations: the benchmark decides when to stop


@dataclass(frozen=True)
class Scene:
    """Settings, the checkpoint that they start from, and a folder for whatever a part writes."""

    settings: RunSettings
    start: Path
    tokenizer: Any
    folder: Path

    def variant(self, algorithm: str) -> RunSettings:
        """The settings with another algorithm."""
        return self.settings.model_copy(update={"algorithm": algorithm})

    def trainer(self, settings: RunSettings, recorder: Recorder) -> Trainer:
        """A trainer at its first step."""
        return Trainer(settings, self.start, recorder, self.tokenizer)


def defaults(threads: int = 1) -> RunSettings:
    """An off-policy run of the default sizes, without end and without held-out evaluation, which no baseline
    does.

    The batch is spelled out, so that figures stay comparable when a default moves.
    """
    return RunSettings(
        algorithm="ppo",
        iterations=ENDLESS,
        learn=LearnSettings(episodes=64, epochs=4, minibatches=4, staleness=0),
        evaluation=EvaluationSettings(every=0, episodes=1),
        threads=threads,
    )


@contextmanager
def scene(settings: RunSettings, cache: Path) -> Iterator[Scene]:
    """The scene in a temporary folder; the warm start comes from `cache`, where the grid keeps its own."""
    torch.set_num_threads(settings.threads)
    start = ensure(settings, cache)
    with tempfile.TemporaryDirectory(prefix="sorl-bench-") as folder:
        yield Scene(settings, start, AutoTokenizer.from_pretrained(start), Path(folder))


def rollout(scene: Scene, rounds: int) -> list[Comparison]:
    """Episodes/s of both engines on the same questions; each samples its own episodes from the same
    distribution.
    """
    settings = scene.settings
    model = networks.load(scene.start)
    world = Facts(settings.world)
    n = settings.learn.episodes
    ours = HFEngine(model, scene.tokenizer, settings.engine)
    baseline = GenerateEngine(model, scene.tokenizer, settings.engine)
    turns: list[float] = []

    def _playing(engine: HFEngine | GenerateEngine) -> Work:
        round_number = len(turns) // 2
        questions = world.questions("train", settings.seed, round_number * n, n)
        stream = generator(settings.seed, ROLLOUT, round_number)

        def play() -> float:
            episodes = engine.rollout(world, questions, list(range(n)), stream)
            turns.append(sum(e.turns for e in episodes) / n)
            return n

        return play

    a, b = alternate(timed(lambda: _playing(ours)), timed(lambda: _playing(baseline)), rounds)
    return [
        Comparison(
            name="rollout",
            unit="episodes/s",
            ours=Side("engine", a),
            baseline=Side("generate() a turn", b),
            target=Target("ratio", 1.3),
            note="world, parsing and retrieval included on both sides",
            facts={"episodes": n, "mean_turns": sum(turns) / len(turns)},
        )
    ]


UPDATED = ("ppo", "st-ppo")  # the base, and the one with the most besides the surrogate


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
    settings = scene.variant(algorithm)
    chosen = resolve(algorithm)
    model = networks.load(scene.start)
    critic = Critic(model)
    learn = settings.learn
    engine = HFEngine(model, scene.tokenizer, settings.engine)
    size = learn.group_size or chosen.group_size
    sampler = Sampler(settings, Facts(settings.world), engine, size, chosen.select, Fault(settings))
    rollout = sampler.rollout(0, 0)
    batch = batch_of(rollout, scene.tokenizer.pad_token_id)
    with torch.no_grad():
        values = critic(batch.tokens)
    old, _ = scored(model, batch, settings.engine.temperature)
    batch = prepare(chosen, replace(batch, log_prob_old=old, values=values))
    stream = generator(settings.seed, ORDER, 0)
    rows = [
        (epoch, part)
        for epoch in range(learn.epochs)
        for part in torch.randperm(len(batch.tokens), generator=stream).chunk(learn.minibatches)
    ]
    return Step(settings, chosen, model, critic, rollout, batch, rows)


def full(step: Step) -> Work:
    """All updates of the step by a fresh learner, and its diagnostics: what a run does between sampling and
    writing.
    """
    model = deepcopy(step.policy)
    temperature = step.settings.engine.temperature
    critic = deepcopy(step.critic) if step.algorithm.critic else None
    learner = Learner(step.algorithm, step.settings.learn, model, critic, temperature)

    def work() -> float:
        updates = [learner.update(step.batch.rows(rows).trimmed(), epoch, 0) for epoch, rows in step.rows]
        rollouts = Rollouts.of(step.rollout.episodes, 0)
        tokens = sum(int(u.mask.sum()) for u in updates)
        measure_step(0, StepEvidence(rollouts, Evidence.stack(updates), tokens_trained=tokens))
        return step.tokens

    return work


def bare(step: Step) -> Work:
    """Forward and backward of both networks over the same minibatches, already cut; no optimizer, no old
    log-probs.
    """
    model = deepcopy(step.policy)
    critic = deepcopy(step.critic)
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


def update(scene: Scene, rounds: int) -> list[Comparison]:
    """Trained tokens/s of both sides, for each of UPDATED; every repetition starts from the same weights."""
    found = []
    for name in UPDATED:
        step = sampled(scene, name)
        with_it = partial(full, step)
        without_it = partial(bare, step)
        a, b = alternate(timed(with_it), timed(without_it), rounds)
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


def mixture(scene: Scene, rounds: int) -> list[Comparison]:
    """Trained tokens/s of a GRPO step by a fresh mixture of experts, and by the dense policy
    that is as wide.
    """
    step = sampled(scene, "grpo")
    policy = scene.settings.policy.model_copy(update={"family": "mixtral"})
    model = networks.create(policy, scene.tokenizer, seed=0)
    old, routes = scored(model, step.batch, scene.settings.engine.temperature)
    other = replace(step, policy=model, batch=replace(step.batch, log_prob_old=old, routes_old=routes))
    a, b = alternate(timed(lambda: full(other)), timed(lambda: full(step)), rounds)
    return [
        Comparison(
            name="mixture",
            unit="tokens/s",
            ours=Side(f"mixtral, {policy.experts_per_token} of {policy.experts} experts a token", a),
            baseline=Side("dense, as wide as the experts that read a token", b),
            target=Target("ratio", 0.5),
            note="the same sequences, all updates of a step",
            facts={"updates": len(step.rows), "trained_tokens": step.tokens},
        )
    ]


class Unrecorded(Recorder):
    """Writes nothing and measures nothing but success: what the cost of recording is measured against."""

    def step(
        self, step: int, evidence: StepEvidence, evaluations: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float | None]:
        """Return the success of the step, unrecorded."""
        success = float(Known(evidence.rollouts).success.mean())
        self._see(step, {"success": success})
        return {"success": success}


STEPS = 2  # a repetition; the buffer is flushed after each, as the recorder's clock would about as often


def logging(scene: Scene, rounds: int) -> list[Comparison]:
    """Iterations/s of two trainers with one seed: all recorded or nothing, and with the black box or without
    it.
    """
    settings = scene.settings
    without = RunSettings.model_validate(merge(settings.model_dump(), {"record": {"batches": {"mb": 0}}}))
    facts = {"algorithm": settings.algorithm, "steps_a_round": STEPS}
    with Recorder(scene.folder / "logging", "logging", settings) as recorder:
        a, b = _alternated(scene, (settings, recorder), (without, Unrecorded(None, "", without)), rounds)
    logging = Comparison(
        name="logging",
        unit="iterations/s",
        ours=Side("recorder on", a),
        baseline=Side("recorder off", b),
        target=Target("ratio", 0.98),
        note="diagnostics, writing and the black box; the same weights at every step",
        facts=facts,
    )
    with (
        Recorder(scene.folder / "boxed", "boxed", settings) as boxed,
        Recorder(scene.folder / "unboxed", "unboxed", without) as unboxed,
    ):
        a, b = _alternated(scene, (settings, boxed), (without, unboxed), rounds)
    box = Comparison(
        name="black box",
        unit="iterations/s",
        ours=Side("batches and weights of every step kept", a),
        baseline=Side("record.batches.mb = 0", b),
        target=Target("ratio", 0.99),
        note="everything else is recorded on both sides",
        facts=facts,
    )
    return [logging, box]


def _alternated(
    scene: Scene, ours: tuple[RunSettings, Recorder], baseline: tuple[RunSettings, Recorder], rounds: int
) -> tuple[list[Sample], list[Sample]]:
    def prepared(settings: RunSettings, recorder: Recorder) -> Work:
        steps = scene.trainer(settings, recorder).steps()

        def train() -> float:
            for _ in range(STEPS):
                next(steps)
            # Inside the time and on this side only: left to its thread, it would run while the other side is
            # timed.
            recorder.flush()
            return STEPS

        return train

    a, b = (prepared(*side) for side in (ours, baseline))
    return alternate(timed(lambda: a), timed(lambda: b), rounds)


TIMED = ("ppo", "grpo")  # with a critic and without


def shares(scene: Scene, rounds: int) -> list[Share]:
    """`rounds` iterations of each of TIMED after a first one; writing in the background is in the total."""
    return [_train(scene, algorithm, rounds) for algorithm in TIMED]


def _train(scene: Scene, algorithm: str, iterations: int) -> Share:
    settings = scene.variant(algorithm)
    with Recorder(scene.folder / f"shares-{algorithm}", f"shares-{algorithm}", settings) as recorder:
        steps = scene.trainer(settings, recorder).steps()
        next(steps)
        began = time.perf_counter()
        rows = []
        stepped = []
        for _ in range(iterations):
            start = time.perf_counter()
            rows.append(next(steps))
            stepped.append(time.perf_counter() - start)
        total = time.perf_counter() - began

    def seconds(name: str) -> float:
        return sum(float(row[f"seconds_{name}"] or 0.0) for row in rows)

    # The recorder runs after the clock of the step has stopped, so its share is what is left.
    return Share(
        algorithm, iterations, total, seconds("rollout"), seconds("update"), sum(stepped) - seconds("total")
    )
