"""The advantages that an algorithm would have made of a stored batch, or why nobody can say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from workbench.batch import Batch
from workbench.objective import Algorithm, prepare
from workbench.objective.schedule import Together
from workbench.replay.load import Loaded


def unanswerable(algorithm: Algorithm, own: Algorithm, batch: Batch) -> str:
    """Why the batch of a run of `own` does not say what `algorithm` would have done; empty where it does."""
    if algorithm.schedule != own.schedule:
        one = algorithm if algorithm.schedule != Together() else own
        return (
            f"{one.name} trains on one turn after the other, each time with the policy that the turn before left; "
            "the updates of this run are other ones"
        )
    if algorithm.critic and batch.values is None:
        return "it needs a critic's values, and this run trained without a critic"
    if algorithm.needs_reference and batch.log_prob_ref is None:
        return "its KL term needs log-probs of a reference, and this run kept none (learn.reference)"
    if algorithm.ratio.level == "sentence" and batch.sentence is None:
        return "it needs the sentence of every token, and this run's world gives none"
    if algorithm.group_size > 1 and len(batch.group.unique()) == len(batch.group):
        return "it compares the rollouts of a prompt, and this run sampled one rollout a prompt"
    return ""


@dataclass
class Advantages:
    """Advantages and loss mask for algorithms on one batch; those that share a recipe share the work."""

    loaded: Loaded
    own: Algorithm
    _known: dict[Any, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def batch(self, algorithm: Algorithm) -> Batch:
        """The batch as `algorithm` would train on it; for the algorithm that ran, as it was trained on."""
        if algorithm == self.own:
            return self.loaded.trained
        return self.estimated(algorithm)

    def estimated(self, algorithm: Algorithm) -> Batch:
        """The batch with the advantages that the algorithm's own slot makes of rewards, values and groups."""
        batch = self.loaded.batch
        recipe = (algorithm.advantage, algorithm.select, algorithm.kl, algorithm.shaping)
        if recipe not in self._known:
            made = prepare(algorithm, batch)
            assert made.advantages is not None
            assert made.turn_id is not None
            self._known[recipe] = made.advantages, made.mask, made.turn_id
        advantages, mask, turn_id = self._known[recipe]
        marked = replace(batch, mask=mask, turn_id=turn_id, advantages=advantages)
        return marked if marked.placebo is not None else algorithm.ratio.mark(marked, None)

    def gap(self) -> float:
        """max |A estimated - A trained on| of the algorithm that ran: 0 but for rounding, unless something broke."""
        made, seen = self.estimated(self.own), self.loaded.trained
        assert made.advantages is not None
        assert seen.advantages is not None
        both = made.mask & seen.mask
        return float(torch.where(both, (made.advantages - seen.advantages).abs(), 0).max())
