"""Tinker: our algorithms as the loss of its `forward_backward_custom`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sorl.spec import InputError
from sorl.tensors import Tensor, torch
from sorl.trainers.loss import Loss, Metrics, metrics


def tinker_loss(
    algorithm: str | Mapping[str, Any], horizon: float | None = None, **slots: Any
) -> Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, Metrics]]:
    """Return a loss for tinker's `training_client.forward_backward_custom(data, loss)`; a call is a whole
    update.

    Every datum carries `mask`, `advantages` and `logprobs` in its loss_fn_inputs, as the cookbook makes them,
    all of one length; the sampler's log-probs are those of the old policy. Raises InputError as Loss does,
    and for a KL term: no reference is there. Read against tinker 0.38 and tinker-cookbook 0.6.1, not run.
    """
    loss = Loss(algorithm, horizon, **slots)
    padded = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    if loss.algorithm.needs_reference:
        name = loss.algorithm.name
        raise InputError(f"the KL term of '{name}' needs the reference's log-probs: leave it out: kl='none'")

    def computed(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, Metrics]:
        def field(name: str) -> Tensor:
            return padded([datum.loss_fn_inputs[name].to_torch() for datum in data])

        sampler_log_prob = field("logprobs")
        batch = loss.batch(
            mask=field("mask") > 0,
            advantages=field("advantages"),
            log_prob_old=sampler_log_prob,
            log_prob_behaviour=sampler_log_prob,
        )
        out = loss(batch, padded(list(logprobs)))
        return out.loss, metrics(out.terms)

    return computed
