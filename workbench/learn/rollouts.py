"""Rollouts and the staleness queue: what the policy sampled n iterations ago is what is trained on now."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workbench.agent.draws import draw
from workbench.agent.engines.hf import HFEngine
from workbench.agent.episode import Episode, collate
from workbench.agent.worlds.facts import Facts
from workbench.batch import Batch
from workbench.learn.policy import log_probs
from workbench.spec import RunSettings

ROLLOUT, ORDER, EVALUATION, PLACEBO = 1, 2, 3, 4  # what a random stream is for, so that no two share their numbers


def generator(*key: int) -> torch.Generator:
    """A random stream addressed by `key`: the same in a fresh run, a resumed one, and beside any other arm."""
    return torch.Generator().manual_seed(draw(*key) >> 1)


@dataclass
class Rollout:
    """The episodes of one iteration and what was known of them when they were sampled."""

    number: int  # counts rollouts from 0: it decides which questions were asked
    policy_step: int  # iteration whose policy sampled it
    episodes: list[Episode]
    log_prob_old: Tensor | None = None  # (B, T) by the trainer's forward, when it is taken at sampling time
    values: Tensor | None = None  # (B, T) by the critic at sampling time, when asked for


@dataclass
class Sampler:
    """Asks questions in a fixed order and lets the engine answer them."""

    settings: RunSettings
    world: Facts
    engine: HFEngine
    group_size: int

    def rollout(self, number: int, policy_step: int) -> Rollout:
        """Rollout `number`: its questions depend on the seed and the number alone, so arms and resumes see the same."""
        settings = self.settings
        prompts = settings.learn.episodes // self.group_size
        questions = self.world.questions("train", settings.seed, number * prompts, prompts)
        asked = [question for question in questions for _ in range(self.group_size)]
        groups = [i for i in range(prompts) for _ in range(self.group_size)]
        stream = generator(settings.seed, ROLLOUT, number)
        return Rollout(number, policy_step, self.engine.rollout(self.world, asked, groups, stream))


def batch_of(rollout: Rollout, pad_id: int) -> Batch:
    """The rollout as a batch, with the log-probs and values that were stored with it."""
    batch = collate(rollout.episodes, pad_id)
    if rollout.log_prob_old is not None:
        batch = replace(batch, log_prob_old=rollout.log_prob_old)
    return replace(batch, values=rollout.values)


@torch.no_grad()
def trainer_log_probs(model: torch.nn.Module, batch: Batch, temperature: float) -> Tensor:
    """Log-probs of the batch under `model` by the training forward, (B, T), 0 where the policy wrote nothing."""
    log_prob, _ = log_probs(model, batch.tokens, temperature)
    return torch.where(batch.mask, log_prob, 0)
