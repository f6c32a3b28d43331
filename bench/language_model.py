"""A pretrained language model, sampled and trained without padding, next to the same passes with padding, and
whole iterations next to TRL's.

All sides have the weights that `experiments/llm.toml` starts from. With padding all rows stand at the same
place, wait for those that read, and are trained as rectangles of tokens. TRL takes part where it is
installed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from bench.measure import Comparison, Side, Target, Work, alternate, timed
from bench.processes import missing_trl, trl
from bench.training import ENDLESS, Scene
from sorl.agent import ragged
from sorl.agent.draws import ROLLOUT, generator
from sorl.agent.engines.hf import HFEngine
from sorl.agent.episode import Episode, collate
from sorl.agent.worlds import build
from sorl.grid import config
from sorl.grid.folder import History
from sorl.learn import networks
from sorl.learn.networks import scored, with_measured_precision
from sorl.learn.warmstart import ensure, tokenizer_of
from sorl.spec import EvaluationSettings, InputError, RunSettings

GRID = Path(__file__).parents[1] / "experiments" / "llm.toml"
BAR = 3.0  # times as fast as with padding
TRAINED = 8  # rows of an update
GROUP = 8  # rollouts a prompt where the algorithm decides


def settings_of_experiment() -> RunSettings:
    """The settings of the experiment's first arm. Raises InputError where its model was not made."""
    settings = config.load(GRID, [], History(Path("runs")), []).cells[0].settings
    if not Path(str(settings.model)).is_dir():
        raise InputError(f"no folder '{settings.model}': `make llm` makes it")
    return settings


class Subject:
    """The model of the experiment, and the episodes that it has sampled."""

    def __init__(self, threads: int) -> None:
        settings = with_measured_precision(settings_of_experiment())
        self.settings = settings.model_copy(update={"threads": threads})
        self.start = ensure(self.settings, Path("runs") / ".cache")
        self.tokenizer = tokenizer_of(self.start)
        self.model = networks.load(self.start, settings.compute)
        self.engine = HFEngine(self.model, self.tokenizer, settings.engine, settings.wording)
        self.world = build(settings.world)
        group = settings.learn.group_size or GROUP
        prompts = self.world.questions("train", settings.seed, 0, settings.learn.episodes // group)
        self.questions = [prompts[number // group] for number in range(len(prompts) * group)]
        self.batch = collate(self._roll_out(), self.tokenizer.pad_token_id)

    def _roll_out(self) -> list[Episode]:
        seed = self.settings.seed
        groups = [question.id for question in self.questions]
        return self.engine.rollout(self.world, self.questions, groups, generator(seed, ROLLOUT, 0))

    def sample_episodes(self) -> float:
        """Sample a step's episodes; returns the tokens that the policy wrote."""
        return sum(sum(episode.written) for episode in self._roll_out())

    def take_log_probs(self) -> float:
        """Take the log-probs of a step's episodes; returns their tokens."""
        scored(self.model, self.batch, self.settings.engine.temperature, self.settings.compute)
        return float(self.batch.length.sum())

    def train(self) -> float:
        """A forward and a backward pass over some rows; returns their tokens."""
        few = self.batch.rows(torch.arange(TRAINED)).trimmed()
        self.model.zero_grad()
        with networks.autocast(self.model.device, self.settings.compute):
            log_probs, _ = networks.log_probs(self.model, few.tokens, where=few.mask)
        torch.where(few.mask, log_probs, 0).sum().backward()
        return float(few.length.sum())

    def facts(self) -> dict[str, Any]:
        """The sizes that the numbers depend on."""
        length = self.batch.length
        return {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "vocabulary": len(self.tokenizer),
            "precision": self.settings.compute.dtype,
            "episodes": len(self.questions),
            "mean_sequence": float(length.float().mean()),
            "longest_sequence": int(length.max()),
        }


def measure(scene: Scene, rounds: int) -> list[Comparison]:
    """Tokens/s of sampling, of log-probs and of an update's forward and backward pass; of whole iterations
    next to TRL's where it is installed.
    """
    subject = Subject(scene.settings.threads)
    parts = {
        "sampling": subject.sample_episodes,
        "log-probs": subject.take_log_probs,
        "update": subject.train,
    }
    found = [_compared(name, work, rounds, subject.facts()) for name, work in parts.items()]
    if missing_trl() is None:
        folder = scene.folder / "llm"
        folder.mkdir()
        stage = Scene(_without_end(subject.settings), subject.start, subject.tokenizer, folder)
        found += trl(stage, rounds, "language model, iteration", warm_up=1)  # a minute each
    return found


def _without_end(settings: RunSettings) -> RunSettings:
    """The experiment's settings with fresh rollouts, as TRL takes them, and without what no baseline does."""
    return settings.model_copy(
        update={
            "iterations": ENDLESS,
            "learn": settings.learn.model_copy(update={"staleness": 0}),
            "evaluation": EvaluationSettings(every=0, episodes=1),
            "record": settings.record.model_copy(update={"checkpoint_every": 0}),
        }
    )


def _compared(name: str, work: Work, rounds: int, facts: dict[str, Any]) -> Comparison:
    """The same work without padding and with it, in turn."""
    ours, baseline = alternate(timed(lambda: work), timed(lambda: _padded(work)), rounds)
    return Comparison(
        name=f"language model, {name}",
        unit="tokens/s",
        ours=Side("packed rows", ours),
        baseline=Side("padded rows", baseline),
        target=Target("ratio", BAR),
        note="the same weights and questions on both sides",
        facts=facts,
    )


def _padded(work: Work) -> Callable[[], float]:
    """The work as it is where rows cannot be packed."""

    def with_padding() -> float:
        with patch.object(ragged, "supports", lambda _: False):
            return work()

    return with_padding
