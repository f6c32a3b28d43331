"""Rollouts and the staleness queue: train on what the policy sampled n iterations ago."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

import torch
from torch import Tensor

from workbench.agent.draws import ROLLOUT, generator
from workbench.agent.engines import Engine
from workbench.agent.episode import Episode, collate
from workbench.agent.routing import experts_of, routed
from workbench.agent.worlds import World
from workbench.batch import Batch
from workbench.learn.faults import Fault
from workbench.learn.networks import Critic, autocast, device_of, log_probs, passes
from workbench.objective.select import Select
from workbench.spec import ComputeSettings, RunSettings

FURTHER = 1 << 40  # first question of the second draw of a rollout: no run has so many rollouts


@dataclass
class Rollout:
    """The episodes of one iteration and what was known of them when they were sampled."""

    number: int  # counts rollouts from 0: it decides which questions were asked
    policy_step: int  # iteration whose policy sampled it
    episodes: list[Episode]
    log_prob_old: Tensor | None = None  # (B, T) by the trainer's forward, when it is taken at sampling time
    values: Tensor | None = None  # (B, T) by the critic at sampling time, when asked for
    routes_old: Tensor | None = None  # (B, T, L k) experts of the trainer's forward that made `log_prob_old`
    # the first draw, on questions not selected by their reward
    first: list[Episode] = field(default_factory=list)
    sampled: int = 0  # episodes of all draws


@dataclass
class Sampler:
    """Asks questions in a fixed order and lets the engine answer them."""

    settings: RunSettings
    world: World
    engine: Engine
    group_size: int
    select: Select
    fault: Fault

    def rollout(self, number: int, policy_step: int) -> Rollout:
        """Rollout `number`: its questions depend on the seed and the number alone, so arms and resumes see
        the same.

        The selection may replace prompt groups by groups of further questions; what its last round lacks
        stays.
        """
        drawn = self._draw(number, 0, policy_step)
        rollout = Rollout(number, policy_step, drawn, first=drawn, sampled=len(drawn))
        wanted, unwanted = self._sorted(drawn)
        enough, again = len(wanted) + len(unwanted), 0
        while len(wanted) < enough and (again := again + 1) < self.select.rounds:
            drawn = self._draw(number, again, policy_step)
            rollout.sampled += len(drawn)
            wanted += self._sorted(drawn)[0]
        if rollout.sampled > len(rollout.first):
            chosen = [*wanted, *unwanted][:enough]
            rollout.episodes = [replace(e, group=i) for i, group in enumerate(chosen) for e in group]
        return rollout

    def _draw(self, number: int, again: int, step: int) -> list[Episode]:
        engine, world = self.fault("engine", self.engine, step), self.fault("world", self.world, step)
        prompts, seed = self.settings.learn.episodes // self.group_size, self.settings.seed
        questions = world.questions("train", seed, number * prompts + again * FURTHER, prompts)
        groups = [i for i in range(len(questions)) for _ in range(self.group_size)]
        stream = generator(seed, ROLLOUT, number, *([again] if again else []))
        episodes = engine.rollout(world, [questions[i] for i in groups], groups, stream)
        return self.fault("episodes", episodes, step)

    def _sorted(self, episodes: list[Episode]) -> tuple[list[list[Episode]], list[list[Episode]]]:
        """Return the prompt groups that the selection wants, and the others."""
        rewards, group = torch.tensor([e.reward for e in episodes]), torch.tensor([e.group for e in episodes])
        kept = self.select.keep(rewards, group)
        good = set((group if kept is None else group[kept]).tolist())
        groups = [list(rows) for _, rows in groupby(episodes, attrgetter("group"))]
        return [g for g in groups if g[0].group in good], [g for g in groups if g[0].group not in good]


def batch_of(rollout: Rollout, pad_id: int) -> Batch:
    """Return the rollout as a batch, with the log-probs and values that were stored with it."""
    batch = collate(rollout.episodes, pad_id)
    old = batch.log_prob_old if rollout.log_prob_old is None else rollout.log_prob_old
    return replace(batch, log_prob_old=old, values=rollout.values, routes_old=rollout.routes_old)


def scored(
    model: torch.nn.Module,
    batch: Batch,
    temperature: float,
    compute: ComputeSettings = ComputeSettings(),
    replay: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs (B, T) by the training forward, 0 where nothing was written, and the experts (B, T, L k) it
    took.
    """
    parts: list[Tensor] = []

    def forward(index: Tensor, n: int) -> Tensor:
        with routed(model, None if replay is None else replay[index, 1:n]) as seen:
            found = log_probs(model, batch.tokens[index, :n], temperature, where=batch.mask[index, :n])[0]
        if (routes := seen.routes) is not None:
            before, after = 1, batch.tokens.shape[1] - n
            unknown = experts_of(seen.routers[0])
            parts.append(
                torch.nn.functional.pad(routes.to(batch.tokens.device), (0, 0, before, after), value=unknown)
            )
        return found

    found, order = _by_passes(forward, batch, compute)
    return torch.where(batch.mask, found, 0), torch.cat(parts)[order] if parts else None


def critic_values(critic: Critic, batch: Batch, compute: ComputeSettings = ComputeSettings()) -> Tensor:
    """Values of the batch under `critic`, (B, T), of the response; 0 beyond a row's tokens."""
    where = batch.response | batch.mask
    return _by_passes(lambda index, n: critic(batch.tokens[index, :n], where[index, :n]), batch, compute)[0]


@torch.no_grad()
def _by_passes(
    forward: Callable[[Tensor, int], Tensor], batch: Batch, compute: ComputeSettings
) -> tuple[Tensor, Tensor]:
    """Return `forward` of the first n columns of some rows, (B, T), 0 in those it leaves out; and the rows'
    order.
    """
    budget, width = compute.micro_batch_tokens, batch.tokens.shape[1]
    parts, rows = [], passes(batch.length, budget)
    with autocast(device_of(compute), compute):
        for index in rows:
            n = width if budget is None else int(batch.length[index].max())
            parts.append(torch.nn.functional.pad(forward(index, n), (0, width - n)))
    order = torch.cat(rows).argsort()
    return torch.cat(parts)[order], order
