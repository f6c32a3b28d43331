"""How much a run samples and trains, as far as its settings say: a number, or the least and the most.

What depends on the episodes or on how far the policy moves is a range: updates one turn after the other, groups that
are drawn again, steps that end early.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from workbench.spec import RunSettings


@dataclass(frozen=True)
class Range:
    """The least and the most of something; the same number twice where the settings fix it."""

    low: int
    high: int

    @property
    def exact(self) -> bool:
        """Whether the settings fix it."""
        return self.low == self.high

    def __format__(self, spec: str) -> str:
        return format(self.low, spec) if self.exact else f"{format(self.low, spec)} to {format(self.high, spec)}"


def iterations(settings: RunSettings, algorithm: Any) -> Range:
    """Iterations of a whole run, within its budget of updates."""
    budget, step = settings.stop.updates, updates_a_step(settings, algorithm)
    if budget is None:
        return Range(settings.iterations, settings.iterations)
    slow, fast = (min(settings.iterations, math.ceil(budget / n)) for n in (step.low, step.high))
    return Range(fast, slow)


def rollouts(settings: RunSettings, algorithm: Any) -> Range:
    """Episodes that a whole run trains on: iterations x episodes."""
    found, episodes = iterations(settings, algorithm), settings.learn.episodes
    return Range(found.low * episodes, found.high * episodes)


def sampled(settings: RunSettings, algorithm: Any) -> Range:
    """Episodes that a whole run samples, those drawn again included; what first fills a queue of stale ones is not."""
    found = rollouts(settings, algorithm)
    return Range(found.low, found.high * algorithm.select.rounds)


def updates_a_step(settings: RunSettings, algorithm: Any) -> Range:
    """Optimizer updates of one iteration: epochs x minibatches x what the schedule makes of a minibatch.

    At least one where a rule may end the step early.
    """
    learn = settings.learn
    least, most = algorithm.schedule.updates(settings.world.max_turns)
    ends_early = learn.target_kl is not None or algorithm.early_stop.acts
    stages = learn.epochs * learn.minibatches
    return Range(1 if ends_early else stages * least, stages * most)


def updates(settings: RunSettings, algorithm: Any) -> Range:
    """Optimizer updates of a whole run; a step that crosses the budget of updates is completed."""
    budget, step = settings.stop.updates, updates_a_step(settings, algorithm)
    if step.exact or budget is None:
        found = iterations(settings, algorithm)
        return Range(found.low * step.low, found.high * step.high)
    least, most = settings.iterations * step.low, settings.iterations * step.high
    return Range(min(least, budget), min(most, budget + step.high - 1))
