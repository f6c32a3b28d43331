"""The mask self-test: on a synthetic batch, only what the policy wrote is trained on.

Prompts, observations and padding must carry no gradient, and must not change the loss as long as the log-probs of the
written tokens stay what they are; and padding must not reach those log-probs through the network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.batch import Batch
from workbench.learn.networks import log_probs
from workbench.learn.synthetic import Synthetic, synthetic
from workbench.objective.algorithm import Algorithm
from workbench.objective.pipeline import policy_loss, prepare
from workbench.objective.value import positions, value_loss

_NETWORK = 1e-4  # nats; kernels may order a sum differently for another batch content, padding that is read moves more


def problem(
    algorithm: Algorithm, group_size: int, model: PreTrainedModel, pad_id: int, temperature: float = 1.0
) -> str:
    """What is wrong with the masks of this algorithm and this network, in a sentence; empty when nothing is."""
    table: Any = model.get_input_embeddings()
    made = synthetic(group_size, table.num_embeddings, pad_id)
    return _mask(made) or _policy(algorithm, made) or _critic(algorithm, made) or _network(model, made, temperature)


def _mask(made: Synthetic) -> str:
    if torch.equal(made.batch.mask, made.written):
        return ""
    return f"the loss mask is not what the policy wrote: it has {_where(made.batch.mask & ~made.written, made)} in it"


def _policy(algorithm: Algorithm, made: Synthetic) -> str:
    batch, log_prob = made.batch, made.batch.log_prob_old + _drift(made)
    loss, gradient = _loss(algorithm, batch, log_prob)
    leaking = (gradient != 0) & ~made.written
    if bool(leaking.any()):
        return f"the loss of '{algorithm.name}' has a gradient at {_where(leaking, made)}"
    other, changed = _elsewhere(batch, made), torch.where(made.written, log_prob, log_prob - 2.0)
    if not torch.equal(loss, _loss(algorithm, other, changed)[0]):
        return (
            f"the loss of '{algorithm.name}' changes with tokens that the policy did not write "
            "although the log-probs of the written ones stay"
        )
    return ""


def _critic(algorithm: Algorithm, made: Synthetic) -> str:
    if not algorithm.critic:
        return ""
    batch = prepare(algorithm, made.batch)
    assert batch.values is not None
    where = algorithm.advantage.critic_mask
    values = batch.values.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value_loss(values, batch, mask=where), values)
    allowed = made.written | (made.observed if where == "a" else positions(batch, where) & made.written)
    leaking = (gradient != 0) & ~allowed
    return f"the critic's loss has a gradient at {_where(leaking, made)}" if bool(leaking.any()) else ""


@torch.no_grad()
def _network(model: PreTrainedModel, made: Synthetic, temperature: float) -> str:
    tokens = made.batch.tokens
    other = torch.where(made.padding, (tokens + 1) % int(tokens.max() + 1), tokens)
    with torch.random.fork_rng(devices=[]):  # a model that draws (dropout) draws the same twice, and nobody else's
        seen = []
        for ids in (tokens, other):
            torch.manual_seed(0)
            seen.append(log_probs(model, ids, temperature)[0])
    moved = float(torch.where(made.written, seen[0] - seen[1], 0).abs().max())
    if moved <= _NETWORK:
        return ""
    return f"the log-probs of written tokens move by {moved:.3g} nats when only the padding after them changes"


def _loss(algorithm: Algorithm, batch: Batch, log_prob: Tensor) -> tuple[Tensor, Tensor]:
    leaf = log_prob.clone().requires_grad_()
    loss = policy_loss(algorithm, prepare(algorithm, batch), leaf).loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def _drift(made: Synthetic) -> Tensor:
    """Log-ratios on both sides of any clip range, the same at every call, (B, T)."""
    return torch.linspace(-0.6, 0.6, made.written.numel(), dtype=torch.float64).view(made.written.shape)


def _elsewhere(batch: Batch, made: Synthetic) -> Batch:
    """The batch with other tokens and log-probs wherever the policy did not write, and other values in the padding."""

    def moved(x: Tensor | None) -> Tensor | None:
        return None if x is None else torch.where(made.written, x, x + 1.5)

    assert batch.values is not None
    return replace(
        batch,
        tokens=torch.where(made.written, batch.tokens, batch.tokens.flip(1)),
        log_prob_behaviour=torch.where(made.written, batch.log_prob_behaviour, batch.log_prob_behaviour + 1.5),
        log_prob_old=torch.where(made.written, batch.log_prob_old, batch.log_prob_old + 1.5),
        log_prob_ref=moved(batch.log_prob_ref),
        values=torch.where(made.padding, batch.values + 7.0, batch.values),
    )


def _where(tokens: Tensor, made: Synthetic) -> str:
    """Which kinds of token are among `tokens`, in words."""
    kinds = {
        "padding": tokens & made.padding,
        "observations": tokens & made.observed,
        "prompts": tokens & ~(made.padding | made.observed | made.written),
        "written tokens": tokens & made.written,
    }
    found = [name for name, where in kinds.items() if bool(where.any())]
    return " and ".join(found) or "too few tokens"
