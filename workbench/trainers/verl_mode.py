"""verl: what a loss mode and the actor's configuration say, in our words."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from sorl.recording import Clip
from sorl.spec import InputError
from sorl.trainers.loss import Loss

PREFIX = "sorl:"
VANILLA = "vanilla"
# Of a loss mode, for the ledger; `advantage` is verl's algorithm.adv_estimator in our words.
KNOBS = ("record", "every", "trajectories", "tokens", "memory_mb", "advantage")
# Options of the actor that only verl's own loss reads.
OWN = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode")


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
