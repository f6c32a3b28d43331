"""Policy and critic of a stored step, on the CPU, and their optimizers as they were then."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from workbench.learn.networks import Critic, autocast, log_probs
from workbench.learn.update import optimizer_of
from workbench.replay.play import norm
from workbench.spec import ComputeSettings, InputError, LearnSettings, OptimizerSettings
from workbench.store.batches import StoredBatch, StoredUpdate

_MOMENTS = {"sgd": (), "momentum": ("momentum_buffer",), "adamw": ("exp_avg", "exp_avg_sq", "step")}


class Draws(NamedTuple):
    """What the policy says of each sampled token, (B, T) each; tokens drawn from it have excess and place 0 on average.

    `excess`: log p + entropy, nats. `place`: the middle of the token's stretch of the distribution function, less 1/2.
    """

    excess: np.ndarray
    excess_variance: np.ndarray
    place: np.ndarray
    place_variance: np.ndarray  # (1 - sum p^3) / 12


class Networks:
    """The networks at the start of a step. Raises InputError where their weights are not stored or do not fit."""

    def __init__(self, stored: StoredBatch) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        meta = stored.meta
        if "model" not in meta or not stored.weights:
            raise InputError(
                f"the weights of step {stored.step} are needed and not stored: raise record.batches.weights_mb and "
                "train again"
            )
        self.temperature: float = meta["temperature"]
        self.compute = ComputeSettings.model_validate({**meta["compute"], "device": "cpu"})
        learn = LearnSettings.model_validate(meta["learn"])
        config = AutoConfig.for_model(**meta["model"])
        self.policy: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _fill(self.policy, stored, "policy.")
        self.parameters: Sequence[Tensor] = [p for p in self.policy.parameters() if p.requires_grad]
        self._policy_steps = _optimizer(self.parameters, learn.policy, stored, "policy")
        self.critic: Critic | None = None
        if any(name.startswith("critic.") for name in stored.weights):
            self.critic = Critic(self.policy)
            _fill(self.critic, stored, "critic.")
            self.critic_parameters = list(self.critic.parameters())
            self._critic_steps = _optimizer(self.critic_parameters, learn.critic, stored, "critic")
            self._bound = learn.critic.max_grad_norm or math.inf

    def copy(self) -> Networks:
        """Return the networks with weights and optimizers of their own."""
        return copy.deepcopy(self)

    def log_probs(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (b, t) with gradient, as the trainer takes them."""
        with autocast(torch.device("cpu"), self.compute):
            return log_probs(self.policy, tokens, self.temperature, True, mask)

    def step(self, gradient: Sequence[Tensor], update: StoredUpdate) -> str:
        """Step the policy as the trainer did, along `gradient`; return why that is impossible, empty where it is not.

        The step is as long as the trainer says: a wrong length is one fault, and none of all that follows.
        """
        before, after, lr = (update.scalars.get(name) for name in ("grad_norm", "grad_norm_after", "lr"))
        if before is None or after is None or lr is None:
            return "the trainer's step there is not known"
        if not math.isfinite(before) or after == 0 < before:
            return ""  # the trainer left it out: not finite, or its early stop
        return _take(self._policy_steps, self.parameters, gradient, after, lr)

    def step_critic(self, gradient: Sequence[Tensor], update: StoredUpdate, lr: float) -> str:
        """Step the critic likewise."""
        before = update.scalars.get("critic_grad_norm")
        if before is None:
            return "the trainer's step there is not known"
        if not math.isfinite(before):
            return ""
        return _take(self._critic_steps, self.critic_parameters, gradient, min(before, self._bound), lr)

    @torch.no_grad()
    def draws(self, stored: StoredBatch, elements: int = 1 << 24) -> Draws:
        """Return what the policy says of the sampled tokens, in float32."""
        found = Draws(*(np.zeros(stored.tokens.shape) for _ in Draws._fields))
        vocabulary, width = int(self.policy.config.vocab_size), stored.tokens.shape[1]
        rows = max(1, elements // (vocabulary * width))
        for first in range(0, len(stored.tokens), rows):
            part = slice(first, first + rows)
            tokens = torch.from_numpy(stored.tokens[part]).long()
            logits = self.policy(input_ids=tokens[:, :-1], use_cache=False).logits.float() / self.temperature
            log_p = torch.log_softmax(logits, -1)
            p = log_p.exp()
            log_prob, own, up_to = (x.gather(-1, tokens[:, 1:, None])[..., 0] for x in (log_p, p, p.cumsum(-1)))
            mean = (p * log_p).sum(-1)
            variance = (p * log_p.square()).sum(-1) - mean.square()
            seen = log_prob - mean, variance, up_to - own / 2 - 0.5, (1 - p.pow(3).sum(-1)) / 12
            for array, x in zip(found, seen, strict=True):
                array[part, 1:] = x.numpy()
        return found


def _fill(network: nn.Module, stored: StoredBatch, owner: str) -> None:
    own = {n.removeprefix(owner): torch.from_numpy(w) for n, w in stored.weights.items() if n.startswith(owner)}
    missing, unexpected = network.load_state_dict(own, strict=False)
    lacking = set(missing) - set(getattr(network, "all_tied_weights_keys", None) or ())
    if wrong := sorted({*unexpected, *lacking}):
        raise InputError(f"the stored weights of step {stored.step} do not fit the stored architecture: {wrong[:4]}")


def _optimizer(
    parameters: Sequence[Any], settings: OptimizerSettings, stored: StoredBatch, owner: str
) -> torch.optim.Optimizer | None:
    """Return the optimizer as it was at the step's start; None where its state is not stored."""
    made, own = optimizer_of(parameters, settings), f"optimizer.{owner}."
    names = _MOMENTS["momentum" if settings.kind == "sgd" and settings.momentum else settings.kind]
    if names and stored.meta.get("update", stored.step) and not any(n.startswith(own) for n in stored.weights):
        return None
    for i, parameter in enumerate(parameters):
        state = {name: stored.weights.get(f"{own}{i}.{name}") for name in names}
        known = {name: torch.from_numpy(array.copy()) for name, array in state.items() if array is not None}
        if known:
            made.state[parameter] = known
    return made


def _take(
    optimizer: torch.optim.Optimizer | None, parameters: Sequence[Tensor], gradient: Sequence[Tensor], length: float,
    lr: float,
) -> str:  # fmt: skip
    if optimizer is None:
        return "weights are stored at the start of a step, and the state of the optimizer is not"
    own = norm(gradient)
    for parameter, g in zip(parameters, gradient, strict=True):
        parameter.grad = g * (length / own) if own else g
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return ""
