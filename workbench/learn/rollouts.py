"""Rollouts and the staleness queue: train on what the policy sampled n iterations ago."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

import torch

from sorl.agent.draws import ROLLOUT, generator
from sorl.agent.engines import Engine, Report, listen, unheard
from sorl.agent.episode import Episode
from sorl.agent.worlds import World
from sorl.learn.faults import Fault
from sorl.learn.rollout import Rollout
from sorl.objective.select import Select
from sorl.spec import RunSettings

FURTHER = 1 << 40  # first question of the second draw of a rollout: no run has so many rollouts


def _numbered(groups: Sequence[list[Episode]]) -> list[Episode]:
    """The episodes of all groups, each with the place of its group."""
    episodes = []
    for number, group in enumerate(groups):
        episodes += [replace(episode, group=number) for episode in group]
    return episodes


@dataclass
class Sampler:
    """Asks questions in a fixed order and lets the engine answer them."""

    settings: RunSettings
    world: World
    engine: Engine
    group_size: int
    select: Select
    fault: Fault
    sampled_by: Engine | None = None  # what the last draw came from
    report: Report = unheard

    def rollout(self, number: int, policy_step: int) -> Rollout:
        """Rollout `number`: its questions depend on the seed and the number alone, so arms and resumes see
        the same.

        The selection may replace prompt groups by groups of further questions; what its last round lacks
        stays.
        """
        drawn = self._draw(number, 0, policy_step)
        rollout = Rollout(number, policy_step, drawn, first=drawn, sampled=len(drawn))
        wanted, unwanted = self._sorted(drawn)
        enough = len(wanted) + len(unwanted)
        again = 0
        while len(wanted) < enough and (again := again + 1) < self.select.rounds:
            drawn = self._draw(number, again, policy_step)
            rollout.sampled += len(drawn)
            wanted += self._sorted(drawn)[0]
        if rollout.sampled > len(rollout.first):
            rollout.episodes = _numbered([*wanted, *unwanted][:enough])
        return rollout

    def _draw(self, number: int, again: int, step: int) -> list[Episode]:
        engine = self.fault("engine", self.engine, step)
        self.sampled_by = engine
        listen(engine, self.report)
        world = self.fault("world", self.world, step)
        prompts = self.settings.learn.episodes // self.group_size
        seed = self.settings.seed
        questions = world.questions("train", seed, number * prompts + again * FURTHER, prompts)
        groups = [i // self.group_size for i in range(len(questions) * self.group_size)]
        stream = generator(seed, ROLLOUT, number, *([again] if again else []))
        episodes = engine.rollout(world, [questions[i] for i in groups], groups, stream)
        return self.fault("episodes", episodes, step)

    def _sorted(self, episodes: list[Episode]) -> tuple[list[list[Episode]], list[list[Episode]]]:
        """Return the prompt groups that the selection wants, and the others."""
        rewards = torch.tensor([e.reward for e in episodes])
        group = torch.tensor([e.group for e in episodes])
        kept = self.select.keep(rewards, group)
        good = set((group if kept is None else group[kept]).tolist())
        groups = [list(rows) for _, rows in groupby(episodes, attrgetter("group"))]
        return [g for g in groups if g[0].group in good], [g for g in groups if g[0].group not in good]
