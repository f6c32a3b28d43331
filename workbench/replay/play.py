"""Every algorithm on every update of a stored step: the trainer's own loss, token weights, and true
gradients.

g = J' w, J the Jacobian of the log-probs and w = d loss / d log-prob: one forward pass serves every
algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

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
    chosen = _chosen_updates(stored, updates)
    if trajectory is not None:
        _require_trajectory(stored, trajectory)
    loaded = Loaded(stored, algorithms[own], dtype)
    reasons = _reasons(loaded, algorithms, own)
    played: list[Played] = []
    of_trajectory: dict[tuple[str, int], Columns] = {}
    for update in chosen:
        for label, algorithm in algorithms.items():
            if label in reasons:
                continue
            done = _play_update(loaded, label, algorithm, update)
            played.append(done.played)
            if trajectory is not None and trajectory in stored.trajectory[update.rows]:
                of_trajectory[label, update.index] = _only(done.tokens, trajectory)
    return Replay(stored, own, tuple(played), reasons, _advantage_gap(loaded), of_trajectory)


class _PlayedUpdate(NamedTuple):
    """What an algorithm would have done in an update, in all and token by token."""

    played: Played
    tokens: Columns


def _play_update(loaded: Loaded, label: str, algorithm: Algorithm, update: StoredUpdate) -> _PlayedUpdate:
    batch = loaded.minibatch(algorithm, update)
    weighed = weigh(algorithm, batch, loaded, update)
    tokens = _tokens(loaded, update, batch, weighed.terms, weighed.weight)
    cells = folded(tokens, ("trajectory", "turn_index"))
    return _PlayedUpdate(Played(label, update.index, _scalars(weighed.terms), cells), tokens)


def _require_trajectory(stored: StoredBatch, trajectory: int) -> None:
    """Raise InputError for a trajectory that the step does not have."""
    if trajectory not in set(stored.trajectory.tolist()):
        raise InputError(
            f"step {stored.step} has no trajectory {trajectory}; there are 0 to {len(stored.tokens) - 1}"
        )


def _chosen_updates(stored: StoredBatch, updates: Sequence[int] | None) -> list[StoredUpdate]:
    """The updates with these indices, in order; all by default."""
    known = range(len(stored.updates))
    for index in updates or ():
        if index not in known:
            raise InputError(f"step {stored.step} has no update {index}; there are 0 to {len(known) - 1}")
    return [stored.updates[index] for index in (known if updates is None else sorted(set(updates)))]


def _reasons(loaded: Loaded, algorithms: Mapping[str, Algorithm], own: str) -> dict[str, str]:
    """Why an algorithm has no answer, by label; those that have one are left out."""
    reasons = {}
    for label, algorithm in algorithms.items():
        if label == own:
            continue
        reason = unanswerable(algorithm, loaded.own, loaded.batch, "score" in loaded.stored.absent)
        if reason:
            reasons[label] = reason
    return reasons


def _scalars(terms: LossTerms) -> dict[str, float | None]:
    values = {name: getattr(terms, name) for name in SCALARS}
    return {name: None if value is None else float(value) for name, value in values.items()}


def _only(tokens: Columns, trajectory: int) -> Columns:
    """The tokens of one trajectory."""
    rows = tokens["trajectory"] == trajectory
    return {name: column[rows] for name, column in tokens.items()}


def _advantage_gap(loaded: Loaded) -> float | None:
    """Largest difference between the stored advantages and those of the run's own slot.

    0 but for rounding, unless something broke. None where the step does not have what they are made of.
    """
    stored = loaded.stored
    if stored.absent & {"score", "advantages"} or "advantage" in stored.meta.get("undeclared", ()):
        return None
    if any(update.mask is not None for update in stored.updates):
        return None
    estimated = loaded.estimated(loaded.own)
    trained = loaded.trained
    apart = (estimated.need("advantages") - trained.need("advantages")).abs()
    return float(torch.where(estimated.mask & trained.mask, apart, 0).max())


class Weighed(NamedTuple):
    """What a loss does with the tokens of an update."""

    terms: LossTerms
    weight: Tensor  # d loss / d log-prob, (b, T)
    clipped: Tensor | None  # gradient of what the clip took from the loss, (b, T); None unless asked for


def weigh(
    algorithm: Algorithm, batch: Batch, loaded: Loaded, update: StoredUpdate, clipped: bool = False
) -> Weighed:
    """Return the terms of an update's loss and d loss / d log-prob of every token (b, T), pass by pass as
    trained.

    `clipped`: also the gradient (b, T) of what the clip took from the loss; through the network it becomes
    -C.
    """
    # A stored batch may name no budget: its training used the longest row of the minibatch in its place.
    algorithm = algorithm.within(float(loaded.stored.meta.get("completion_budget") or batch.length.max()))
    pieces = _passes(batch, loaded.number(update.log_prob), update)
    whole = Normaliser.of(batch, len(pieces), algorithm.correction)
    sums = _statistics(algorithm, pieces)
    terms: list[LossTerms] = []
    weights: list[Tensor] = []
    lost: list[Tensor] = []
    for part, values in pieces:
        leaf = values.detach().requires_grad_()
        with torch.enable_grad():
            out = policy_loss(algorithm, part, leaf, normaliser=whole, statistics=sums)
            terms.append(out.terms)
            weights += torch.autograd.grad(out.loss, leaf, retain_graph=clipped)
            lost += torch.autograd.grad(out.taken, leaf) if clipped else ()
    return Weighed(LossTerms.join(terms), torch.cat(weights), torch.cat(lost) if clipped else None)


def _passes(batch: Batch, log_prob: Tensor, update: StoredUpdate) -> list[tuple[Batch, Tensor]]:
    """The micro-batches of an update, as they were trained on, with their log-probs."""
    rows = torch.arange(len(log_prob)).split(list(update.passes))
    if len(rows) == 1:
        return [(batch, log_prob)]
    return [(batch.rows(index), log_prob[index]) for index in rows]


def _statistics(algorithm: Algorithm, pieces: Sequence[tuple[Batch, Tensor]]) -> Tensor | None:
    """Sums of clip and stabiliser over a split minibatch."""
    if len(pieces) == 1 or not algorithm.needs_statistics:
        return None
    each = [statistics(algorithm, part, log_prob) for part, log_prob in pieces]
    return torch.stack([sums for sums in each if sums is not None]).sum(0)


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
    measured: dict[tuple[str, int], dict[str, float | None]] = {}
    for update in stored.updates[: last + 1]:
        labels = [label for label in algorithms if (label, update.index) in wanted]
        asked = {label: algorithms[label] for label in {replay.own, *labels}}
        at_update = gradients_of(loaded, asked, update, network)
        if not at_update.log_prob_gap <= APART:
            return measured, (
                f"true gradients from update {update.index} on are NULL: with the stored weights its"
                f" log-probs differ by {at_update.log_prob_gap:.2g} nats from those of the run"
            )
        for label in labels:
            measured[label, update.index] = _gradient_scalars(at_update, label, replay.own)
        if update.index < last and (reason := network.step(at_update.loss[replay.own], update)):
            return measured, f"true gradients after update {update.index} are NULL: {reason}"
    return measured, ""


class UpdateGradients(NamedTuple):
    """Gradients of one stored update, by algorithm; a tensor a parameter."""

    loss: dict[str, list[Tensor]]
    clipped_away: dict[str, list[Tensor]]  # of what the clip took from the loss; zeros unless asked for
    log_prob_gap: float  # nats, largest |recomputed - stored|; NaN where one is NaN


def _gradient_scalars(gradients: UpdateGradients, label: str, own: str) -> dict[str, float | None]:
    mine = gradients.loss[own]
    g = gradients.loss[label]
    length = norm(g) * norm(mine)
    inner = sum(float((x.double() * y.double()).sum()) for x, y in zip(g, mine, strict=True))
    return {
        "grad_norm": norm(g),
        "clip_bias_norm": norm(gradients.clipped_away[label]),
        "gradient_cosine": inner / length if length else None,
    }


def gradients_of(
    loaded: Loaded,
    algorithms: Mapping[str, Algorithm],
    update: StoredUpdate,
    network: Networks,
    bias: bool = True,
) -> UpdateGradients:
    """Return by label the gradient of the loss and that of what the clip took from it (`bias`, else zeros).

    And the largest |log-prob - the stored one| in nats; NaN where one is NaN. One forward pass serves all
    labels.
    """
    coefficient = float(loaded.stored.meta["learn"]["entropy_coef"])
    weighed = {
        label: weigh(algorithm, loaded.minibatch(algorithm, update), loaded, update, clipped=bias)
        for label, algorithm in algorithms.items()
    }
    count = max(1, int(_trained_mask(loaded.stored, update).sum()))
    sums = UpdateGradients(_zeros(algorithms, network), _zeros(algorithms, network), 0.0)
    gaps = [torch.zeros(())]
    for part in _rows_of_passes(update):
        done = _forward(loaded, update, part, network, bool(coefficient))
        gaps.append(done.gap)
        bonus = -coefficient * done.mask.to(done.entropy.dtype) / count if coefficient else None
        for label, tokens in weighed.items():
            _add_gradient(sums.loss[label], network, done, tokens.weight[part, : done.width], bonus)
            _add_clipped_away(sums.clipped_away[label], network, done, tokens, part)
    _stabilise(sums, algorithms)
    return sums._replace(log_prob_gap=float(torch.stack(gaps).max()))


def _add_clipped_away(
    total: list[Tensor], network: Networks, done: _Forward, tokens: Weighed, part: slice
) -> None:
    """Add the gradient of what the clip took from the loss in a pass, where it was asked for."""
    if tokens.clipped is not None:
        _add_gradient(total, network, done, tokens.clipped[part, : done.width], None)


def _rows_of_passes(update: StoredUpdate) -> Iterator[slice]:
    """The rows of each pass of an update."""
    start = 0
    for size in update.passes:
        yield slice(start, start + size)
        start += size


def _trained_mask(stored: StoredBatch, update: StoredUpdate) -> np.ndarray:
    """The loss mask (b, T) of an update."""
    return stored.mask[update.rows] if update.mask is None else update.mask


def _stabilise(sums: UpdateGradients, algorithms: Mapping[str, Algorithm]) -> None:
    """Change the gradients of the losses whose stabiliser acts on the gradient."""
    for label, algorithm in algorithms.items():
        if algorithm.stabilise.needs_bias:
            damped = algorithm.stabilise.on_gradient(sums.loss[label], sums.clipped_away[label])[0]
            sums.loss[label] = damped


def _zeros(labels: Iterable[str], network: Networks) -> dict[str, list[Tensor]]:
    return {label: _zeros_of(network) for label in labels}


def _zeros_of(network: Networks) -> list[Tensor]:
    return [torch.zeros_like(p) for p in network.parameters]


class _Forward(NamedTuple):
    """The policy's answer to one pass of an update, with its graph."""

    log_prob: Tensor  # (rows, width)
    entropy: Tensor  # (rows, width)
    mask: Tensor  # (rows, width), of the tokens that are trained on
    width: int  # of the longest row
    gap: Tensor  # nats, largest |recomputed - stored log-prob|


def _forward(
    loaded: Loaded, update: StoredUpdate, part: slice, network: Networks, with_entropy: bool
) -> _Forward:
    stored = loaded.stored
    rows = update.rows[part]
    width = int(stored.length[rows].max())
    tokens = torch.from_numpy(stored.tokens[rows, :width]).long()
    mask = torch.from_numpy(_trained_mask(stored, update)[part, :width])
    with torch.enable_grad():
        replay = loaded.replayed(update, part, width)
        log_prob, entropy = network.log_probs(tokens, mask, with_entropy, replay)
    was = torch.from_numpy(update.log_prob[part, :width])
    gap = torch.where(mask, (log_prob.detach() - was).abs(), 0).max()
    return _Forward(log_prob, entropy, mask, width, gap)


def _add_gradient(
    total: list[Tensor], network: Networks, done: _Forward, weight: Tensor, bonus: Tensor | None
) -> None:
    """Add the gradient of the log-probs times `weight`, and of the entropy times `bonus`, to `total`."""
    outputs = [done.log_prob]
    weights = [weight]
    if bonus is not None:
        outputs.append(done.entropy)
        weights.append(bonus)
    gradient = torch.autograd.grad(outputs, network.parameters, weights, retain_graph=True)
    torch._foreach_add_(total, gradient)
