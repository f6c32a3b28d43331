"""Faults of the training: tokens, masks, groups, learning rates, critic, reference."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.agent.episode import Episode
from workbench.batch import Batch, turn_ids
from workbench.learn import networks
from workbench.learn.faults.sampling import Fault
from workbench.learn.rollouts import Rollout
from workbench.spec import LearnSettings, OptimizerSettings


@dataclass
class Retokenised(Fault):
    """One token of a turn, in a share of the trajectories, is another one than was sampled."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """Return the episodes as they came back; the sampler's log-probs are those of what it sampled."""
        stream = self.stream(step, episodes[0].question_id)
        chosen = self.some(len(episodes), step, episodes[0].question_id, 1).tolist()
        vocabulary = len(self.tokenizer)
        found = []
        for episode, wrong in zip(episodes, chosen, strict=True):
            at = self._place(episode, stream) if wrong else None
            if at is not None:
                tokens = list(episode.tokens)
                tokens[at] = (tokens[at] + 1 + _below(vocabulary - 1, stream)) % vocabulary
                episode = replace(episode, tokens=tokens)
            found.append(episode)
        return found

    def _place(self, episode: Episode, stream: torch.Generator) -> int | None:
        """Return a token of the turn that is concerned, of any turn unless one is named; None where it has none."""
        sizes = [len(stretch) for stretch in episode.stretches]
        turns = [self.settings.turn] if self.settings.turn else [1 + _below(episode.turns, stream)]
        first = sum(sizes[: 2 * turns[0] - 1])
        return first + _below(sizes[2 * turns[0] - 1], stream) if turns[0] <= episode.turns else None


@dataclass
class BatchReused(Fault):
    """Each batch is trained on `strength` times again before the next one."""

    _last: Rollout | None = None

    def take(self, rollout: Rollout, step: int) -> Rollout:
        """Return the batch of the step before, or the one whose turn it is."""
        again = (step - self.settings.at_step) % (int(self.strength) + 1) != int(self.strength)
        if step >= self.settings.at_step and again and self._last is not None:
            return self._last
        self._last = rollout
        return rollout


@dataclass
class CorruptLogProb(Fault):
    """One token of the batch has an old log-prob that is `strength` nats too low."""

    def estimate(self, batch: Batch, step: int) -> Batch:
        """Return the batch with that token, in the turn that is concerned; unchanged where no trajectory has it."""
        where = batch.turn == self.settings.turn if self.settings.turn else batch.mask
        places = where.nonzero()
        if not len(places):
            return batch
        row, at = places[_below(len(places), self.stream(step))]
        old = batch.log_prob_old.clone()
        old[row, at] -= self.strength
        return replace(batch, log_prob_old=old)


@dataclass
class WrongGroups(Fault):
    """g'_i = g_{i - s}, around the end of the batch."""

    def estimate(self, batch: Batch, step: int) -> Batch:
        """Return the batch with the groups of other rows."""
        return replace(batch, group=batch.group.roll(int(self.strength)))


def _below(n: int, stream: torch.Generator) -> int:
    return int(torch.randint(n, (1,), generator=stream))


@dataclass
class _Leak(Fault):
    """Adds tokens to the loss mask in a share of the trajectories."""

    def batch(self, batch: Batch, step: int) -> Batch:
        """Return the batch with the wider mask."""
        rows = self.some(len(batch.tokens), step)[:, None]
        return replace(batch, mask=batch.mask | (rows & self.leaking(batch)), turn_id=None)

    def leaking(self, batch: Batch) -> Tensor:
        """Return the tokens that leak, (B, T) bool."""
        raise NotImplementedError


@dataclass
class ObservationLeak(_Leak):
    """What the world wrote, after any turn or after one."""

    def leaking(self, batch: Batch) -> Tensor:
        """Tokens of the response that the policy did not write."""
        observed = batch.response & ~batch.mask
        if self.settings.turn is None:
            return observed
        return observed & (turn_ids(batch.mask).cummax(1).values == self.settings.turn)


@dataclass
class PromptLeak(_Leak):
    """The prompt, but for its first token, which nothing predicts."""

    def leaking(self, batch: Batch) -> Tensor:
        """Tokens before the response."""
        before = inside(batch) & ~batch.response & ~batch.mask
        before[:, 0] = False
        return before


@dataclass
class PaddingLeak(_Leak):
    """Padding."""

    def leaking(self, batch: Batch) -> Tensor:
        """Positions beyond a row's tokens."""
        return ~inside(batch)


@dataclass
class TurnShift(Fault):
    """m'_t = m_{t - s}, for every turn or for one."""

    def batch(self, batch: Batch, step: int) -> Batch:
        """Return the batch with turns that are off by `strength` tokens."""
        turn, s = turn_ids(batch.mask), int(self.strength)
        moving = batch.mask if self.settings.turn is None else turn == self.settings.turn
        moved = torch.zeros_like(moving)
        moved[:, s:] = moving[:, :-s]
        return replace(batch, mask=(batch.mask & ~moving) | (moved & inside(batch)), turn_id=None)


def inside(batch: Batch) -> Tensor:
    """Return True where a row has a token, (B, T)."""
    return torch.arange(batch.tokens.shape[1]) < batch.length[:, None]


@dataclass
class Staleness(Fault):
    """The queue grows by one rollout an iteration, until it holds `strength` more than it should.

    It never shrinks: after the fault's end it is as long as it was.
    """

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """Return the longer queue."""
        more = min(int(self.strength), step - self.settings.at_step + 1)
        return _with(settings, staleness=settings.staleness + more)


@dataclass
class LearningRate(Fault):
    """lr' = s lr."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """Return the other learning rate of the policy."""
        return _with(settings, policy=_scaled(settings.policy, "lr", self.strength))


@dataclass
class ClippingOff(Fault):
    """Gradients are clipped to `strength` times the norm that was configured."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """Return the other norm."""
        return _with(settings, policy=_scaled(settings.policy, "max_grad_norm", self.strength))


@dataclass
class CriticDiverges(Fault):
    """lr' = s lr of the critic."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """Return the other learning rate of the critic."""
        return _with(settings, critic=_scaled(settings.critic, "lr", self.strength))


@dataclass
class EntropyBonus(Fault):
    """The entropy bonus has another coefficient."""

    def learn(self, settings: LearnSettings, step: int) -> LearnSettings:
        """Return the other coefficient."""
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
        """Return the earlier checkpoint, made once."""
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
