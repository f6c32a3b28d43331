"""What a stored training batch holds: its arrays by name, and the batch and its updates as they are read.

Axes: B sequences, T token positions (prompt, observations and padding included), U optimizer updates of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Stored:
    """An array of the file: its axes, its kind, what it holds, and whether every file has it."""

    axes: Literal["B", "BT", "R", "RT", "U"]
    kind: Literal["int", "bool", "float"]
    text: str
    always: bool = True


ARRAYS: Mapping[str, Stored] = {
    "tokens": Stored("BT", "int", "vocabulary ids, right-padded"),
    "response": Stored("BT", "bool", "true at every token after the prompt, observations included"),
    "mask": Stored("BT", "bool", "loss mask: the policy wrote the token and the selection kept its sequence"),
    "mask_sampled": Stored("BT", "bool", "the loss mask before the selection, where that dropped sequences", False),
    "length": Stored("B", "int", "tokens that are not padding"),
    "group": Stored("B", "int", "prompt group"),
    "trajectory": Stored("B", "int", "index of the trajectory in the batch"),
    "score": Stored("B", "float", "outcome reward"),
    "log_prob_behaviour": Stored("BT", "float", "log-prob under the sampler (nats)"),
    "log_prob_old": Stored("BT", "float", "log-prob under the proximal policy (nats)"),
    "log_prob_ref": Stored("BT", "float", "log-prob under the frozen reference (nats)", False),
    "values": Stored("BT", "float", "critic before the updates", False),
    "advantages": Stored("BT", "float", "advantages that were trained on"),
    "returns": Stored("BT", "float", "targets of the critic", False),
    "sentence": Stored("BT", "int", "sentence of each token from 1, 0 = none", False),
    "placebo": Stored("BT", "int", "placebo turn of each token from 1", False),
    "update.size": Stored("U", "int", "sequences of each optimizer update"),
    "update.rows": Stored("R", "int", "their rows in the batch, one update after another"),
    "update.log_prob": Stored("RT", "float", "log-prob under the policy at the start of the update (nats)"),
    "update.values": Stored("RT", "float", "critic at the start of the update", False),
    "update.mask": Stored("RT", "bool", "loss mask of the update, where it trained on a part of each row", False),
    "update.advantages": Stored("RT", "float", "advantages of the update, likewise", False),
    "update.log_prob_old": Stored("RT", "float", "log-prob under the proximal policy of the update, likewise", False),
}
"""Every array of a file, except the weights `policy.*` and `critic.*`. R = rows of all updates together."""


@dataclass(frozen=True)
class StoredUpdate:
    """One optimizer update, measured at the weights before it; b of the B sequences.

    `scalars` holds what the trainer logged of it (grad_norm, policy_loss, stabiliser_factor, ...; None = not measured),
    `passes` the sequences of each of its micro-batches, in order.
    """

    index: int
    epoch: int
    rollout_step: int
    rows: np.ndarray  # (b,) int, in the batch
    log_prob: np.ndarray  # (b, T) nats
    values: np.ndarray | None  # (b, T)
    mask: np.ndarray | None  # (b, T) bool, None = that of the batch's rows
    advantages: np.ndarray | None  # (b, T), None = those of the batch's rows
    passes: tuple[int, ...]
    scalars: Mapping[str, float | None]
    log_prob_old: np.ndarray | None = None  # (b, T) nats, None = those of the batch's rows


@dataclass(frozen=True)
class StoredBatch:
    """The training batch of one step as it was trained on. Log-probs are nats, 0 where not defined.

    `meta` holds what the numbers depend on: algorithm, slots, temperature, learn, compute, completion_budget, and model
    (the architecture) where weights are stored. `mask` is the loss mask after the algorithm's selection, `mask_sampled`
    before it.
    """

    step: int
    tokens: np.ndarray  # (B, T) int
    response: np.ndarray  # (B, T) bool
    mask: np.ndarray  # (B, T) bool
    mask_sampled: np.ndarray  # (B, T) bool
    length: np.ndarray  # (B,) int
    group: np.ndarray  # (B,) int
    trajectory: np.ndarray  # (B,) int
    score: np.ndarray  # (B,)
    log_prob_behaviour: np.ndarray  # (B, T)
    log_prob_old: np.ndarray  # (B, T)
    log_prob_ref: np.ndarray | None  # (B, T)
    values: np.ndarray | None  # (B, T)
    advantages: np.ndarray  # (B, T)
    returns: np.ndarray | None  # (B, T)
    sentence: np.ndarray | None  # (B, T) int
    placebo: np.ndarray | None  # (B, T) int
    updates: tuple[StoredUpdate, ...]
    meta: Mapping[str, Any]
    texts: Mapping[int, str] = field(default_factory=dict, repr=False)  # of token ids; whoever shows them escapes them
    weights: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)  # at the start of the step

    @property
    def turn(self) -> np.ndarray:
        """Turn of each token, (B, T): 1..K where the policy wrote it, 0 elsewhere."""
        written = self.mask_sampled
        begins = written & ~np.pad(written, ((0, 0), (1, 0)))[:, :-1]
        return np.where(written, begins.cumsum(1), 0)
