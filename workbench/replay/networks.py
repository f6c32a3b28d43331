"""Policy and critic of a stored step, on the CPU, and their optimizers as they were then."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sorl.agent.engines.hf import decoder_of
from sorl.agent.routing import routed
from sorl.learn.networks import Critic, autocast, log_probs
from sorl.learn.update import optimizer_of
from sorl.spec import ComputeSettings, EngineSettings, InputError, LearnSettings, OptimizerSettings
from sorl.store.batches import StoredBatch, StoredUpdate


def norm(tensors: Sequence[Tensor]) -> float:
    """Return the L2 norm over all tensors, summed in float64."""
    return float(torch.stack([torch.linalg.vector_norm(t.double()) for t in tensors]).norm())


class Draws(NamedTuple):
    """What the policy says of each sampled token, (B, T) each; tokens drawn from it have excess and place 0
    on average.

    `excess`: log p + entropy, nats. `place`: the middle of the token's stretch of the distribution function,
    less 1/2.
    """

    excess: np.ndarray
    excess_variance: np.ndarray
    place: np.ndarray
    place_variance: np.ndarray  # (1 - sum p^3) / 12


class Networks:
    """The networks at the start of a step. Raises InputError where their weights are not stored or do not
    fit.
    """

    def __init__(self, stored: StoredBatch) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        if "model" not in stored.meta or not stored.weights:
            why = "are not stored: raise record.batches.weights_mb and train again"
            raise InputError(f"the weights of step {stored.step} {why}")
        self.temperature: float = stored.meta["temperature"]
        self.compute = ComputeSettings.model_validate({**stored.meta["compute"], "device": "cpu"})
        config = AutoConfig.for_model(**stored.meta["model"])
        self.policy: Any = _filled(
            AutoModelForCausalLM.from_config(config, dtype=torch.float32), stored, "policy"
        )
        self.parameters = [p for p in self.policy.parameters() if p.requires_grad]
        self.critic: Any = None
        learn = LearnSettings.model_validate(stored.meta["learn"])
        self._optimizers = {"policy": _optimizer(self.parameters, learn.policy, stored, "policy")}
        if any(name.startswith("critic.") for name in stored.weights):
            self.critic = _filled(Critic(self.policy), stored, "critic")
            self._optimizers["critic"] = _optimizer(
                list(self.critic.parameters()), learn.critic, stored, "critic"
            )

    def log_probs(
        self, tokens: Tensor, mask: Tensor, grad_entropy: bool, replay: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (b, t) at `mask` as the trainer takes them, with gradient; by experts
        `replay`.
        """
        given = None if replay is None else replay[:, 1:]
        with autocast(torch.device("cpu"), self.compute), routed(self.policy, given):
            return log_probs(self.policy, tokens, self.temperature, grad_entropy, mask)

    @torch.no_grad()
    def decoded(self, tokens: Tensor, engine: EngineSettings) -> Tensor:
        """Return log-probs (B, T) as the sampler takes them, token by token in its own precision."""
        decoder = decoder_of(self.policy, engine)
        found = torch.zeros(tokens.shape)
        for at in range(1, tokens.shape[1]):
            log_p = torch.log_softmax(decoder.feed(tokens[:, at - 1 : at]).float() / self.temperature, -1)
            found[:, at] = log_p.gather(1, tokens[:, at : at + 1])[:, 0]
        return found

    def step(self, gradient: Sequence[Tensor], update: StoredUpdate, owner: str = "policy") -> str:
        """Step as the trainer did, along `gradient`; return why that is impossible, empty where it is not.

        The step is as long as the trainer says: a wrong length is one fault, and none of all that follows.
        """
        optimizer = self._optimizers[owner]
        before, after, lr = (update.scalars.get(name) for name in ("grad_norm", "grad_norm_after", "lr"))
        if optimizer is None:
            return "weights are stored at the start of a step, and the state of the optimizer is not"
        if before is None or after is None or lr is None:
            return "the trainer's step there is not known"
        if not math.isfinite(before) or after == 0 < before:
            return ""  # the trainer left it out: not finite, or its early stop
        own = norm(gradient)
        for group in optimizer.param_groups:
            group["lr"] = lr
            for parameter, g in zip(group["params"], gradient, strict=True):
                parameter.grad = g * (after / own) if own else g
        optimizer.step()
        return ""

    @torch.no_grad()
    def draws(self, stored: StoredBatch, elements: int = 1 << 24) -> Draws:
        """Return what the policy says of the sampled tokens, in float32."""
        draws = Draws(*(np.zeros(stored.tokens.shape) for _ in Draws._fields))
        vocabulary = int(self.policy.config.vocab_size)
        width = stored.tokens.shape[1]
        for rows in torch.arange(len(stored.tokens)).split(max(1, elements // (vocabulary * width))):
            tokens = torch.from_numpy(stored.tokens[rows]).long()
            logits = self.policy(input_ids=tokens[:, :-1], use_cache=False).logits.float() / self.temperature
            for array, values in zip(draws, _draws_of(logits, tokens[:, 1:]), strict=True):
                array[rows, 1:] = values
        return draws


def _draws_of(logits: Tensor, following: Tensor) -> Draws:
    """What logits (b, t, V) say of the tokens that follow, (b, t)."""
    log_p = torch.log_softmax(logits, -1)
    p = log_p.exp()
    chosen = following[..., None]
    log_prob = log_p.gather(-1, chosen)[..., 0]
    own = p.gather(-1, chosen)[..., 0]
    up_to = p.cumsum(-1).gather(-1, chosen)[..., 0]  # distribution function, the token included
    mean = (p * log_p).sum(-1)
    return Draws(
        excess=(log_prob - mean).numpy(),
        excess_variance=((p * log_p.square()).sum(-1) - mean.square()).numpy(),
        place=(up_to - own / 2 - 0.5).numpy(),
        place_variance=((1 - p.pow(3).sum(-1)) / 12).numpy(),
    )


def _filled(network: Any, stored: StoredBatch, owner: str) -> Any:
    own = {
        n.removeprefix(f"{owner}."): torch.from_numpy(w)
        for n, w in stored.weights.items()
        if n.startswith(owner)
    }
    missing, unexpected = network.load_state_dict(own, strict=False)
    lacking = set(missing) - set(getattr(network, "all_tied_weights_keys", None) or ())
    if wrong := sorted({*unexpected, *lacking}):
        raise InputError(
            f"the stored weights of step {stored.step} do not fit the stored architecture: {wrong[:4]}"
        )
    return network


def _optimizer(
    parameters: Sequence[Any], settings: OptimizerSettings, stored: StoredBatch, owner: str
) -> torch.optim.Optimizer | None:
    """Return the optimizer as it was at the step's start; None where its state is not stored."""
    made = optimizer_of(parameters, settings)
    prefix = f"optimizer.{owner}."
    state = {name.removeprefix(prefix): x for name, x in stored.weights.items() if name.startswith(prefix)}
    if (
        not state
        and (settings.kind == "adamw" or settings.momentum)
        and stored.meta.get("update", stored.step)
    ):
        return None
    for name, array in state.items():
        index, key = name.split(".")
        made.state[parameters[int(index)]][key] = torch.from_numpy(array.copy())
    return made
