"""A stored batch as tensors, with the advantages that an algorithm would have made of it, or why that is unknown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.batch import Batch, turn_ids
from workbench.objective import Algorithm, prepare
from workbench.objective.schedule import Together
from workbench.store.batches import StoredBatch, StoredUpdate


@dataclass
class Loaded:
    """A stored batch as (B, T) tensors of `dtype`, for `own`, the algorithm that ran, and for others."""

    stored: StoredBatch
    own: Algorithm
    dtype: torch.dtype
    _known: dict[Any, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    @cached_property
    def batch(self) -> Batch:
        """The batch before the selection and the advantages, which an algorithm makes of the other tensors."""
        arrays, mask = vars(self.stored), torch.from_numpy(self.stored.mask_sampled)
        columns: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in ("tokens", "response")}
        for name in ("length", "group", "trajectory", "sentence", "placebo"):
            columns[name] = None if arrays[name] is None else torch.from_numpy(arrays[name]).long()
        for name in ("score", "log_prob_behaviour", "log_prob_old", "log_prob_ref", "values"):
            columns[name] = self.maybe(arrays[name])
        return Batch(**columns, mask=mask, turn_id=turn_ids(mask))

    @cached_property
    def trained(self) -> Batch:
        """The batch as it was trained on: with the stored loss mask, advantages and returns."""
        mask = torch.from_numpy(self.stored.mask)
        advantages, returns = self.number(self.stored.advantages), self.maybe(self.stored.returns)
        return replace(self.batch, mask=mask, turn_id=turn_ids(mask), advantages=advantages, returns=returns)

    def estimated(self, algorithm: Algorithm) -> Batch:
        """Return the batch with the advantages that the algorithm's own slot makes of rewards, values and groups."""
        recipe = (algorithm.advantage, algorithm.select, algorithm.kl, algorithm.shaping)
        if recipe not in self._known:
            made = prepare(algorithm, self.batch)
            self._known[recipe] = made.need("advantages"), made.mask, made.turn
        advantages, mask, turn_id = self._known[recipe]
        marked = replace(self.batch, mask=mask, turn_id=turn_id, advantages=advantages)
        return marked if marked.placebo is not None else algorithm.ratio.mark(marked, None)

    def gap(self) -> float:
        """max |A estimated - A trained on| of the algorithm that ran: 0 but for rounding, unless something broke."""
        made, seen = self.estimated(self.own), self.trained
        apart = (made.need("advantages") - seen.need("advantages")).abs()
        return float(torch.where(made.mask & seen.mask, apart, 0).max())

    def minibatch(self, algorithm: Algorithm, update: StoredUpdate) -> Batch:
        """Return the sequences (b, T) of an update, as `algorithm` would train on them."""
        rows = torch.from_numpy(update.rows).long()
        whole = self.trained if algorithm == self.own else self.estimated(algorithm)
        batch = replace(whole, values=None, returns=None).rows(rows)  # no policy loss needs them
        if update.mask is not None:  # the update trained on a part of each row, whose turns keep their numbers
            mask = batch.mask & torch.from_numpy(update.mask)
            batch = replace(batch, mask=mask, turn_id=torch.where(mask, turn_ids(self.batch.mask[rows]), 0))
        own = {"advantages": update.advantages, "log_prob_old": update.log_prob_old}
        return replace(batch, **{name: self.number(array) for name, array in own.items() if array is not None})

    def number(self, array: np.ndarray) -> Tensor:
        """Return the array as a tensor of the chosen precision."""
        return torch.from_numpy(array).to(self.dtype)

    def maybe(self, array: np.ndarray | None) -> Tensor | None:
        """Return the same of an array that may be missing."""
        return None if array is None else self.number(array)


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
