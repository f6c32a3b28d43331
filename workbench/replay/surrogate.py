"""One algorithm on one update: the trainer's own loss on the stored log-probs, and what it asks of every token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from workbench.batch import Batch, turn_ids
from workbench.objective import Algorithm, LossTerms, Normaliser, clipped_loss, policy_loss, statistics
from workbench.replay.load import Columns, Loaded
from workbench.store.stored import StoredUpdate


@dataclass
class Cut:
    """The rows of one update with nothing but the tokens of a loss mask, (b, W) each; tensors are taken when asked for.

    Algorithms that keep the same sequences share it.
    """

    loaded: Loaded
    update: StoredUpdate
    columns: Columns
    turn: Tensor  # (b, W) turn ids of the sequence; turns that now touch keep their numbers
    budget: float  # tokens that an episode may have, which one aggregation divides by
    _taken: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, loaded: Loaded, whole: Batch, update: StoredUpdate) -> Cut:
        """Cut `update` out of `whole`, the batch as an algorithm would train on it."""
        rows = torch.from_numpy(update.rows).long()
        mask, turn = whole.mask[rows], whole.turn[rows]
        if update.mask is not None:  # the update trained on a part of each row
            mask = mask & torch.from_numpy(update.mask)
            turn = torch.where(mask, turn_ids(loaded.batch.mask[rows]), 0)
        columns = Columns.of(mask, rows)
        # Batches stored before the budget was were trained with the width of the minibatch in its place.
        budget = float(loaded.stored.meta.get("completion_budget") or whole.length[rows].max())
        return cls(loaded, update, columns, columns.of_rows(turn), budget)

    @property
    def log_prob(self) -> Tensor:
        """Log-probs under the policy at the start of the update."""
        if "log_prob" not in self._taken:
            self._taken["log_prob"] = self.columns.of_rows(self.loaded.number(self.update.log_prob))
        return self._taken["log_prob"]

    @property
    def log_prob_old(self) -> Tensor:
        """Log-probs under the proximal policy of the update."""
        if "log_prob_old" not in self._taken and self.update.log_prob_old is not None:
            self._taken["log_prob_old"] = self.columns.of_rows(self.loaded.number(self.update.log_prob_old))
        taken = self.take("log_prob_old")
        assert taken is not None
        return taken

    def take(self, name: str) -> Tensor | None:
        """A (B, T) tensor of the stored batch at the tokens; None where it is not stored."""
        whole: Tensor | None = getattr(self.loaded.batch, name)
        if whole is not None and name not in self._taken:
            self._taken[name] = self.columns.of_batch(whole)
        return None if whole is None else self._taken[name]

    def batch(self, algorithm: Algorithm, whole: Batch) -> Batch:
        """The batch of the update for `algorithm`, with the advantages of `whole`."""
        inside, rows = self.columns.inside, self.columns.rows
        behaviour = self.take("log_prob_behaviour")
        assert whole.advantages is not None
        assert behaviour is not None
        if self.update.advantages is None:
            advantages = self.columns.of_batch(whole.advantages)
        else:
            advantages = self.columns.of_rows(self.loaded.number(self.update.advantages))
        placebo = algorithm.ratio.level == "placebo" and whole.placebo is not None
        return Batch(
            tokens=self.turn,  # no loss looks at them
            response=inside,
            mask=inside,
            length=inside.sum(1),
            group=whole.group[rows],
            trajectory=whole.trajectory[rows],
            score=whole.score[rows],
            log_prob_behaviour=behaviour,
            log_prob_old=self.log_prob_old,
            log_prob_ref=self.take("log_prob_ref"),
            advantages=advantages,
            sentence=self.take("sentence") if algorithm.ratio.level == "sentence" else None,
            placebo=self.columns.of_batch(whole.placebo) if placebo and whole.placebo is not None else None,
            turn_id=self.turn,
        )


@dataclass(frozen=True)
class Weighed:
    """The batch of an update, the terms of its loss, and d loss / d log-prob of every token, (b, W)."""

    batch: Batch
    terms: LossTerms
    weight: Tensor


def weigh(algorithm: Algorithm, cut: Cut, whole: Batch) -> Weighed:
    """Loss and token weights of the update, pass by pass as the trainer took them."""
    passes = _Passes.of(algorithm, cut, whole)
    seen: list[tuple[LossTerms, Tensor]] = []
    for part, log_prob in passes.pieces:
        leaf = log_prob.detach().requires_grad_()
        with torch.enable_grad():
            out = policy_loss(passes.algorithm, part, leaf, normaliser=passes.counts, statistics=passes.sums)
        (weight,) = torch.autograd.grad(out.loss, leaf)
        seen.append((out.terms, weight))
    terms = LossTerms.join([terms for terms, _ in seen])
    return Weighed(passes.batch, terms, torch.cat([weight for _, weight in seen]))


def clipped_weight(algorithm: Algorithm, cut: Cut, whole: Batch) -> Tensor:
    """d (what the clip took from the loss) / d log-prob of every token, (b, W): through the network it becomes -C."""
    passes = _Passes.of(algorithm, cut, whole)
    found: list[Tensor] = []
    for part, log_prob in passes.pieces:
        leaf = log_prob.detach().requires_grad_()
        with torch.enable_grad():
            lost = clipped_loss(passes.algorithm, part, leaf, normaliser=passes.counts, statistics=passes.sums)
        found += torch.autograd.grad(lost, leaf)
    return torch.cat(found)


@dataclass(frozen=True)
class _Passes:
    """The micro-batches of an update, and what each needs to know of the others."""

    algorithm: Algorithm
    batch: Batch
    pieces: Sequence[tuple[Batch, Tensor]]  # with the log-probs
    counts: Normaliser
    sums: Tensor | None

    @classmethod
    def of(cls, algorithm: Algorithm, cut: Cut, whole: Batch) -> _Passes:
        algorithm = algorithm.within(cut.budget)
        batch, log_prob, sizes = cut.batch(algorithm, whole), cut.log_prob, cut.update.passes
        pieces = [(batch, log_prob)]
        if len(sizes) > 1:
            rows = torch.arange(len(log_prob)).split(list(sizes))
            pieces = [(batch.rows(index), log_prob[index]) for index in rows]
        sums = None
        if len(pieces) > 1 and algorithm.stabilise.needs_statistics:
            found = [statistics(algorithm, *piece) for piece in pieces]
            sums = torch.stack([one for one in found if one is not None]).sum(0)
        return cls(algorithm, batch, pieces, Normaliser.of(batch, len(pieces), algorithm.correction), sums)
