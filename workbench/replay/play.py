"""Every algorithm on every update of a stored step: the trainer's own loss, token weights, and true
gradients.

g = J' w, J the Jacobian of the log-probs and w = d loss / d log-prob: one forward pass serves every
algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sorl.batch import INPUTS, Batch, turn_ids
from sorl.objective import Algorithm, LossTerms, Normaliser, policy_loss, prepare, statistics
from sorl.objective.ratio import LOG_LIMIT
from sorl.objective.select import Schedule
from sorl.replay.networks import Networks, norm
from sorl.replay.tables import Columns, Played, Replay, folded
from sorl.spec import InputError
from sorl.store.batches import StoredBatch, StoredUpdate

# What the trainer logs of the loss; a stabiliser that acts on the gradient has no factor here (NULL).
SCALARS = (
    "policy_loss",
    "kl_loss",
    "penalty",
    "stabiliser_ratio",
    "stabiliser_factor",
    "clipped_rms",
    "unclipped_rms",
)
APART = 1e-3  # nats between a log-prob that was stored and the one that the weights give


@dataclass
class Loaded:
    """A stored batch as (B, T) tensors of `dtype`, for `own`, the algorithm that ran, and for others."""

    stored: StoredBatch
    own: Algorithm
    dtype: torch.dtype
    _known: dict[Any, Batch] = field(default_factory=dict)

    @cached_property
    def batch(self) -> Batch:
        """The batch before the selection and the advantages, which an algorithm makes of the
        other tensors.
        """
        arrays = vars(self.stored)
        mask = torch.from_numpy(self.stored.mask_sampled)
        columns: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in ("tokens", "response")}
        for name in ("length", "group", "trajectory", "rollout", "sentence", "placebo", "staleness"):
            columns[name] = None if arrays[name] is None else torch.from_numpy(arrays[name]).long()
        for name in (
            "score",
            "turn_reward",
            "squared_probs",
            "turn_score",
            "log_prob_behaviour",
            "log_prob_old",
            "log_prob_ref",
            "values",
        ):
            columns[name] = self.number(arrays[name])
        for name in ("routes_behaviour", "routes_old", "void"):
            columns[name] = None if arrays[name] is None else torch.from_numpy(arrays[name])
        return Batch(**columns, mask=mask, turn_id=turn_ids(mask))

    @cached_property
    def trained(self) -> Batch:
        """The batch as it was trained on: with the stored loss mask, advantages and returns."""
        mask = torch.from_numpy(self.stored.mask)
        advantages = self.number(self.stored.advantages)
        returns = self.number(self.stored.returns)
        return replace(self.batch, mask=mask, turn_id=turn_ids(mask), advantages=advantages, returns=returns)

    def estimated(self, algorithm: Algorithm) -> Batch:
        """Return the batch with the advantages that the algorithm's own slot makes of rewards, values and
        groups.
        """
        recipe = (algorithm.advantage, algorithm.select, algorithm.kl, algorithm.shaping)
        if recipe not in self._known:
            self._known[recipe] = prepare(algorithm, self.batch)
        made = self._known[recipe]
        marked = replace(
            self.batch,
            mask=made.mask,
            turn_id=made.turn,
            advantages=made.need("advantages"),
            turn_score=made.turn_score,
        )
        return marked if marked.placebo is not None else algorithm.ratio.mark(marked, None)

    def minibatch(self, algorithm: Algorithm, update: StoredUpdate) -> Batch:
        """Return the sequences (b, T) of an update, as `algorithm` would train on them."""
        rows = torch.from_numpy(update.rows).long()
        whole = self.trained if algorithm == self.own else self.estimated(algorithm)
        batch = replace(whole, values=None, returns=None).rows(rows)  # no policy loss needs them
        # the update trained on a part of each row, whose turns keep their numbers
        if update.mask is not None:
            mask = batch.mask & torch.from_numpy(update.mask)
            batch = replace(batch, mask=mask, turn_id=torch.where(mask, turn_ids(self.batch.mask[rows]), 0))
        own: dict[str, Any] = {"advantages": update.advantages, "log_prob_old": update.log_prob_old}
        return replace(
            batch, **{name: self.number(array) for name, array in own.items() if array is not None}
        )

    def replayed(self, update: StoredUpdate, part: slice, width: int) -> Tensor | None:
        """Return the experts (b, width, W) that the run's own routing replayed in a pass of an update; None:
        none.
        """
        found = self.own.routing.replayed(self.batch)
        return None if found is None else found[torch.from_numpy(update.rows[part]).long(), :width]

    def number(self, array: np.ndarray | None) -> Any:
        """Return the array as a tensor of the chosen precision; None for None."""
        return None if array is None else torch.from_numpy(array).to(self.dtype)


def unanswerable(algorithm: Algorithm, own: Algorithm, batch: Batch, is_unscored: bool = False) -> str:
    """Return why the batch of a run of `own` does not say what `algorithm` would have done; empty where it
    does. `is_unscored`: rewards are not known.
    """
    if is_unscored:
        return "it makes advantages of rewards, and this run has none"
    if algorithm.schedule != own.schedule:
        one = algorithm if algorithm.schedule != Schedule() else own
        return (
            f"{one.name} trains on one turn after the other, each with the policy that the turn before left; "
            "the updates of this run are different"
        )
    if algorithm.critic and batch.values is None:
        return "it needs a critic's values, and this run trained without a critic"
    if algorithm.needs_sampler and batch.log_prob_behaviour is None:
        return "it needs the sampler's log-probs, and this run kept none"
    if algorithm.needs_reference and batch.log_prob_ref is None:
        return "its KL term needs log-probs of a reference, and this run kept none (learn.reference)"
    if algorithm.proximal.kind == "averaged" and algorithm.proximal != own.proximal:
        return "its proximal policy is a mean of weights, which this run did not keep"
    for name in algorithm.inputs:
        if getattr(batch, name) is None:
            return f"it needs {INPUTS[name]}, and this run kept none"
    if algorithm.ratio.level == "sentence" and batch.sentence is None:
        return "it needs the sentence of every token, and this run's world gives none"
    if algorithm.group_size > 1 and len(batch.group.unique()) == len(batch.group):
        return "it compares the rollouts of a prompt, and this run sampled one rollout a prompt"
    return ""


@torch.no_grad()
def play(
    stored: StoredBatch,
    algorithms: Mapping[str, Algorithm],
    own: str,
    updates: Sequence[int] | None = None,
    trajectory: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Replay:
    """Return what each of `algorithms` (by label; `own` is the one that ran) would have done in each of
    `updates`.

    Its advantages are made by its own slot of the stored rewards, values and groups; those of `own` are the
    stored ones. Log-probs are those of the run's policy. `trajectory`: keep its tokens as well. Raises
    InputError for an update or a trajectory that the step does not have.
    """
    known = range(len(stored.updates))
    for index in updates or ():
        if index not in known:
            raise InputError(f"step {stored.step} has no update {index}; there are 0 to {len(known) - 1}")
    if trajectory is not None and trajectory not in set(stored.trajectory.tolist()):
        raise InputError(
            f"step {stored.step} has no trajectory {trajectory}; there are 0 to {len(stored.tokens) - 1}"
        )
    loaded = Loaded(stored, algorithms[own], dtype)
    reasons = {
        label: unanswerable(a, loaded.own, loaded.batch, "score" in stored.absent)
        for label, a in algorithms.items()
        if label != own
    }
    played: list[Played] = []
    kept: dict[tuple[str, int], Columns] = {}
    for update in (stored.updates[index] for index in (known if updates is None else sorted(set(updates)))):
        for label, algorithm in algorithms.items():
            if reasons.get(label):
                continue
            batch = loaded.minibatch(algorithm, update)
            terms, weight, _ = weigh(algorithm, batch, loaded, update)
            tokens = _tokens(loaded, update, batch, terms, weight)
            cells = folded(tokens, ("trajectory", "turn_index"))
            scalars = {name: None if (x := getattr(terms, name)) is None else float(x) for name in SCALARS}
            played.append(Played(label, update.index, scalars, cells))
            if trajectory is not None and trajectory in stored.trajectory[update.rows]:
                here = tokens["trajectory"] == trajectory
                kept[label, update.index] = {name: x[here] for name, x in tokens.items()}
    gap = None
    is_known = not stored.absent & {"score", "advantages"} and "advantage" not in stored.meta.get(
        "undeclared", ()
    )
    # 0 but for rounding, unless something broke
    if is_known and all(update.mask is None for update in stored.updates):
        made = loaded.estimated(loaded.own)
        seen = loaded.trained
        apart = (made.need("advantages") - seen.need("advantages")).abs()
        gap = float(torch.where(made.mask & seen.mask, apart, 0).max())
    return Replay(stored, own, tuple(played), {k: v for k, v in reasons.items() if v}, gap, kept)


def weigh(
    algorithm: Algorithm, batch: Batch, loaded: Loaded, update: StoredUpdate, clipped: bool = False
) -> tuple[LossTerms, Tensor, Tensor | None]:
    """Return the terms of an update's loss and d loss / d log-prob of every token (b, T), pass by pass as
    trained.

    `clipped`: also the gradient (b, T) of what the clip took from the loss; through the network it becomes
    -C.
    """
    # A stored batch may name no budget: its training used the longest row of the minibatch in its place.
    algorithm = algorithm.within(float(loaded.stored.meta.get("completion_budget") or batch.length.max()))
    log_prob = loaded.number(update.log_prob)
    rows = torch.arange(len(log_prob)).split(list(update.passes))
    pieces = [(batch.rows(r), log_prob[r]) for r in rows] if len(rows) > 1 else [(batch, log_prob)]
    sums = None
    if len(pieces) > 1 and algorithm.needs_statistics:
        found = [statistics(algorithm, *piece) for piece in pieces]
        sums = torch.stack([one for one in found if one is not None]).sum(0)
    given: dict[str, Any] = {
        "normaliser": Normaliser.of(batch, len(pieces), algorithm.correction),
        "statistics": sums,
    }
    terms: list[LossTerms] = []
    weights: list[Tensor] = []
    lost: list[Tensor] = []
    for part, values in pieces:
        leaf = values.detach().requires_grad_()
        with torch.enable_grad():
            out = policy_loss(algorithm, part, leaf, **given)
            terms.append(out.terms)
            weights += torch.autograd.grad(out.loss, leaf, retain_graph=clipped)
            lost += torch.autograd.grad(out.taken, leaf) if clipped else ()
    return LossTerms.join(terms), torch.cat(weights), torch.cat(lost) if clipped else None


def _tokens(loaded: Loaded, update: StoredUpdate, batch: Batch, terms: LossTerms, weights: Tensor) -> Columns:
    """Columns (M,) of the trained tokens of an update, in order of sequence and position."""
    index = batch.mask.reshape(-1).nonzero().squeeze(1)
    row, position = np.divmod(index.numpy(), batch.mask.shape[1])

    def at(x: Tensor) -> Tensor:
        return x.expand_as(batch.mask).reshape(-1).index_select(0, index)

    def flag(x: Tensor) -> Tensor:
        return at(x).to(loaded.dtype)

    log_ratio = at(loaded.number(update.log_prob)) - at(batch.log_prob_old)
    ratio = log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT).exp()
    unit = at(terms.ratio)
    weight = at(weights)
    columns = {
        "n_tokens": torch.ones_like(ratio),
        "log_ratio": log_ratio,
        "ratio": ratio,
        "ratio_squared": ratio.square(),
        "unit": unit,
        "unit_squared": unit.square(),
        "low": flag(terms.active_low),
        "high": flag(terms.active_high),
        "out": flag(terms.out_of_range),
        "dual": flag(terms.dual),
        "factor": at(terms.factor),
        "advantage": at(batch.need("advantages")),
        "weight": weight,
        "weight_abs": weight.abs(),
        "ratio_high": ratio,
        "ratio_low": ratio,
        "unit_high": unit,
        "unit_low": unit,
        "turn_index": at(batch.turn),
    }
    return {
        "trajectory": loaded.stored.trajectory[update.rows][row],
        "position": position,
        "token_id": loaded.stored.tokens[update.rows].reshape(-1)[index.numpy()],
        **{name: x.numpy() for name, x in columns.items()},
    }


def gradients(
    stored: StoredBatch, algorithms: Mapping[str, Algorithm], replay: Replay, network: Networks
) -> tuple[dict[tuple[str, int], dict[str, float | None]], str]:
    """Return grad_norm, clip_bias_norm and gradient_cosine by (label, update), and why later updates have
    none.

    The weights of an update are reached by taking the updates before it again; they are believed where their
    log-probs are the stored ones. Entropy bonus included, gradient clipping not (as logged).
    """
    loaded = Loaded(stored, algorithms[replay.own], torch.float32)
    wanted = {(p.algorithm, p.update) for p in replay.played}
    last = max(update for _, update in wanted)
    found: dict[tuple[str, int], dict[str, float | None]] = {}
    for update in stored.updates[: last + 1]:
        labels = [label for label in algorithms if (label, update.index) in wanted]
        asked = {label: algorithms[label] for label in {replay.own, *labels}}
        made, apart = gradients_of(loaded, asked, update, network)
        if not apart <= APART:
            return (
                found,
                (
                    f"true gradients from update {update.index} on are NULL: with the stored weights its"
                    f" log-probs differ by {apart:.2g} nats from those of the run"
                ),
            )
        mine = made[replay.own][0]
        for label in labels:
            g, bias = made[label]
            length = norm(g) * norm(mine)
            inner = sum(float((x.double() * y.double()).sum()) for x, y in zip(g, mine, strict=True))
            norms = {"grad_norm": norm(g), "clip_bias_norm": norm(bias)}
            found[label, update.index] = {**norms, "gradient_cosine": inner / length if length else None}
        if update.index < last and (reason := network.step(mine, update)):
            return found, f"true gradients after update {update.index} are NULL: {reason}"
    return found, ""


def gradients_of(
    loaded: Loaded,
    algorithms: Mapping[str, Algorithm],
    update: StoredUpdate,
    network: Networks,
    bias: bool = True,
) -> tuple[dict[str, tuple[list[Tensor], list[Tensor]]], float]:
    """Return by label the gradient of the loss and that of what the clip took from it (`bias`, else zeros).

    And the largest |log-prob - the stored one| in nats; NaN where one is NaN. One forward pass serves all
    labels.
    """
    stored = loaded.stored
    coefficient = float(loaded.stored.meta["learn"]["entropy_coef"])
    pulls = {
        label: weigh(one, loaded.minibatch(one, update), loaded, update, clipped=bias)[1:]
        for label, one in algorithms.items()
    }
    trained = update.mask if update.mask is not None else stored.mask[update.rows]
    count = max(1, int(trained.sum()))
    sums = {
        label: tuple([torch.zeros_like(p) for p in network.parameters] for _ in range(2))
        for label in algorithms
    }
    gaps = [torch.zeros(())]
    start = 0
    for size in update.passes:
        part = slice(start, start + size)
        start += size
        width = int(stored.length[update.rows[part]].max())
        tokens = torch.from_numpy(stored.tokens[update.rows[part], :width]).long()
        mask = torch.from_numpy(trained[part, :width])
        with torch.enable_grad():
            replay = loaded.replayed(update, part, width)
            log_prob, entropy = network.log_probs(tokens, mask, bool(coefficient), replay)
        was = torch.from_numpy(update.log_prob[part, :width])
        gaps.append(torch.where(mask, (log_prob.detach() - was).abs(), 0).max())
        for label, pair in pulls.items():
            for total, weight, bonus in zip(sums[label], pair, (coefficient, 0.0), strict=True):
                if weight is None:
                    continue
                outputs = [log_prob]
                weighs = [weight[part, :width]]
                if bonus:
                    outputs = [*outputs, entropy]
                    weighs = [*weighs, -bonus * mask.to(entropy.dtype) / count]
                made = torch.autograd.grad(outputs, network.parameters, weighs, retain_graph=True)
                torch._foreach_add_(total, made)
    final: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    for label, (g, taken) in sums.items():
        stabilise = algorithms[label].stabilise
        final[label] = (stabilise.on_gradient(g, taken)[0] if stabilise.needs_bias else g, taken)
    return final, float(torch.stack(gaps).max())
