"""How long a model's passes take on this machine, timed on a network of its shape with a few of its layers.

A product of two matrices says too little: attention, norms, the precision of a pass and the head's softmax
take as much time on a small model, and their share depends on its shape. So the real layers run, with random
weights and few of them, on as many tokens as a step of training has; the rest is a multiplication.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from sorl.agent import ragged
from sorl.agent.engines.continuous import ContinuousDecoder
from sorl.agent.engines.hf import TransformersDecoder, in_dtype
from sorl.learn import networks
from sorl.spec import RunSettings

LEAST_LAYER_PARAMETERS = 1 << 24  # 64 MiB in float32: more than a cache holds, as a whole model is
MOST_VOCABULARY = 1 << 15  # of the network that is timed; the head's time grows with the vocabulary
MOST_TRAINED_TOKENS = 1000
MOST_ROWS = 64
SECONDS = 0.6  # of each measurement
FEWEST_PASSES = 3


@dataclass(frozen=True)
class Rows:
    """The rows of a step: how many are sampled together, and the tokens of one."""

    count: int
    tokens: int
    written: int  # of the tokens, by the policy: the head is computed at these


@dataclass(frozen=True)
class PassSeconds:
    """Seconds of a model's passes on one machine."""

    product: float  # a multiply-add of a forward pass in training; a backward pass costs two
    decoded_weight: float  # a weight in a decoding pass of all rows


@cache
def time_passes(folder: Path, settings_json: str, rows: Rows) -> PassSeconds:
    """Time training and decoding of the model in `folder` as the settings have them computed.

    Raises OSError or ValueError where transformers cannot build the model.
    """
    settings = networks.with_measured_precision(RunSettings.model_validate_json(settings_json))
    threads_before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        model = _few_layers(folder).to(networks.device_of(settings.compute))
        return PassSeconds(
            product=_time_training(model, settings, rows),
            decoded_weight=_time_decoding(model, settings, rows),
        )
    finally:
        torch.set_num_threads(threads_before)


def _few_layers(folder: Path) -> Any:
    """A network with the layers of the model in `folder`, fewer of them, and random weights."""
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    config.vocab_size = min(config.vocab_size, MOST_VOCABULARY)
    config.pad_token_id = None
    with torch.random.fork_rng():
        one_layer = _build(config, 1)
        layers = min(config.num_hidden_layers, max(2, ceil(LEAST_LAYER_PARAMETERS / _body(one_layer))))
        return _build(config, layers).eval()


def _build(config: Any, layers: int) -> PreTrainedModel:
    """A network of the first `layers` layers that `config` describes."""
    shape = type(config).from_dict(config.to_dict())
    shape.num_hidden_layers = layers
    if getattr(shape, "layer_types", None):
        shape.layer_types = shape.layer_types[:layers]
    network: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    return network


def _time_training(model: PreTrainedModel, settings: RunSettings, rows: Rows) -> float:
    """Seconds of a multiply-add of a forward pass, from forward and backward passes over whole rows."""
    budget = min(settings.compute.micro_batch_tokens or MOST_TRAINED_TOKENS, MOST_TRAINED_TOKENS)
    count = max(1, min(rows.count, budget // rows.tokens))
    tokens = torch.randint(model.config.vocab_size, (count, rows.tokens))
    written = torch.zeros_like(tokens, dtype=torch.bool)
    written[:, -rows.written :] = True

    def train() -> None:
        model.zero_grad()
        with networks.autocast(model.device, settings.compute):
            log_probs, _ = networks.log_probs(model, tokens, where=written)
        torch.where(written, log_probs, 0).sum().backward()

    products = count * (rows.tokens * _body(model) + rows.written * _head(model))
    forward_and_backward = 3
    seconds = time_work(train, model.device)
    model.zero_grad()
    return seconds / (forward_and_backward * products)


@torch.inference_mode()
def _time_decoding(model: PreTrainedModel, settings: RunSettings, rows: Rows) -> float:
    """Seconds of a weight in a pass that reads one token of every row, after as many as a row has on average
    while it is written.
    """
    decoding_model = in_dtype(model, getattr(torch, settings.engine.dtype))
    count = min(rows.count, MOST_ROWS)
    feed = _decoder(decoding_model, count)
    feed(torch.randint(model.config.vocab_size, (count, max(1, rows.tokens // 2))))
    token = torch.randint(model.config.vocab_size, (count, 1))

    def decode() -> None:
        torch.log_softmax(feed(token).float(), dim=-1).exp().cumsum(dim=-1, dtype=torch.float64)

    return time_work(decode, model.device) / (_body(model) + _head(model))


def _decoder(model: PreTrainedModel, rows: int) -> Callable[[Tensor], Tensor]:
    """What reads tokens (B, n) after those before and returns logits (B, V), as the engine does."""
    if not ragged.supports(model.base_model):
        return TransformersDecoder(model).feed
    decoder = ContinuousDecoder(model, rows)
    return lambda tokens: decoder.feed(tokens.tolist())


def _body(model: PreTrainedModel) -> int:
    """Parameters that every token is multiplied by."""
    layers: Any = model.base_model.layers
    return sum(parameter.numel() for parameter in layers.parameters())


def _head(model: PreTrainedModel) -> int:
    """Parameters that the last hidden state is multiplied by."""
    return int(model.get_output_embeddings().weight.numel())


def time_work(work: Callable[[], object], device: torch.device) -> float:
    """Median seconds of `work`, after one that warms up, done for SECONDS and at least three times."""
    work()
    seconds: list[float] = []
    while sum(seconds) < SECONDS or len(seconds) < FEWEST_PASSES:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return median(seconds)
