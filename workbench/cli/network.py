"""The policy of a stored step, from its batch file alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from workbench.learn.networks import autocast, log_probs
from workbench.spec import ComputeSettings, InputError
from workbench.store.stored import StoredBatch


class Policy:
    """Weights of the step's start on the CPU, at the temperature and precision that it was trained at."""

    def __init__(self, model: Any, temperature: float, compute: ComputeSettings) -> None:
        self.model, self.temperature, self.compute = model, temperature, compute
        self.parameters: Sequence[Tensor] = [p for p in model.parameters() if p.requires_grad]

    @classmethod
    def of(cls, stored: StoredBatch) -> Policy:
        """From a batch that was read with its weights. Raises InputError where it has none, or they do not fit."""
        meta = stored.meta
        if "model" not in meta or not stored.weights:
            raise InputError(
                "--gradients needs the weights of the step, and they are not stored: they take more than "
                "record.batches.weights_mb; raise it and train again, or leave --gradients out"
            )
        config = AutoConfig.for_model(**meta["model"])
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        own = {n.removeprefix("policy."): torch.from_numpy(w) for n, w in stored.weights.items() if n[:7] == "policy."}
        missing, unexpected = model.load_state_dict(own, strict=False)
        lacking = set(missing) - set(getattr(model, "all_tied_weights_keys", None) or ())
        if unexpected or lacking:
            raise InputError(
                f"the stored weights do not fit the stored architecture: {sorted({*unexpected, *lacking})[:4]}"
            )
        return cls(model, meta["temperature"], ComputeSettings.model_validate({**meta["compute"], "device": "cpu"}))

    def log_probs(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of tokens (b, t), with gradient, as the trainer takes them."""
        with autocast(torch.device("cpu"), self.compute):
            return log_probs(self.model, tokens, self.temperature, True, mask)
