"""SkyRL: our algorithms as policy losses of its registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sorl.spec import InputError
from sorl.tensors import Tensor, torch
from sorl.trainers.loss import Loss, Metrics, metrics, note_split


def skyrl_loss(algorithm: str | Mapping[str, Any], **slots: Any) -> Callable[..., tuple[Tensor, Metrics]]:
    """Return a policy loss for SkyRL: `PolicyLossRegistry.register("st-ppo", skyrl_loss("st-ppo"))` before it
    starts.

    SkyRL scales the advantages so that a sum over tokens is its `loss_reduction`, which takes the place of
    the algorithm's aggregation; ratio, clip, correction and a stabiliser of the micro-batch are the
    algorithm's. With `token_mean` the scale is one number and leaves the stabiliser as it is. Raises
    InputError for what a micro-batch with scaled advantages cannot tell. Read against SkyRL 0.4.0, not run.
    """
    loss = Loss(algorithm, None, **({"aggregate": "token_sum"} | slots))
    own = loss.algorithm
    why = ""
    if own.kl.kind != "none":
        why = "has a term besides the surrogate, which SkyRL's reduction does not scale: kl='none'"
    elif own.clip.sums_size:
        why = "has a clip whose bounds need the whole update, more than a micro-batch: take another clip"
    elif own.stabilise.kind not in ("none", "rms_batch", "rms_turn", "rms_seq") or loss.needs_log_probs_first:
        why = "has a stabiliser that needs more than a micro-batch: stabilise={'scope': 'micro'}"
    elif getattr(own.correction, "normalise", False):
        why = "has a correction that needs the mean of an update: correction={'normalise': False}"
    if why:
        raise InputError(f"'{own.name}' {why}")
    note_split(own)

    def computed(
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any = None,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, Metrics]:
        mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
        told: dict[str, Any] = {"log_prob_old": old_log_probs, "log_prob_behaviour": rollout_logprobs}
        out = loss(loss.batch(mask=mask > 0, advantages=advantages, **told), log_probs)
        return out.loss, metrics(out.terms)

    return computed
