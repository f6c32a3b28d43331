"""Policy and critic of a stored step, on the CPU, and the optimizer as its state was then."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.agent.routing import routed
from workbench.learn.networks import Critic, autocast, log_probs
from workbench.spec import InputError, OptimizerSettings, RunSettings
from workbench.store.batches import StoredBatch


class Networks:
    """Policy and critic with the weights of a step's start. Raises InputError for weights that do not fit."""

    def __init__(self, stored: StoredBatch, settings: RunSettings) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self.temperature = settings.engine.temperature
        self.compute = settings.compute.model_copy(update={"device": "cpu"})
        config = AutoConfig.for_model(**stored.meta["model"])
        self.policy: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _fill(self.policy, stored, "policy.")
        self.critic: Critic | None = None
        if any(name.startswith("critic.") for name in stored.weights):
            self.critic = Critic(self.policy)
            _fill(self.critic, stored, "critic.")

    @property
    def policy_parameters(self) -> list[Tensor]:
        """The policy's parameters, in the order of the model."""
        return list(self.policy.parameters())

    def copy(self) -> Networks:
        """Return the networks with weights of their own."""
        return copy.deepcopy(self)

    def log_probs(
        self, tokens: Tensor, mask: Tensor, grad_entropy: bool = False, replay: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (b, t) with gradient, as the trainer takes them, with experts (b, t, W)."""
        given = None if replay is None else replay[:, 1:]
        with autocast(torch.device("cpu"), self.compute), routed(self.policy, given):
            return log_probs(self.policy, tokens, self.temperature, grad_entropy, mask)

    @torch.no_grad()
    def moments(self, stored: StoredBatch, elements: int = 1 << 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log-prob of each token, entropy of its distribution, and Var(log p) under it, (B, T) each, nats."""
        found = [np.zeros(stored.tokens.shape) for _ in range(3)]
        vocabulary, width = int(self.policy.config.vocab_size), stored.tokens.shape[1]
        rows = max(1, elements // (vocabulary * width))
        for first in range(0, len(stored.tokens), rows):
            part = slice(first, first + rows)
            tokens = torch.from_numpy(stored.tokens[part]).long()
            logits = self.policy(input_ids=tokens[:, :-1], use_cache=False).logits.float() / self.temperature
            log_p = torch.log_softmax(logits, -1)
            p = log_p.exp()
            chosen = log_p.gather(-1, tokens[:, 1:, None]).squeeze(-1)
            mean = (p * log_p).sum(-1)
            variance = (p * log_p.square()).sum(-1) - mean.square()
            for array, x in zip(found, (chosen, -mean, variance), strict=True):
                array[part, 1:] = x.numpy()
        return found[0], found[1], found[2]


def _fill(network: nn.Module, stored: StoredBatch, owner: str) -> None:
    own = {n.removeprefix(owner): torch.from_numpy(w) for n, w in stored.weights.items() if n.startswith(owner)}
    missing, unexpected = network.load_state_dict(own, strict=False)
    lacking = set(missing) - set(getattr(network, "all_tied_weights_keys", None) or ())
    if wrong := sorted({*unexpected, *lacking}):
        raise InputError(f"the stored weights of step {stored.step} do not fit the stored architecture: {wrong[:4]}")


def optimizer(
    parameters: Sequence[Tensor], settings: OptimizerSettings, stored: StoredBatch, owner: str
) -> torch.optim.Optimizer | None:
    """Return the optimizer of `settings` with the state of the step's start; None where its state is not stored."""
    lr, decay, betas = settings.lr, settings.weight_decay, (settings.beta1, settings.beta2)
    state: dict[str, np.ndarray] = {
        n.removeprefix(f"optimizer.{owner}."): w
        for n, w in stored.weights.items()
        if n.startswith(f"optimizer.{owner}.")
    }
    if settings.kind == "sgd":
        made: Any = torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum, weight_decay=decay)
        names: tuple[str, ...] = ("momentum_buffer",) if settings.momentum else ()
    else:
        made = torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=decay)
        names = ("exp_avg", "exp_avg_sq", "step")
    if names and stored.step and not state:
        return None
    for i, parameter in enumerate(parameters):
        if all(f"{i}.{name}" in state for name in names) and names:
            made.state[parameter] = {name: torch.from_numpy(state[f"{i}.{name}"].copy()) for name in names}
    return made
