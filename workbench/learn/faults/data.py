"""Bugs of what is trained on: other tokens, other log-probs, other groups, a batch again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from workbench.agent.episode import Episode
from workbench.batch import Batch
from workbench.learn.faults.fault import Fault
from workbench.learn.rollouts import Rollout


@dataclass
class Retokenised(Fault):
    """One token of a turn, in a share of the trajectories, is another one than was sampled."""

    def episodes(self, episodes: list[Episode], step: int) -> list[Episode]:
        """The episodes as they came back; the sampler's log-probs are those of what it sampled."""
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
        """A token of the turn that is concerned, of any turn unless one is named; None where it has none."""
        sizes = [len(stretch) for stretch in episode.stretches]
        turns = [self.settings.turn] if self.settings.turn else [1 + _below(episode.turns, stream)]
        first = sum(sizes[: 2 * turns[0] - 1])
        return first + _below(sizes[2 * turns[0] - 1], stream) if turns[0] <= episode.turns else None


@dataclass
class BatchReused(Fault):
    """Each batch is trained on `strength` times again before the next one."""

    _last: Rollout | None = None

    def take(self, rollout: Rollout, step: int) -> Rollout:
        """The batch of the step before, or the one whose turn it is."""
        again = (step - self.settings.at_step) % (int(self.strength) + 1) != int(self.strength)
        if step >= self.settings.at_step and again and self._last is not None:
            return self._last
        self._last = rollout
        return rollout


@dataclass
class CorruptLogProb(Fault):
    """One token of the batch has an old log-prob that is `strength` nats too low."""

    def estimate(self, batch: Batch, step: int) -> Batch:
        """The batch with that token, in the turn that is concerned; unchanged where no trajectory has it."""
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
        """The batch with the groups of other rows."""
        return replace(batch, group=batch.group.roll(int(self.strength)))


def _below(n: int, stream: torch.Generator) -> int:
    return int(torch.randint(n, (1,), generator=stream))
