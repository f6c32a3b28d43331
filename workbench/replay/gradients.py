"""True gradients of a stored step, where its weights are stored: norms, the clipping bias, cosines between algorithms.

g = J' w, J the Jacobian of the log-probs and w = d loss / d log-prob: one forward pass serves every algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from workbench.objective import Algorithm
from workbench.replay.batch import Loaded
from workbench.replay.play import Replay, clipped_weight, weigh
from workbench.store.stored import StoredBatch, StoredUpdate

APART = 1e-3  # nats between a log-prob that was stored and the one that the weights give


class Network(Protocol):
    """The policy of the step, with the weights of its start; whoever holds it may change them."""

    parameters: Sequence[Tensor]

    def log_probs(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (b, t), both with gradient, of tokens (b, t); needed at `mask` only."""
        ...


@dataclass(frozen=True)
class Gradients:
    """grad_norm, clip_bias_norm and gradient_cosine of (label, update); `reason`: why later updates have none."""

    found: Mapping[tuple[str, int], Mapping[str, float | None]]
    reason: str


def gradients(stored: StoredBatch, algorithms: Mapping[str, Algorithm], replay: Replay, network: Network) -> Gradients:
    """The gradients of the updates and algorithms that `replay` answers for.

    The weights of an update are reached by taking the updates before it again, which needs SGD without momentum; they
    are believed where their log-probs are the stored ones. Entropy bonus included, gradient clipping not (as logged).
    """
    loaded = Loaded(stored, algorithms[replay.own], torch.float32)
    wanted = {(p.algorithm, p.update) for p in replay.played}
    last = max(update for _, update in wanted)
    found: dict[tuple[str, int], Mapping[str, float | None]] = {}
    for update in stored.updates[: last + 1]:
        labels = [label for label in algorithms if (label, update.index) in wanted]
        on = update.index < last
        taken, apart = _taken(loaded, algorithms, {replay.own, *labels}, update, network)
        if not apart <= APART:
            return Gradients(found, _unlike(update.index, apart))
        mine = taken[replay.own][0]
        for label in labels:
            g, bias = taken[label]
            found[label, update.index] = {
                "grad_norm": _norm(g),
                "clip_bias_norm": _norm(bias),
                "gradient_cosine": _cosine(g, mine),
            }
        if on and (reason := _step(stored.meta["learn"]["policy"], update, network, mine)):
            return Gradients(found, reason)
    return Gradients(found, "")


def _taken(
    loaded: Loaded, algorithms: Mapping[str, Algorithm], labels: set[str], update: StoredUpdate, network: Network
) -> tuple[dict[str, tuple[list[Tensor], list[Tensor]]], float]:  # fmt: skip
    """Gradients of the loss and of what the clip took from it, by label; max |log-prob - the stored one|."""
    stored, coefficient = loaded.stored, float(loaded.stored.meta["learn"]["entropy_coef"])
    weights = {
        label: (weigh(algorithms[label], loaded, update).weight, clipped_weight(algorithms[label], loaded, update))
        for label in labels
    }
    trained = update.mask if update.mask is not None else stored.mask[update.rows]
    count = max(1, int(trained.sum()))
    sums = {label: (_zeros(network), _zeros(network)) for label in labels}
    apart, start = 0.0, 0
    for size in update.passes:
        part = slice(start, start + size)
        start += size
        width = int(stored.length[update.rows[part]].max())
        tokens = torch.from_numpy(stored.tokens[update.rows[part], :width]).long()
        mask = torch.from_numpy(trained[part, :width])
        with torch.enable_grad():
            log_prob, entropy = network.log_probs(tokens, mask)
        was = torch.from_numpy(update.log_prob[part, :width])
        apart = max(apart, float(torch.where(mask, (log_prob.detach() - was).abs(), 0).max()))
        for label, pair in weights.items():
            for total, weight, bonus in zip(sums[label], pair, (coefficient, 0.0), strict=True):
                outputs, weighs = [log_prob], [weight[part, :width]]
                if bonus:
                    outputs, weighs = [*outputs, entropy], [*weighs, -bonus * mask.to(entropy.dtype) / count]
                made = torch.autograd.grad(outputs, network.parameters, weighs, retain_graph=True)
                torch._foreach_add_(total, made)
    final: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    for label, (g, bias) in sums.items():
        stabilise = algorithms[label].stabilise
        final[label] = (stabilise.on_gradient(g, bias)[0] if stabilise.needs_bias else g, bias)
    return final, apart


def _step(optimizer: Mapping[str, Any], update: StoredUpdate, network: Network, gradient: Sequence[Tensor]) -> str:
    """Take the update that the trainer took; what stands in the way, empty where nothing does."""
    if optimizer["kind"] != "sgd" or optimizer["momentum"]:
        kind = "SGD with momentum" if optimizer["kind"] == "sgd" else "AdamW"
        return (
            f"true gradients after update {update.index} are NULL: weights are stored at the start of a step, and "
            f"{kind} cannot be taken again without its state"
        )
    before, after, lr = (update.scalars.get(name) for name in ("grad_norm", "grad_norm_after", "lr"))
    if before is None or after is None or lr is None or not math.isfinite(before):
        return f"true gradients after update {update.index} are NULL: the trainer's step there is not known"
    scale = after / before if before else 1.0
    with torch.no_grad():
        for parameter, g in zip(network.parameters, gradient, strict=True):
            parameter.add_(g * scale + optimizer["weight_decay"] * parameter, alpha=-lr)
    return ""


def _unlike(update: int, apart: float) -> str:
    return (
        f"true gradients from update {update} on are NULL: with the stored weights its log-probs differ by "
        f"{apart:.2g} nats from those of the run"
    )


def _zeros(network: Network) -> list[Tensor]:
    return [torch.zeros_like(p) for p in network.parameters]


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(t.double()) for t in tensors]).norm())


def _cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> float | None:
    length = _norm(a) * _norm(b)
    inner = sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))
    return inner / length if length else None
