"""verl: a plugin that verl loads itself; our losses as `loss_mode: sorl:st-ppo`, and the turn ledger of its
actor.

In `actor_rollout_ref.actor.policy_loss`, with slots and what to record after a question mark:

    loss_mode: "sorl:st-ppo?stabilise.scope=global&record=runs/my-7b&every=10"

`sorl:vanilla` is verl's own loss, recorded. The environment variable SORL_RECORD=runs/my-7b records any loss
mode. Three functions of verl are wrapped: ActorConfig.__post_init__ (refuses by name before a model is
loaded), make_iterator (a step begins and ends) and BaseEngine.train_batch (the counts of an update, and what
came of it). What they compute stays as it is. Read for verl 0.9; docs/losses.md says what was run.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from sorl.objective import LossTerms
from sorl.spec import InputError
from sorl.trainers.loss import Loss, feedable, metrics, note_split
from sorl.trainers.verl_batch import ROW, dense_responses, fields
from sorl.trainers.verl_mode import OWN, PREFIX, VANILLA, Mode, check, loss_of
from sorl.trainers.verl_recorder import Recorder, Step

log = logging.getLogger("sorl.verl")


@dataclass
class Update:
    """The update under way: its sums over micro-batches and ranks, the present micro-batch, and what came of
    it.
    """

    sums: Tensor | None = None
    micro_batches: int = 1
    data: Any = None
    terms: LossTerms | None = None


_now: Update | None = None
_step: Step | None = None


def policy_loss(mode: str) -> Callable[..., tuple[Tensor, dict[str, Any]]]:
    """Return the function that verl calls for every micro-batch: the loss, and what it logs."""

    def computed(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        loss = loss_of(mode, config.loss_scale_factor)
        if loss is None:
            from verl.trainer.ppo.core_algos import get_policy_loss_fn

            return get_policy_loss_fn(VANILLA)(
                old_log_prob=old_log_prob,
                log_prob=log_prob,
                advantages=advantages,
                response_mask=response_mask,
                loss_agg_mode=loss_agg_mode,
                config=config,
                rollout_is_weights=rollout_is_weights,
            )
        if rollout_is_weights is not None:
            instead = "set it to null, and correct in the loss with correction=tis"
            raise InputError(
                f"loss_mode '{mode}' does not apply algorithm.rollout_correction.rollout_is: {instead}"
            )
        if _now is None or _now.data is None:
            raise InputError(
                f"loss_mode '{mode}' needs the engines of verl 0.9: train_batch did not begin its update"
            )
        out = loss(loss.batch(**fields(_now.data, log_prob)), log_prob, _now.sums, _now.micro_batches)
        _now.terms = out.terms
        seen = metrics(out.terms)
        named = {"actor/pg_clipfrac": seen.pop("clip_frac"), "actor/ppo_kl": seen.pop("approx_kl")}
        seen.pop("policy_loss")  # verl logs it as actor/pg_loss
        # Gradients are averaged over the ranks, as of verl's own losses.
        return out.loss * config.global_batch_info["dp_size"], named | {
            f"actor/sorl_{k}": x for k, x in seen.items()
        }

    return computed


def begin(engine: Any, data: Any, config: Any, loss: Loss | None) -> Update:
    """Add up over all micro-batches and ranks what the means of an update divide by."""
    if loss is None:
        return Update()
    parts = []

    def collect(
        model_output: Mapping[str, Any], data: Any, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        log_prob = dense_responses(model_output["log_probs"], data)
        parts.append(loss.sums(loss.batch(**fields(data, log_prob)), log_prob))
        return log_prob.new_zeros(()), {}

    with torch.no_grad():
        if loss.needs_log_probs_first:
            engine.forward_backward_batch(data, collect, forward_only=True)
        else:
            parts.append(loss.sums(loss.batch(**fields(data))))
    if not parts:  # of a pipeline only the last stage has log-probs, and computes a loss
        return Update()
    total = torch.stack(parts).sum(0)
    ranks = 1
    group = engine.get_data_parallel_group()
    if group is not None and torch.distributed.is_initialized():
        from verl.utils.device import get_device_id

        total = total.to(get_device_id())
        ranks = engine.get_data_parallel_size()
        torch.distributed.all_reduce(total, group=group)
    micro = 1 if config.use_dynamic_bsz else len(data) // data["micro_batch_size_per_gpu"]
    return Update(total, micro * ranks)


def training(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap BaseEngine.train_batch: an update with a loss of ours has its counts first, and a recorded one is
    told.
    """

    @wraps(plain)
    def train_batch(engine: Any, data: Any, loss_function: Any) -> Any:
        global _now
        config: Any = getattr(loss_function, "keywords", {}).get("config")
        if getattr(config, "policy_loss", None) is None:  # a critic, or supervised fine-tuning
            return plain(engine, data, loss_function)
        mode = config.policy_loss.get("loss_mode", VANILLA)
        _now = update = begin(engine, data, config, loss_of(mode, config.loss_scale_factor))
        recorder = recorder_of(engine, config, mode)
        if recorder is not None:
            recorder.before(engine)

        def watched(model_output: Any, data: Any, dp_group: Any = None) -> Any:
            update.data = data
            update.terms = None
            out = loss_function(model_output=model_output, data=data, dp_group=dp_group)
            if recorder is not None:
                with recorder.ledger.guarded("a micro-batch of this verl"):
                    recorder.part(model_output, data, update.terms, out)
            return out

        try:
            out = plain(engine, data, watched)
        finally:
            _now = None
        if recorder is not None:
            with recorder.ledger.guarded("an update of this verl"):
                recorder.after(engine, out)
        return out

    return train_batch


def recorder_of(engine: Any, config: Any, mode: str) -> Recorder | None:
    """Return the recorder of this engine, made at its first update; None where nothing is recorded, or not
    here.
    """
    if _step is None or not Mode.of(mode).knobs.get("record") or not engine.is_mp_src_rank_with_outputs():
        return None
    if not hasattr(engine, "sorl_recorder"):
        engine.sorl_recorder = Recorder(engine, config, mode)
    recorder: Recorder = engine.sorl_recorder
    if _step.recorder is None:
        _step.recorder = recorder
        with recorder.ledger.guarded("a batch of this verl"):
            recorder.rollouts(_step)
    return None if recorder.ledger.dead else recorder


def stepping(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap tensordict_utils.make_iterator, which splits what was sampled into the mini-batches
    of all epochs.
    """

    @wraps(plain)
    def make_iterator(
        tensordict: Any, mini_batch_size: int, epochs: int, *more: Any, **options: Any
    ) -> Iterator[Any]:
        data = tensordict.clone(recurse=False)
        data[ROW] = torch.arange(len(data))
        step = Step(data, len(data) // mini_batch_size)

        def batches() -> Iterator[Any]:
            global _step
            _step = step
            yield from plain(data, mini_batch_size, epochs, *more, **options)
            if step.recorder is not None:
                step.recorder.end()
            _step = None

        return batches()

    return make_iterator


def install() -> None:
    """Put our losses and wraps into verl; done once in every process that imports it."""
    import verl.utils.tensordict_utils as tensordict_utils
    from verl.trainer.ppo.core_algos import register_policy_loss
    from verl.workers.config import ActorConfig

    names = [VANILLA, *feedable()]
    told = set()
    for name in names:
        register_policy_loss(PREFIX + name)(policy_loss(PREFIX + name))
    plain = ActorConfig.__post_init__
    iterate = stepping(tensordict_utils.make_iterator)

    @wraps(plain)
    def checked(config: Any) -> None:
        plain(config)
        mode = config.policy_loss.get("loss_mode", VANILLA)
        if mode.startswith(PREFIX):
            if loss := loss_of(mode, config.loss_scale_factor):
                check(loss, config)
                if mode not in told:
                    note_split(loss.algorithm)
            register_policy_loss(mode)(policy_loss(mode))
            if mode not in told and os.environ.get("RANK", "0") == "0":
                told.add(mode)
                ours = Mode.of(mode).name != VANILLA
                folder = Mode.of(mode).knobs.get("record")
                unread = f"; {', '.join(OWN)} of the actor are not read" if ours else ""
                log.warning(
                    "loss_mode %s, %s%s", mode, f"recorded in {folder}" if folder else "not recorded", unread
                )

    def make_iterator(*args: Any, **options: Any) -> Iterator[Any]:
        from verl.workers.engine.base import BaseEngine  # heavy, and loaded already where it is needed

        if not hasattr(BaseEngine.train_batch, "__wrapped__"):
            BaseEngine.train_batch = training(BaseEngine.train_batch)
        return iterate(*args, **options)

    ActorConfig.__post_init__ = checked
    tensordict_utils.make_iterator = make_iterator
    log.info("%d losses as loss_mode %s<name>: %s", len(names), PREFIX, ", ".join(names))


if "verl" in sys.modules:  # loaded by verl, which hides what goes wrong here
    try:
        install()
    except Exception as error:  # noqa: BLE001  of any kind: verl would hide it, and train without a word
        why = f"{type(error).__name__}: {error}"
        log.error("sorl's plugin for verl was not loaded, there is no loss_mode sorl:...: %s", why)
