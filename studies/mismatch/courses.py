"""Real training of small policies, with the weights of every step: what trainer and sampler are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from sorl.agent.tokenizer import build_tokenizer
from sorl.learn import networks
from sorl.learn.loop import Trainer
from sorl.learn.warmstart import ensure
from sorl.recording.recorder import Recorder
from sorl.spec import RunSettings

STEPS = 26
DENSE = "llama"
MIXTURE = "mixtral"
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Course:
    """A training run: the weights before each step and after the last, (STEPS + 1) of them."""

    settings: RunSettings
    start: Path  # folder of the warm start
    weights: list[Weights]

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return int(next(iter(self.weights[0].values())).shape[0])

    @cached_property
    def _models(self) -> dict[str, PreTrainedModel]:
        """A model for each of two programs; loading one takes longer than a rollout."""
        names = ("sampler", "trainer")
        return {name: networks.load(self.start, self.settings.compute).train(False) for name in names}

    def sampler(self, step: int) -> PreTrainedModel:
        """The sampler's model with the weights before a step, until it is asked for again."""
        return self._with_weights("sampler", step)

    def trainer(self, step: int) -> PreTrainedModel:
        """The trainer's model with the weights before a step."""
        return self._with_weights("trainer", step)

    def _with_weights(self, name: str, step: int) -> PreTrainedModel:
        model = self._models[name]
        model.load_state_dict(self.weights[step])
        return model


def settings_of(seed: int, family: str) -> RunSettings:
    """The settings of a course: network, warm start and learning rate vary with the seed."""
    draw = np.random.default_rng([seed, family == MIXTURE])
    policy: dict[str, Any] = {"hidden": 64, "layers": 3, "heads": 4, "mlp": 128, "family": family}
    rate = math.exp(draw.uniform(math.log(5e-4), math.log(2e-3)))
    return RunSettings.model_validate(
        {
            "seed": seed,
            "algorithm": "grpo",
            "policy": policy,
            "iterations": STEPS,
            "world": {"entities": 16, "relations": 6, "hops": [0.4, 0.4, 0.2], "max_turns": 5},
            "warmstart": {"steps": int(draw.integers(90, 200)), "batch": 32},
            "learn": {
                "episodes": 32,
                "epochs": 1,
                "minibatches": 2,
                "policy": {"kind": "adamw", "lr": rate, "max_grad_norm": 0.3},
            },
            "evaluation": {"every": 0, "episodes": 16},
            "record": {"checkpoint_every": 0},
        }
    )


def train(seed: int, family: str, cache: Path) -> Course:
    """Train a course, or take it from the cache."""
    settings = settings_of(seed, family)
    start = ensure(settings, cache)
    file = cache / f"course-{family}-{seed}.pt"
    if not file.is_file():
        torch.save(_weights(settings, start), file)
    return Course(settings, start, torch.load(file, weights_only=True))


def _weights(settings: RunSettings, start: Path) -> list[Weights]:
    trainer = Trainer(settings, start, Recorder(None, "course", settings), build_tokenizer())
    kept = [_copy(trainer.learner.policy)]
    kept.extend(_copy(trainer.learner.policy) for _ in trainer.steps())
    return kept


def _copy(model: torch.nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
