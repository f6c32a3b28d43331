"""What an iteration costs: of the embedded policy by measured constants, of a `model` by its size."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

from sorl.grid.machine import Machine, probe_model
from sorl.objective import Algorithm
from sorl.spec import InputError, RetrieverSettings, RunSettings
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
_BACKWARD = 2  # forward passes that a backward pass costs
_STEP_READS = 10  # times that a step of AdamW with a clipped norm reads or writes as much as the weights
_DEMONSTRATED = 32  # demonstrations whose tokens are counted
_FLOATS = ("F64", "F32", "F16", "BF16")
_HEADER = 100 * MIB


@dataclass(frozen=True)
class Network:
    """The size of a model: what its passes multiply by."""

    parameters: int
    vocabulary: int  # parameters of the embedding, which is also the head where the two are tied

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
    """Tokens of an episode, on average."""

    prompt: float
    written: float
    read: float  # after searches
    longest: float  # the most that an episode writes: so many passes does a rollout take

    @classmethod
    def of(cls, settings: RunSettings) -> Tokens:
        """Return those of the demonstrations, where a model on this machine imitates them first; else
        those of an untrained model, whose turns are all as long as they may be.
        """
        imitates = (
            settings.model is not None and settings.warmstart.steps and settings.world.kind != "dataset"
        )
        if imitates:
            task = settings.model_dump_json(include={"model", "world", "warmstart", "prompt"})
            with suppress(InputError, OSError, ValueError):
                return _of_demonstrations(task)
        world = settings.world
        found = _FOUND_TOKENS + _FACT_TOKENS * world.top_k
        written = world.max_turns * world.max_turn_tokens
        return cls(PROMPT_TOKENS, written, (world.max_turns - 1) * found, written)

    @property
    def all(self) -> float:
        """With the prompt."""
        return self.prompt + self.written + self.read


@cache
def _of_demonstrations(task: str) -> Tokens:
    """Count the tokens of demonstrations as a model's tokenizer cuts them; `task`: settings as JSON.

    The world answers their searches itself, so that an estimate neither asks a server nor builds an index.
    """
    from sorl.agent.demonstrations import demonstrations
    from sorl.agent.tokenizer import Codec
    from sorl.agent.worlds import build
    from sorl.learn.warmstart import tokenizer_of

    settings = RunSettings.model_validate_json(task)
    warm = settings.warmstart
    codec = Codec(tokenizer_of(_folder_of(str(settings.model))), settings.wording)
    world: Any = build(settings.world.model_copy(update={"retriever": RetrieverSettings()}))
    episodes = demonstrations(world, _DEMONSTRATED, warm.noise, warm.seed, codec=codec)
    written = [sum(episode.written) for episode in episodes]
    prompts = [episode.prompt_length for episode in episodes]
    whole = [len(episode.tokens) for episode in episodes]
    return Tokens(
        mean(prompts), mean(written), mean(whole) - mean(prompts) - mean(written), float(max(written))
    )


def machine_for(settings: RunSettings, network: Network | None, machine: Machine) -> Machine:
    """Return the rates of `machine` for the passes of these settings' model, timed on its layers."""
    if network is None or settings.model is None:
        return machine
    tokens = Tokens.of(settings)
    timed = RunSettings(
        model=settings.model, threads=settings.threads, compute=settings.compute, engine=settings.engine
    )
    return probe_model(
        machine,
        _folder_of(settings.model),
        timed.model_dump_json(),
        settings.learn.episodes,
        tokens.all,
        tokens.written,
    )


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
    """Seconds an iteration of a model: its rollout, its passes over the batch, its optimizer's steps."""
    learn = settings.learn
    prompts = learn.episodes / (learn.group_size or algorithm.group_size)
    rollout = _draws(algorithm) * rollout_seconds(settings, learn.episodes, network, machine, prompts)
    epochs = learn.epochs * sum(algorithm.schedule.updates(settings.world.max_turns)) / 2
    products = learn.episodes * _batch_products(settings, algorithm, network, epochs)
    steps = epochs * learn.minibatches * (1 + algorithm.critic)
    return rollout + products * machine.product_seconds + steps * _step_seconds(network, machine)


def _batch_products(settings: RunSettings, algorithm: Algorithm, network: Network, epochs: float) -> float:
    """Multiply-adds an episode, of all the passes that training makes over it."""
    learn = settings.learn
    tokens = Tokens.of(settings)
    every = 1 if algorithm.stabilise.needs_bias else learn.clip_bias_every
    forward = 1 + settings.compute.gradient_checkpointing
    update = forward + _BACKWARD + (_BACKWARD / every if every else 0.0)
    policy = epochs * update + (learn.old_log_prob != "behaviour") + algorithm.needs_reference
    critic = algorithm.critic * (1 + epochs * (forward + _BACKWARD))
    return policy * _products(tokens, network) + critic * tokens.all * network.body


def _products(tokens: Tokens, network: Network) -> float:
    """Multiply-adds of a forward pass over an episode: the head's only where the policy wrote."""
    return tokens.all * network.body + tokens.written * network.vocabulary


def _step_seconds(network: Network, machine: Machine) -> float:
    """Seconds to clip a gradient and to take a step of AdamW."""
    return _STEP_READS * network.parameters * machine.weight_seconds


def rollout_seconds(
    settings: RunSettings,
    episodes: int,
    network: Network,
    machine: Machine,
    prompts: float | None = None,
) -> float:
    """Seconds to sample `episodes` episodes: a pass a token that the longest writes, and what rows read.

    `prompts`: how many differ, and are read; None: all.
    """
    tokens = Tokens.of(settings)
    more = max(1.0, episodes / settings.learn.episodes)  # rows than those that were probed
    decode = network.parameters * machine.weight_seconds * more
    read = (episodes if prompts is None else prompts) * tokens.prompt + episodes * tokens.read
    return tokens.longest * decode + read * network.body * machine.product_seconds


def warm_start_seconds(settings: RunSettings, network: Network | None, machine: Machine) -> float:
    """Seconds of the imitation of demonstrations; of a model also those of its held-out questions."""
    from sorl.learn.warmstart import HELD_OUT

    warm = settings.warmstart
    if network is None:
        return machine.slowness * (WARM_STEP + DEMONSTRATIONS) * warm.steps * warm.batch / 64
    products = (1 + _BACKWARD) * _products(Tokens.of(settings), network)
    step = warm.batch * products * machine.product_seconds + _step_seconds(network, machine)
    return warm.steps * step + 2 * rollout_seconds(settings, HELD_OUT, network, machine)


def evaluation_seconds(settings: RunSettings, network: Network | None, machine: Machine) -> float:
    """Seconds of all evaluations of a run: at both ends with and without search, and in between."""
    planned = settings.evaluation
    times = 4 + (settings.planned_iterations - 1) // planned.every if planned.every else 4
    if network is not None:
        return times * rollout_seconds(settings, planned.episodes, network, machine)
    return times * machine.slowness * planned.episodes / 64 * ROLLOUT


def _draws(algorithm: Algorithm) -> float:
    return (1 + algorithm.select.rounds) / 2
