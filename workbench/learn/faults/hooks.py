"""The hooks that the trainer calls; a fault overrides one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from workbench.agent.engines import Engine
    from workbench.agent.episode import Episode
    from workbench.agent.worlds import World
    from workbench.batch import Batch
    from workbench.learn.rollouts import Rollout
    from workbench.spec import FaultSettings, LearnSettings


class Hooks:
    """No bug. `step` is the iteration in which the hook is called; the batch's is that which trains on it."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """Return what the step is carried out with, whatever was configured."""
        return settings

    def engine(self, engine: Engine, step: int) -> Engine:
        """Return what samples the rollouts (held-out evaluation has the engine itself)."""
        return engine

    def world(self, world: World, step: int) -> World:
        """Return what the rollouts are sampled in (held-out evaluation has the world itself)."""
        return world

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """Return what the sampler hands over."""
        return episodes

    def take(self, rollout: Rollout, step: int) -> Rollout:
        """Return what comes out of the queue."""
        return rollout

    def batch(self, batch: Batch, step: int) -> Batch:
        """Episodes as tensors, before anything is computed from them."""
        return batch

    def estimate(self, batch: Batch, step: int) -> Batch:
        """Return what advantages are estimated from, with the log-probs; the groups are only used for that."""
        return batch

    def reference(self, model: PreTrainedModel, step: int) -> PreTrainedModel:
        """Return the frozen reference of the KL term."""
        return model


class Lab:
    """Says which hooks are in effect: those of a fault from `lead` iterations before its first step on, else none."""

    def __init__(self, fault: Hooks | None = None, settings: FaultSettings | None = None, lead: int = 0) -> None:
        self._none, self._fault, self._settings, self._lead = Hooks(), fault, settings, lead

    def at(self, step: int) -> Hooks:
        """Return the hooks of iteration `step`."""
        if self._fault is None or self._settings is None:
            return self._none
        begin, end = self._settings.at_step - self._lead, self._settings.until_step
        return self._fault if step >= begin and (end is None or step < end) else self._none
