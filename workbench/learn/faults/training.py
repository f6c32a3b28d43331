"""Bugs of how it is trained: what was configured is not what is in effect."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel

from workbench.learn import networks
from workbench.learn.faults.fault import Fault
from workbench.spec import LearnSettings, OptimizerSettings


@dataclass
class Staleness(Fault):
    """The queue grows by one rollout an iteration, until it holds `strength` more than it should.

    It never shrinks: after the fault's end it is as long as it was.
    """

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """The longer queue."""
        more = min(int(self.strength), step - self.settings.at_step + 1)
        return _with(settings, staleness=settings.staleness + more)


@dataclass
class LearningRate(Fault):
    """lr' = s lr."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """The other learning rate of the policy."""
        return _with(settings, policy=_scaled(settings.policy, "lr", self.strength))


@dataclass
class ClippingOff(Fault):
    """Gradients are clipped to `strength` times the norm that was configured."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """The other norm."""
        return _with(settings, policy=_scaled(settings.policy, "max_grad_norm", self.strength))


@dataclass
class CriticDiverges(Fault):
    """lr' = s lr of the critic."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """The other learning rate of the critic."""
        return _with(settings, critic=_scaled(settings.critic, "lr", self.strength))


@dataclass
class EntropyBonus(Fault):
    """The entropy bonus has another coefficient."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """The other coefficient."""
        return _with(settings, entropy_coef=self.strength)


@dataclass
class ReferenceWrong(Fault):
    """theta' = (1 - s) theta_ref + s theta_0, theta_0 the untrained network that the warm start began from."""

    @cached_property
    def _origin(self) -> PreTrainedModel:
        return networks.create(self.run.policy, self.tokenizer, self.run.warmstart.seed)

    _made: PreTrainedModel | None = None

    @torch.no_grad()
    def reference(self, model: PreTrainedModel, step: int) -> PreTrainedModel:
        """The earlier checkpoint, made once."""
        if self._made is None:
            copied: PreTrainedModel = deepcopy(model)
            for weight, origin in zip(copied.parameters(), self._origin.parameters(), strict=True):
                weight.lerp_(origin.to(weight.device), self.strength)
            self._made = copied
        return self._made


def _with(settings: LearnSettings, **changes: Any) -> LearnSettings:
    return settings.model_copy(update=changes)


def _scaled(settings: OptimizerSettings, name: str, factor: float) -> OptimizerSettings:
    return settings.model_copy(update={name: getattr(settings, name) * factor})
