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

import json
import logging
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import torch
from torch import Tensor

from sorl.objective import LossTerms
from sorl.recording import Clip, Ledger
from sorl.spec import InputError
from sorl.trainers.loss import Loss, feedable, metrics, note_split, recorded
from sorl.trainers.trl import text_of

PREFIX = "sorl:"
VANILLA = "vanilla"
ROW = "sorl_row"
# Of a loss mode, for the ledger; `advantage` is verl's algorithm.adv_estimator in our words.
KNOBS = ("record", "every", "trajectories", "tokens", "memory_mb", "advantage")
# Options of verl's actor that change what is computed; those of its own loss are not read by ours.
SETTINGS = (
    "ppo_mini_batch_size",
    "ppo_micro_batch_size_per_gpu",
    "use_dynamic_bsz",
    "ppo_epochs",
    "rollout_n",
    "shuffle",
    "entropy_coeff",
    "use_kl_loss",
    "kl_loss_coef",
    "kl_loss_type",
    "loss_scale_factor",
)
OWN = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode")
FIELDS = {
    "mask": "response_mask",
    "advantages": "advantages",
    "log_prob_old": "old_log_probs",
    "log_prob_behaviour": "rollout_log_probs",
    "log_prob_ref": "ref_log_prob",
}

log = logging.getLogger("sorl.verl")


class Mode(NamedTuple):
    """A loss mode taken apart: the algorithm, its slots, and the knobs of the ledger; `record` is the run's
    folder.
    """

    name: str
    slots: Mapping[str, Any]
    knobs: Mapping[str, Any]

    @classmethod
    def of(cls, text: str) -> Mode:
        """Return what `sorl:st-ppo?stabilise.scope=global&record=runs/x` says; another loss mode is its own
        name.
        """
        name, _, query = (
            text.removeprefix(PREFIX).partition("?") if text.startswith(PREFIX) else (text, "", "")
        )
        # SORL_RECORD may carry knobs: runs/x&every=10
        given: dict[str, Any] = dict(parse_qsl(f"record={os.environ.get('SORL_RECORD', '')}&{query}"))
        for key in given.keys() - {"record"}:
            with suppress(json.JSONDecodeError):
                given[key] = json.loads(given[key])
        knobs = {key: given.pop(key) for key in KNOBS if key in given}
        if text.startswith(PREFIX) and name == VANILLA:
            if given:
                raise InputError(f"loss_mode '{text}': verl's own loss has no slot '{next(iter(given))}'")
            knobs = {"record": "runs/verl"} | knobs
        slots: dict[str, Any] = {}
        for key, value in given.items():
            slot, _, option = key.partition(".")
            slots[slot] = slots.get(slot, {}) | {option: value} if option else value
        return cls(name, slots, knobs)


@cache
def loss_of(mode: str, horizon: float | None) -> Loss | None:
    """Return our loss of a loss mode, None for verl's own. Raises InputError for what a loss cannot carry."""
    asked = Mode.of(mode)
    return (
        Loss(asked.name, horizon, **asked.slots)
        if mode.startswith(PREFIX) and asked.name != VANILLA
        else None
    )


def check(loss: Loss, config: Any) -> None:
    """Raise InputError for an actor's configuration that our loss cannot be fed from; says what to set."""
    own = loss.algorithm
    name = loss.algorithm.name
    verls = config.use_kl_loss and config.kl_loss_coef != 0
    if own.needs_reference and (verls or not config.use_kl_loss):
        first = "set actor.use_kl_loss=true, which makes verl compute the reference's log-probs"
        second = "actor.kl_loss_coef=0, which switches its term off"
        raise InputError(f"'{name}' has a KL term of its own: {first}, and {second}")
    per_micro_batch = own.stabilise.kind == "kl_clipfrac" and getattr(own.stabilise, "scope", "") == "micro"
    if config.use_dynamic_bsz and (own.aggregate.scope == "micro" or per_micro_batch):
        why = "weighs micro-batches alike, and their number is unknown with actor.use_dynamic_bsz=true"
        raise InputError(
            f"'{name}' {why}: set it to false, or aggregate.scope=global and stabilise.scope=global"
        )


@dataclass
class Update:
    """The update under way: its sums over micro-batches and ranks, the present micro-batch, and what came of
    it.
    """

    sums: Tensor | None = None
    micro_batches: int = 1
    data: Any = None
    terms: LossTerms | None = None


@dataclass
class Step:
    """The rows of this rank that verl trains on before it samples again."""

    data: Any
    per_epoch: int  # updates
    # (B,) of each row; -1 for the rows that verl adds to fill up a mini-batch
    trajectory: Tensor | None = None
    updates: int = 0
    recorder: Recorder | None = None


_now: Update | None = None
_step: Step | None = None


def dense(data: Any, name: str, width: int | None = None) -> Tensor | None:
    """Return a field of verl's batch as (B, width), 0 where padded; None where it has none."""
    found = data.get(name, None)
    if not isinstance(found, Tensor):
        return None
    x = found.to_padded_tensor(0) if found.is_nested else found
    return x if width is None or x.shape[1] == width else torch.nn.functional.pad(x, (0, width - x.shape[1]))


def fields(data: Any, log_prob: Tensor | None = None) -> dict[str, Any]:
    """Return the fields of verl's batch by our names, (B, T), T that of `log_prob`."""
    width = None if log_prob is None else log_prob.shape[1]
    return {ours: dense(data, theirs, width) for ours, theirs in FIELDS.items()}


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
        log_prob = _padded(model_output["log_probs"], data)
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


def _padded(values: Any, data: Any) -> Tensor:
    from verl.workers.utils.padding import no_padding_2_padding

    return no_padding_2_padding(values, data)  # the responses (B, T) of whole sequences


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


class Recorder:
    """Tells the ledger what the actor of this rank was trained on."""

    def __init__(self, engine: Any, config: Any, mode: str) -> None:
        asked = Mode.of(mode)
        learn = engine.optimizer_config
        loss = loss_of(mode, config.loss_scale_factor)
        knobs = dict(asked.knobs)
        folder = Path(str(knobs.pop("record")))
        tokenizer = getattr(engine.model_config, "tokenizer", None)
        settings = {
            key: config.get(key) for key in (*SETTINGS, *(OWN if loss is None else ())) if config.get(key)
        }
        settings |= {"loss_mode": mode.partition("?")[0], "slots": dict(asked.slots)}
        policy = {"lr": learn.lr, "max_grad_norm": learn.clip_grad or None}
        settings["learn"] = {"epochs": config.ppo_epochs, "policy": policy}
        self.most = float(learn.clip_grad or math.inf)
        self.number = -1
        self.step = Step(None, 1)
        self.actor: Any = None  # its module
        self.ranks = engine.get_data_parallel_size()
        planned = getattr(learn, "total_training_steps", -1)
        self.iterations = planned if planned and planned > 0 else None
        words = in_our_words(config, asked, loss, knobs.pop("advantage", None))
        self.ledger = Ledger(
            folder.parent,
            experiment=folder.name,
            algorithm=asked.name,
            settings=settings,
            trainer="verl",
            seed=config.data_loader_seed,
            iterations=self.iterations,
            clip=words.clip,
            replay_as=words.replay_as,
            undeclared=words.undeclared,
            decode=None if tokenizer is None else tokenizer.convert_ids_to_tokens,
            process_group=engine.get_data_parallel_group(),
            **knobs,
        )

    def rollouts(self, step: Step) -> None:
        """Record what was sampled, without the rows that verl adds to fill up a mini-batch: they have no loss
        mask.
        """
        self.number = self.number + 1
        self.step = step
        data = step.data
        masks = [x.bool() for x in (dense(data, "response_mask"), dense(data, "loss_mask")) if x is not None]
        real = torch.stack([mask.any(1) for mask in masks]).any(0)
        step.trajectory = torch.where(real, real.long().cumsum(0) - 1, -1)
        keep = real.nonzero().flatten().tolist()
        scores = [x for x in (dense(data, "rm_scores"), dense(data, "token_level_scores")) if x is not None]
        if not scores:
            raise ValueError("the batch has neither rm_scores nor token_level_scores")
        uid, told, model = (_list(data, name) for name in ("uid", "raw_prompt", "reward_model"))
        words: dict[str, Any] = {}
        if uid is not None:
            # The same prompt may be on several ranks: its number comes from its name alone.
            words["group"] = torch.tensor([zlib.crc32(str(uid[i]).encode()) & 0x7FFFFFFF for i in keep])
        if told is not None:
            words["question"] = [text_of(told[i]) for i in keep]
        if model is not None and all(isinstance(m, Mapping) and "ground_truth" in m for m in model):
            words["gold"] = [str(model[i]["ground_truth"]) for i in keep]
        prompts, responses = _tokens(data)
        self.ledger.rollouts(
            self.number,
            scores[0].sum(1)[keep],
            mask=masks[0][keep],
            prompts=[prompts[i] for i in keep],
            responses=[responses[i] for i in keep],
            **words,
        )

    def part(self, model_output: Any, data: Any, terms: LossTerms | None, out: Any) -> None:
        """Record a micro-batch once the backward pass has said how much each token weighs in the loss."""
        assert self.step.trajectory is not None
        values = model_output["log_probs"]
        log_prob = _padded(values, data).detach()
        width = log_prob.shape[1]
        entropy = model_output.get("entropy")
        weight = dense(data, "rollout_is_weights", width)
        number = self.step.updates
        step = self.number
        of_loss = (
            {"terms": {} if weight is None else {"correction": weight}} if terms is None else recorded(terms)
        )
        told = (
            fields(data, log_prob)
            | of_loss
            | {
                "update": number,
                "epoch": number // self.step.per_epoch,
                "log_prob": log_prob,
                "trajectory": self.step.trajectory[data[ROW].cpu()],
                "tokens": dense(data, "responses", width),
                "values_old": dense(data, "values", width),
                "returns": dense(data, "returns", width),
                "policy_loss": last_logged(out, "actor/pg_loss"),
                "clip_frac": last_logged(out, "actor/pg_clipfrac"),
                "entropy": None if entropy is None else _padded(entropy, data).detach(),
            }
        )

        def weighed(gradient: Tensor) -> None:
            with self.ledger.guarded("a gradient of this verl"):
                # of the mean over ranks
                told["terms"]["gradient_weight"] = _padded(gradient, data) / self.ranks
                self.ledger.update(step, **told)

        values.register_hook(weighed)

    def before(self, engine: Any) -> None:
        """Witness the actor before the first update of a step, where this rank has its whole tensors."""
        self.actor = getattr(engine, "module", None)
        if self.step.updates == 0 and hasattr(self.actor, "named_parameters"):
            named = self.actor.named_parameters()
            optimizer = getattr(engine, "optimizer", None)
            self.ledger.weights(self.number, "policy", named, optimizer=optimizer)

    def after(self, engine: Any, out: Mapping[str, Any]) -> None:
        """Record what is known after the update."""
        norm = out["metrics"].get("grad_norm")
        schedule = getattr(engine, "lr_scheduler", None)
        scalars = (
            {} if norm is None else {"grad_norm": float(norm), "grad_norm_after": min(float(norm), self.most)}
        )
        if schedule is not None and hasattr(schedule, "get_last_lr"):
            scalars["lr"] = float(schedule.get_last_lr()[0])
        self.ledger.update(self.number, update=self.step.updates, **scalars)
        self.step.updates += 1

    def end(self) -> None:
        """End the step, and the run after its last one."""
        if hasattr(self.actor, "named_parameters"):
            self.ledger.weights(self.number, "policy", self.actor.named_parameters(), when="end")
        self.ledger.end(self.number)
        if self.iterations is not None and self.number + 1 >= self.iterations:
            self.ledger.close()


def last_logged(out: Any, name: str) -> float | None:
    """What the loss function logs of its micro-batch under a name: a number, or verl's list of them."""
    logged = out[1].get(name)
    values = getattr(logged, "values", logged)
    if isinstance(values, list):
        values = values[-1] if values else None
    if isinstance(values, Tensor):
        values = values.item()
    return float(values) if isinstance(values, int | float) else None


class Words(NamedTuple):
    """An actor's configuration in our words, as a ledger takes it."""

    clip: Clip | None
    replay_as: Any
    undeclared: list[str]


def in_our_words(config: Any, mode: Mode, loss: Loss | None, estimator: Any) -> Words:
    """Return what a loss mode is in our words; `estimator`: that of the advantages, which the driver alone
    knows.
    """
    clip: Clip | None = None
    replay_as: Any = {"base": mode.name, **mode.slots}
    if loss is None:
        clip, replay_as = verls_own(config, mode.name)
    slots = untold(config, mode.name if loss is None else "")
    if estimator is not None and isinstance(replay_as, dict):
        replay_as |= {"advantage": estimator}
    else:
        slots.add("advantage")
    return Words(clip, replay_as, sorted(slots))


def untold(config: Any, own_loss: str) -> set[str]:
    """Return the slots of the algorithm that the actor's configuration does not say in our words; `own_loss`:
    verl's loss mode, empty for a loss of ours.
    """
    slots = {"kl"} if config.use_kl_loss else set()
    if own_loss not in ("", VANILLA):
        slots |= {"clip", "aggregate"}
    if config.loss_agg_mode == "seq-mean-token-sum-norm" and not config.loss_scale_factor:
        slots.add("aggregate")
    return slots


def _list(data: Any, name: str) -> list[Any] | None:
    """A field of verl's batch that is no tensor, an entry per row."""
    found = data.get(name, None)
    found = found.tolist() if hasattr(found, "tolist") else found
    return list(found) if isinstance(found, list | tuple) and len(found) == len(data) else None


def _tokens(data: Any) -> list[list[list[int]]]:
    """Token ids of prompts and responses, a list a row, without padding."""
    both = (data["prompts"], data["responses"])
    attention = dense(data, "attention_mask")
    if both[0].is_nested or attention is None:
        return [[row.tolist() for row in found] for found in both]
    masks = attention.bool().split([found.shape[1] for found in both], dim=1)
    return [[row[m].tolist() for row, m in zip(*pair, strict=True)] for pair in zip(both, masks, strict=True)]


def verls_own(config: Any, name: str) -> tuple[Clip | None, Any]:
    """Return what verl's own loss does with a ratio, and that loss in our words; only vanilla's clip is known
    here.
    """
    if name != VANILLA:
        return None, name
    low, high = (
        config.clip_ratio if x is None else x for x in (config.clip_ratio_low, config.clip_ratio_high)
    )
    dual = config.get("clip_ratio_c", 3.0)
    aggregate = config.loss_agg_mode.replace("-", "_")
    if aggregate == "seq_mean_token_sum_norm" and config.loss_scale_factor:
        aggregate = {"kind": aggregate, "horizon": float(config.loss_scale_factor)}
    kind = {"kind": "ppo", "low": low, "high": high, "dual": dual or "none"}
    return Clip(1 - low, 1 + high, dual), {"base": "ppo", "clip": kind, "aggregate": aggregate}


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
