"""Stored training batches as NumPy arrays: B sequences, T positions (padding included), U
optimizer updates.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy import ndarray
from safetensors import SafetensorError, safe_open

from sorl.spec import BATCH_FOLDER, BATCH_FORMAT, InputError
from sorl.store.segments import folder_of as folder_of


class Stored(NamedTuple):
    """An array of the file: its axes, its kind, what it holds, and whether every file has it."""

    axes: Literal["B", "BT", "BTW", "R", "RT", "U"]
    kind: Literal["int", "bool", "float"]
    text: str
    always: bool = True


@dataclass(frozen=True)
class StoredUpdate:
    """One optimizer update, measured at the weights before it; b of the B sequences.

    `scalars` holds what the trainer logged of it (grad_norm, policy_loss, stabiliser_factor, ...; None = not
    measured), `passes` the sequences of each of its micro-batches, in order. Arrays have b rows; mask,
    advantages and log_prob_old are None where they are those of the batch's rows.
    """

    index: int
    epoch: int
    rollout_step: int
    passes: tuple[int, ...]
    scalars: Mapping[str, float | None]
    rows: Annotated[ndarray, Stored("R", "int", "their rows in the batch, one update after another")]
    log_prob: Annotated[
        ndarray, Stored("RT", "float", "log-prob under the policy at the start of the update (nats)")
    ]
    values: Annotated[ndarray | None, Stored("RT", "float", "critic at the start of the update", False)] = (
        None
    )
    mask: Annotated[ndarray | None, Stored("RT", "bool", "its loss mask, if it trained on parts", False)] = (
        None
    )
    advantages: Annotated[ndarray | None, Stored("RT", "float", "its advantages, likewise", False)] = None
    log_prob_old: Annotated[
        ndarray | None, Stored("RT", "float", "its old log-prob, likewise (nats)", False)
    ] = None
    gradient_weight: Annotated[
        ndarray | None,
        Stored("RT", "float", "d loss / d log-prob, of another trainer's backward pass", False),
    ] = None


@dataclass(frozen=True)
class StoredBatch:
    """The training batch of one step as it was trained on. Log-probs are nats, 0 where not defined.

    `meta` holds what the numbers depend on: algorithm, slots, temperature, learn, compute, completion_budget,
    and model (the architecture) where weights are stored. Of another trainer's run: told (what the trainer
    handed over), absent (arrays that stand in for what it did not), undeclared (slots of the algorithm that
    are a guess), group_rollouts (how many rollouts the group of each row has) and turns (how many each row
    took, if the trainer counts them).
    `texts` are those of token ids: escape them before showing them. `mask_sampled` is the loss mask before
    the selection in every batch that is read, `weights` those of its start.
    """

    step: int
    tokens: Annotated[ndarray, Stored("BT", "int", "vocabulary ids, right-padded")]
    response: Annotated[
        ndarray, Stored("BT", "bool", "true at every token after the prompt, observations included")
    ]
    mask: Annotated[
        ndarray, Stored("BT", "bool", "loss mask: written by the policy, in a sequence that was selected")
    ]
    mask_sampled: Annotated[
        ndarray, Stored("BT", "bool", "loss mask before a selection that dropped sequences", False)
    ]
    length: Annotated[ndarray, Stored("B", "int", "tokens that are not padding")]
    group: Annotated[ndarray, Stored("B", "int", "prompt group")]
    trajectory: Annotated[ndarray, Stored("B", "int", "index of the trajectory in the batch")]
    score: Annotated[ndarray, Stored("B", "float", "outcome reward")]
    rollout: Annotated[
        ndarray | None, Stored("B", "int", "rollout of each row, where several are of one", False)
    ]
    log_prob_behaviour: Annotated[
        ndarray | None, Stored("BT", "float", "log-prob under the sampler (nats)", False)
    ]
    log_prob_old: Annotated[ndarray, Stored("BT", "float", "log-prob under the proximal policy (nats)")]
    log_prob_ref: Annotated[
        ndarray | None, Stored("BT", "float", "log-prob under the frozen reference (nats)", False)
    ]
    values: Annotated[ndarray | None, Stored("BT", "float", "critic before the updates", False)]
    advantages: Annotated[ndarray, Stored("BT", "float", "advantages that were trained on")]
    returns: Annotated[ndarray | None, Stored("BT", "float", "targets of the critic", False)]
    sentence: Annotated[ndarray | None, Stored("BT", "int", "sentence of each token from 1, 0 = none", False)]
    placebo: Annotated[ndarray | None, Stored("BT", "int", "placebo turn of each token from 1", False)]
    routes_behaviour: Annotated[
        ndarray | None, Stored("BTW", "int", "experts of each layer in the sampler", False)
    ]
    routes_old: Annotated[
        ndarray | None, Stored("BTW", "int", "the same in the trainer under the old weights", False)
    ]
    updates: tuple[StoredUpdate, ...]
    meta: Mapping[str, Any]
    staleness: Annotated[
        ndarray | None, Stored("B", "int", "policy versions since the row was sampled", False)
    ] = None
    squared_probs: Annotated[
        ndarray | None,
        Stored("BT", "float", "sum over the vocabulary of the squared old probabilities", False),
    ] = None
    turn_score: Annotated[
        ndarray | None, Stored("BT", "float", "that reward against those of its turn index", False)
    ] = None
    turn_reward: Annotated[
        ndarray | None, Stored("BT", "float", "process reward of the token's turn", False)
    ] = None
    void: Annotated[
        ndarray | None, Stored("BT", "bool", "true in turns with neither a tool call nor an answer", False)
    ] = None
    texts: Mapping[int, str] = field(default_factory=dict, repr=False)
    weights: Mapping[str, ndarray] = field(default_factory=dict, repr=False)

    @property
    def absent(self) -> frozenset[str]:
        """Arrays that stand in for what was not told: log_prob, log_prob_old, advantages, score."""
        return frozenset(map(str, self.meta.get("absent", ())))

    @property
    def turn(self) -> ndarray:
        """Turn of each token, (B, T): 1..K where the policy wrote it, 0 elsewhere."""
        written = self.mask_sampled
        begins = written & ~np.pad(written, ((0, 0), (1, 0)))[:, :-1]
        return np.where(written, begins.cumsum(1), 0)


def _arrays(of: type, prefix: str = "") -> dict[str, Stored]:
    return {
        prefix + n: kind.__metadata__[0]
        for n, kind in of.__annotations__.items()
        if hasattr(kind, "__metadata__")
    }


ARRAYS: Mapping[str, Stored] = {
    **_arrays(StoredBatch),
    "update.size": Stored("U", "int", "sequences of each optimizer update"),
    **_arrays(StoredUpdate, "update."),
}
"""Every array of a file, except the weights. R = rows of all updates together."""
# how the names of the weights and of the optimizers' state begin
WEIGHTS = ("policy.", "critic.", "optimizer.")


def steps(run_folder: Path) -> list[int]:
    """Steps of which the batch is stored, in order; none where there are no batches."""
    found = (run_folder / BATCH_FOLDER).glob("[0-9]*.safetensors")
    return sorted(int(file.stem) for file in found if file.stem.isdecimal() and file.is_file())


def file_of(run_folder: Path, step: int) -> Path:
    """Return the file of a stored step. Raises InputError, with the steps that there are, where it is not
    stored.
    """
    known = steps(run_folder)
    if step in known:
        return run_folder / BATCH_FOLDER / f"{step:06d}.safetensors"
    if not known:
        why = "it was trained without them (record.batches.mb = 0), has not begun, or its disk was full"
        raise InputError(
            f"run '{run_folder.name}' has no stored batches: {why}; train it again with `sorl run`"
        )
    near = min(known, key=lambda other: abs(other - step))
    kept = (
        f"stored are {ranges(known)}; the nearest is --step {near} (record.batches says which steps are kept)"
    )
    raise InputError(f"the batch of step {step} of run '{run_folder.name}' is not stored; {kept}")


def read(run_folder: Path, step: int, *, weights: bool = False) -> StoredBatch:
    """Return the batch of a stored step, with `weights` also those of its start; InputError where it cannot
    be read.
    """
    file = file_of(run_folder, step)
    try:
        with safe_open(file, framework="numpy") as opened:
            meta = json.loads((opened.metadata() or {}).get("sorl", "null"))
            kept = [name for name in set(opened.keys()) if weights or not name.startswith(WEIGHTS)]
            arrays = {name: opened.get_tensor(name) for name in kept}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise _broken(file, str(error)) from None
    if not isinstance(meta, dict) or not isinstance(meta.get("format"), int):
        raise _broken(file, "it does not say that it is a batch of sorl")
    if meta["format"] > BATCH_FORMAT:
        newer = f"a newer sorl (format {meta['format']}, this one reads up to {BATCH_FORMAT})"
        raise InputError(f"'{file}' was written by {newer}; update sorl to read it")
    if problem := _problem(arrays):
        raise _broken(file, problem)
    try:
        updates = _updates(arrays, meta)
        texts = {int(token): str(text) for token, text in meta.pop("texts", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(file, f"its list of updates cannot be read ({error})") from None
    plain: dict[str, Any] = {n: arrays.get(n) for n in _arrays(StoredBatch)}
    plain["mask_sampled"] = arrays.get("mask_sampled", arrays["mask"])
    plain["meta"] = {key: value for key, value in meta.items() if key not in ("updates", "step")}
    plain["weights"] = {name: array for name, array in arrays.items() if name.startswith(WEIGHTS)}
    return StoredBatch(step=step, updates=updates, texts=texts, **plain)


def ranges(numbers: list[int]) -> str:
    """`0, 20, 31-46`: neighbours joined."""
    runs = []
    for _, run in groupby(enumerate(numbers), lambda place: place[1] - place[0]):
        runs.append([number for _, number in run])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _problem(arrays: Mapping[str, ndarray]) -> str:
    """Return what is wrong with the arrays of a file; empty where nothing is."""
    missing = [name for name, stored in ARRAYS.items() if stored.always and name not in arrays]
    if missing:
        return f"it lacks {', '.join(missing)}"
    if arrays["tokens"].ndim != 2 or arrays["update.rows"].ndim != 1 or arrays["update.size"].ndim != 1:
        return "its arrays have other axes than those of a batch"
    b, t = arrays["tokens"].shape
    r = len(arrays["update.rows"])
    u = len(arrays["update.size"])
    shapes = {"B": (b,), "BT": (b, t), "R": (r,), "RT": (r, t), "U": (u,)}
    kinds = {"int": "iu", "bool": "b", "float": "f"}
    for name, stored in ARRAYS.items():
        if name not in arrays:
            continue
        wanted = (b, t, *arrays[name].shape[2:3]) if stored.axes == "BTW" else shapes[stored.axes]
        if arrays[name].shape != wanted:
            return f"{name} has shape {arrays[name].shape}, expected {wanted}"
        if arrays[name].dtype.kind not in kinds[stored.kind]:
            return f"{name} holds {arrays[name].dtype}, expected {stored.kind}"
    rows = arrays["update.rows"]
    sizes = arrays["update.size"]
    length = arrays["length"]
    if (sizes < 0).any() or sizes.sum() != r or (r and (rows.min() < 0 or rows.max() >= b)):
        return "its updates speak of rows that it does not have"
    if b == 0 or t == 0 or (length < 0).any() or (length > t).any():
        return "its lengths do not fit its tokens"
    return ""


def _updates(arrays: Mapping[str, ndarray], meta: Mapping[str, Any]) -> tuple[StoredUpdate, ...]:
    ends = arrays["update.size"].cumsum()
    if len(meta["updates"]) != len(ends):
        raise ValueError(f"{len(meta['updates'])} are described, {len(ends)} stored")
    found = []
    for index, (end, size, described) in enumerate(
        zip(ends, arrays["update.size"], meta["updates"], strict=True)
    ):
        whole: dict[str, Any] = {name: arrays.get(f"update.{name}") for name in _arrays(StoredUpdate)}
        own: dict[str, Any] = {name: x if x is None else x[end - size : end] for name, x in whole.items()}
        passes = tuple(int(n) for n in described["passes"])
        if sum(passes) != size:
            raise ValueError(f"the micro-batches of update {index} are not its rows")
        place = index, int(described["epoch"]), int(described["rollout_step"])
        found.append(StoredUpdate(*place, passes, dict(described["scalars"]), **own))
    return tuple(found)


def _broken(file: Path, why: str) -> InputError:
    help_ = "It is damaged (full disk, partial copy); remove it, or choose another step"
    return InputError(f"'{file}' cannot be read: {why}. {help_}")
