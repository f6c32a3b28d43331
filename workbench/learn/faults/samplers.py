"""Bugs of what samples: old weights, rounded weights, another temperature."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.agent.engines import Engine
from workbench.agent.engines.choose import engine_for
from workbench.agent.episode import Episode, collate
from workbench.agent.wording import WORDINGS
from workbench.agent.worlds import Question, World
from workbench.learn.faults.fault import Fault
from workbench.learn.rollouts import trainer_log_probs


@dataclass
class _Copy(Fault):
    """A sampler with a copy of the policy of its own."""

    @cached_property
    def _model(self) -> PreTrainedModel:
        copied: PreTrainedModel = deepcopy(self.policy)
        return copied.requires_grad_(False)

    @cached_property
    def _engine(self) -> Engine:
        return engine_for(self._model, self.tokenizer, self.run.engine, WORDINGS[self.run.wording])


@dataclass
class StaleWeights(_Copy):
    """Samples from the weights of iteration max(at_step - 1, step - strength)."""

    _weights: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def engine(self, engine: Engine, step: int) -> Engine:
        """The engine itself until the first sync is missed."""
        first, age = max(self.settings.at_step - 1, 0), int(self.strength)
        if step not in self._weights and (step == first or step + age < self.run.iterations):
            self._weights[step] = {name: x.detach().clone() for name, x in self.policy.state_dict().items()}
        if step < self.settings.at_step:
            return engine
        wanted = max(first, step - age)
        self._weights = {at: kept for at, kept in self._weights.items() if at >= wanted}
        self._model.load_state_dict(self._weights[wanted])
        return self._engine


@dataclass
class LowPrecision(_Copy):
    """Samples from weights rounded to `strength` bits of mantissa."""

    @torch.no_grad()
    def engine(self, engine: Engine, step: int) -> Engine:
        """The engine of the rounded copy."""
        for copied, weight in zip(self._model.parameters(), self.policy.parameters(), strict=True):
            copied.copy_(rounded(weight, int(self.strength)))
        return self._engine


def rounded(x: Tensor, bits: int) -> Tensor:
    """`x` to the nearest number with `bits` bits of mantissa after the leading one, ties to even."""
    mantissa, exponent = torch.frexp(x)
    scale = 2.0 ** (bits + 1)  # frexp's mantissa is in [1/2, 1)
    return torch.ldexp((mantissa * scale).round() / scale, exponent)


@dataclass
class Temperature(Fault):
    """Samples at `strength` times the temperature that the trainer computes log-probs at."""

    @cached_property
    def _engine(self) -> Engine:
        hot = self.run.engine.model_copy(update={"temperature": self.run.engine.temperature * self.strength})
        return engine_for(self.policy, self.tokenizer, hot, WORDINGS[self.run.wording])

    def engine(self, engine: Engine, step: int) -> Engine:
        """The engine of the other temperature."""
        return self._engine


@dataclass
class TemperatureHidden(Temperature):
    """The same, with log-probs reported at the temperature that was configured."""

    def engine(self, engine: Engine, step: int) -> Engine:
        """The engine of the other temperature, which reports as if it had the right one."""
        return _Reporting(self, super().engine(engine, step))


@dataclass
class _Reporting:
    fault: Fault
    engine: Engine

    def rollout(
        self,
        world: World,
        questions: Sequence[Question],
        groups: Sequence[int],
        generator: torch.Generator,
        greedy: bool = False,
    ) -> list[Episode]:
        """The engine's episodes with the log-probs of the configured temperature."""
        episodes = self.engine.rollout(world, questions, groups, generator, greedy)
        batch = collate(episodes, self.fault.tokenizer.pad_token_id)
        # In float64: by the trainer's own arithmetic they would agree to the last bit, as two programs never do.
        exact: Any = deepcopy(self.fault.policy)
        found = trainer_log_probs(exact.double(), batch, self.fault.run.engine.temperature)
        return [replace(e, log_prob=row[: len(e.tokens)].tolist()) for e, row in zip(episodes, found, strict=True)]
