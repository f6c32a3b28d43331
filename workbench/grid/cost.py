"""What an iteration costs: of the embedded policy by measured constants, of a `model` by its size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from sorl.grid.machine import Machine
from sorl.objective import Algorithm
from sorl.spec import InputError, RunSettings
from sorl.spec.files import MIB, from_json, read_text

# Seconds for 64 episodes of the default world and policy, on the machine `REFERENCE`.
ROLLOUT = 0.13
UPDATE = 0.085  # one epoch of the policy
CRITIC = 0.085  # one epoch of the critic
SECOND_BACKWARD = 0.10  # one more backward for the clipping bias, where an algorithm needs it at every update
WARM_STEP = 0.11  # one step of the warm start with a batch of 64
DEMONSTRATIONS = 0.03  # the episodes of such a step, which are written before
START = 6.0  # imports, loading, last checkpoint

# Tokens of a `model`, whose tokenizer cuts words into parts.
PROMPT_TOKENS = 200
_FOUND_TOKENS = 28  # around what a search returns, and of each fact in it
_FACT_TOKENS = 20
# Small operations in a layer of transformers, in units of the probe's, which has a backward pass.
_LAYER_CALLS = 12
_BACKWARD = 2  # forward passes that a backward pass costs
_FLOATS = ("F64", "F32", "F16", "BF16")
_HEADER = 100 * MIB


@dataclass(frozen=True)
class Network:
    """The size of a model: what its passes multiply by."""

    parameters: int
    vocabulary: int  # parameters of the embedding, which is also the head where the two are tied
    layers: int
    width: int

    @property
    def body(self) -> int:
        """Parameters of the layers: every token is multiplied by them."""
        return max(0, self.parameters - self.vocabulary)


@cache
def network_of(model: str) -> Network | None:
    """Return the size of a model by its name, from config.json and the headers of its weights; None where it
    is not on this machine, or does not say.
    """
    try:
        folder = _folder_of(model)
        config = from_json(read_text(folder / "config.json", MIB))
        config = config.get("text_config", config)
        width = int(config["hidden_size"])
        return Network(
            parameters=sum(_count_parameters(file) for file in folder.glob("*.safetensors")),
            vocabulary=width * int(config["vocab_size"]),
            layers=int(config["num_hidden_layers"]),
            width=width,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _folder_of(model: str) -> Path:
    """Return the folder of a model that is on this machine; InputError where it would be downloaded."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json")
    if not isinstance(found, str):
        raise InputError(f"'{model}' is not on this machine")
    return Path(found).parent


def _count_parameters(file: Path) -> int:
    """Return the parameters in a safetensors file, from its header."""
    with file.open("rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        header: dict[str, Any] = json.loads(handle.read(min(size, _HEADER)))
    return sum(prod(tensor["shape"]) for tensor in header.values() if tensor.get("dtype") in _FLOATS)


@dataclass(frozen=True)
class Tokens:
    """Tokens of an episode whose turns are all as long as they may be, as those of an untrained model are."""

    written: int
    read: int  # after searches

    @classmethod
    def of(cls, settings: RunSettings) -> Tokens:
        """Return those of an episode in the world of `settings`."""
        world = settings.world
        found = _FOUND_TOKENS + _FACT_TOKENS * world.top_k
        return cls(world.max_turns * world.max_turn_tokens, (world.max_turns - 1) * found)

    @property
    def positions(self) -> int:
        """Decoding steps where rows go in lock-step: what one reads takes the time of what it writes.

        An upper bound for models that are sampled in packed rows, which take as many as they write.
        """
        return self.written + self.read

    @property
    def all(self) -> int:
        """With the prompt."""
        return PROMPT_TOKENS + self.positions


def embedded_seconds(settings: RunSettings, algorithm: Algorithm, machine: Machine) -> float:
    """Seconds an iteration of the embedded policy; of a range of updates or draws the middle counts."""
    learn = settings.learn
    ours = settings.policy
    usual = RunSettings().policy
    weights = [p.layers * (4 * p.hidden**2 + 3 * p.hidden * p.mlp) for p in (ours, usual)]
    size = max(1.0, weights[0] / weights[1])
    every = 1 if algorithm.stabilise.needs_bias else learn.clip_bias_every
    update = UPDATE + CRITIC * algorithm.critic + (SECOND_BACKWARD / every if every else 0.0)
    passes = sum(algorithm.schedule.updates(settings.world.max_turns)) / 2
    seconds = _draws(algorithm) * ROLLOUT + learn.epochs * passes * update
    return machine.slowness * size * learn.episodes / 64 * seconds


def model_seconds(settings: RunSettings, algorithm: Algorithm, network: Network, machine: Machine) -> float:
    """Seconds an iteration of a model: its rollout, its passes over the batch."""
    learn = settings.learn
    tokens = Tokens.of(settings)
    rollout = _draws(algorithm) * rollout_seconds(settings, learn.episodes, network, machine)
    passes = sum(algorithm.schedule.updates(settings.world.max_turns)) / 2
    every = 1 if algorithm.stabilise.needs_bias else learn.clip_bias_every
    forward = 1 + settings.compute.gradient_checkpointing
    update = forward + _BACKWARD + (_BACKWARD / every if every else 0.0)
    policy = learn.epochs * passes * update
    policy += (learn.old_log_prob != "behaviour") + algorithm.needs_reference
    critic = algorithm.critic * (1 + learn.epochs * passes * (forward + _BACKWARD))
    words = (tokens.all if network.vocabulary < network.body else tokens.written) * network.vocabulary
    products = policy * (tokens.all * network.body + words) + critic * tokens.all * network.body
    return rollout + learn.episodes * products * machine.product_seconds


def rollout_seconds(settings: RunSettings, episodes: int, network: Network, machine: Machine) -> float:
    """Seconds to sample `episodes` episodes: the prompts in one pass, then a decoding step a position."""
    more = max(1.0, episodes / settings.learn.episodes)  # rows than those that were probed
    layers = network.layers * _LAYER_CALLS * machine.small_seconds
    step = network.parameters * machine.weight_seconds * more + layers
    prefill = episodes * PROMPT_TOKENS * network.body * machine.product_seconds
    return prefill + Tokens.of(settings).positions * step


def evaluation_seconds(settings: RunSettings, network: Network | None, machine: Machine) -> float:
    """Seconds of all evaluations of a run: at both ends with and without search, and in between."""
    planned = settings.evaluation
    times = 4 + (settings.planned_iterations - 1) // planned.every if planned.every else 4
    if network is not None:
        return times * rollout_seconds(settings, planned.episodes, network, machine)
    return times * machine.slowness * planned.episodes / 64 * ROLLOUT


def _draws(algorithm: Algorithm) -> float:
    return (1 + algorithm.select.rounds) / 2
