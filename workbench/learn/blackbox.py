"""The batch of a step for the black box, with the log-probs of every update and the weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sorl.batch import Batch
from sorl.learn.networks import passes
from sorl.learn.update import Learner
from sorl.measures.evidence import Evidence
from sorl.recording.recorder import MB
from sorl.spec import RunSettings

# Of a stored batch: int64 that int32 holds, and what is stored as it is.
NARROW = ("tokens", "length", "group", "trajectory", "sentence", "placebo", "staleness")
DENSE = (
    "response",
    "mask",
    "void",
    "turn_reward",
    "squared_probs",
    "turn_score",
    "score",
    "log_prob_behaviour",
    "log_prob_old",
    "log_prob_ref",
    "values",
    "advantages",
    "returns",
    "routes_behaviour",
    "routes_old",
)


class Packer:
    """Packs the batch of a step: `open` comes before the advantages are estimated, `close` after the last
    update.
    """

    def __init__(self, settings: RunSettings, learner: Learner) -> None:
        self.settings = settings
        self.learner = learner
        self._mask: Tensor | None = None
        self._weights: dict[str, np.ndarray] = {}
        self._update = 0
        self._steps = dict[str, int]()

    def open(self, batch: Batch) -> None:
        """Remember what the step is about to change: the loss mask before the selection, the weights that
        fit.
        """
        limits = self.settings.record.batches
        if not limits.mb:
            return
        both = {"policy": self.learner.policy, "critic": self.learner.critic}
        owned = [
            (owner, network.named_parameters()) for owner, network in both.items() if network is not None
        ]
        weights: dict[str, Tensor] = {}
        for owner, named in owned:
            weights |= {f"{owner}.{name}": weight.detach() for name, weight in named}
        fit = (
            sum(weight.numel() * weight.element_size() for weight in weights.values())
            <= limits.weights_mb * MB
        )
        self._weights = {name: weight.cpu().numpy().copy() for name, weight in weights.items()} if fit else {}
        self._mask = batch.mask
        self._update = self.learner.updates
        for owner, optimizer in self.learner.optimizers.items() if fit else ():
            state = _optimizer_state(owner, optimizer)
            if (
                sum(array.nbytes for array in (*self._weights.values(), *state.values()))
                <= limits.weights_mb * MB
            ):
                self._weights |= state
        # Steps that an optimizer has counted: fewer than the run's updates where its state was lost. 0 for
        # SGD.
        optimizers = self.learner.optimizers
        self._steps = {owner: _counted_steps(optimizer) for owner, optimizer in optimizers.items()}

    def close(
        self, batch: Batch, updates: Sequence[Evidence]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Arrays and metadata of the step, as `sorl.store.batches` reads them; None where nothing is
        kept.
        """
        if self._mask is None:
            return None
        columns = {name: getattr(batch, name) for name in (*NARROW, *DENSE)}
        arrays = {name: _numpy(column) for name, column in columns.items() if column is not None}
        arrays |= {name: arrays[name].astype(np.int32) for name in NARROW if name in arrays}
        if not torch.equal(self._mask, batch.mask):
            arrays["mask_sampled"] = _numpy(self._mask)
        arrays |= _of_updates(batch, updates) | self._weights
        settings = self.settings
        learn = self.settings.learn
        budget = settings.compute.micro_batch_tokens, learn.micro_batch
        meta: dict[str, Any] = {
            "algorithm": settings.algorithm,
            "slots": settings.slots,
            "temperature": settings.engine.temperature,
            "learn": learn.model_dump(mode="json"),
            "compute": settings.compute.model_dump(mode="json", exclude={"device"}),
            "completion_budget": settings.world.completion_budget,
            "update": self._update,
            "optimizer_steps": self._steps,
            "updates": [_meta_of_update(batch, update, budget) for update in updates],
        }
        if self._weights:
            config = json.loads(self.learner.policy.config.to_json_string(use_diff=False))
            meta["model"] = {key: value for key, value in config.items() if key != "_name_or_path"}
        return arrays, meta


def _of_updates(batch: Batch, updates: Sequence[Evidence]) -> dict[str, np.ndarray]:
    """Return the rows of every update, one after another, and what it saw of them: (R,) and (R, T)."""
    rows = [update.trajectory[0] for update in updates]
    width = batch.mask.shape[1]

    def stacked(name: str) -> Tensor:
        """(1, b, w) each -> (R, T): what was cut off as padding is padding again."""
        parts = [getattr(update, name)[0] for update in updates]
        return torch.cat([nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])

    found = {
        "size": torch.tensor([len(row) for row in rows], dtype=torch.int32),
        "rows": torch.cat(rows).int(),
    }
    names = ["log_prob", *(["values"] if all(update.values is not None for update in updates) else [])]
    # A schedule may train on a part of each row only, with advantages and old log-probs of its own; a bug may
    # lose or mix up what a row has in the batch.
    own = ("mask", "advantages", "log_prob_old")
    if not all(_is_same(stacked(name), getattr(batch, name)[torch.cat(rows)]) for name in own):
        names += own
    found |= {name: stacked(name) for name in names}
    return {f"update.{name}": _numpy(tensor) for name, tensor in found.items()}


def _is_same(trained: Tensor, stored: Tensor) -> bool:
    """Whether updates had the numbers of the batch, NaN where it has NaN."""
    return bool(((trained == stored) | (trained.isnan() & stored.isnan())).all())


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _optimizer_state(owner: str, optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    """Copies of the tensors of an optimizer, by `optimizer.OWNER.PARAMETER.KEY`."""
    state = {}
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                state[f"optimizer.{owner}.{i}.{key}"] = _numpy(value).copy()
    return state


def _counted_steps(optimizer: torch.optim.Optimizer) -> int:
    """Steps that an optimizer has counted; 0 where it counts none."""
    return int(max((float(entry.get("step", 0.0)) for entry in optimizer.state.values()), default=0.0))


def _meta_of_update(batch: Batch, update: Evidence, budget: tuple[int | None, int | None]) -> dict[str, Any]:
    return {
        "epoch": int(update.epoch),
        "rollout_step": int(update.rollout_step),
        "passes": [len(rows) for rows in passes(batch.length[update.trajectory[0]], *budget)],
        "scalars": {name: values[0] for name, values in update.scalars.items()},
    }
