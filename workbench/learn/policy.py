"""The policy: any transformers decoder-only language model, made from settings or loaded from a checkpoint folder."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from workbench.learn.vocabulary import ELEMENTS, linear_head, token_log_probs
from workbench.spec import ComputeSettings, InputError, PolicySettings

disable_progress_bar()  # bars for a second of loading or saving are noise in a log that people read after a death


def create(settings: PolicySettings, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A freshly initialised decoder of the size in `settings` for this tokenizer's vocabulary (float32)."""
    config = AutoConfig.for_model(
        settings.family,
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.mlp,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=1024,
        # 0.02, the default of the families, is meant for hidden sizes of thousands: a narrow network that starts there
        # learns late and stays badly conditioned.
        initializer_range=settings.hidden**-0.5,
        tie_word_embeddings=settings.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def device_of(settings: ComputeSettings) -> torch.device:
    """Where the networks are trained: "auto" is the first GPU that torch may use, else the CPU.

    Raises InputError for a GPU that was asked for and is not there.
    """
    present = torch.cuda.is_available()
    if settings.device == "cuda" and not present:
        raise InputError('compute.device = "cuda", but torch sees no GPU here; set compute.device = "cpu" or "auto"')
    return torch.device("cuda" if present and settings.device != "cpu" else "cpu")


def load(path: Path | str, compute: ComputeSettings = ComputeSettings()) -> PreTrainedModel:
    """The checkpoint at `path`, weights in float32, on the device of `compute`, without dropout.

    Safetensors only, because other weight formats can run code when read. Raises InputError when the folder is missing
    or holds no safetensors weights. Dropout is off because old and new log-probs must be of one policy; that is also
    why training mode, which gradient checkpointing needs, changes nothing else.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"no model at '{folder}': a model is a folder with config.json and *.safetensors, as save_pretrained writes"
        )
    if not list(folder.glob("*.safetensors")):
        raise InputError(
            f"no safetensors weights in '{folder}': other formats are not read because they can execute code; "
            f"convert with model.save_pretrained('{folder}')"
        )
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, use_safetensors=True, local_files_only=True
    )
    if compute.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    placed: PreTrainedModel = model.to(device_of(compute))
    return placed


def autocast(device: torch.device, compute: ComputeSettings) -> AbstractContextManager[Any]:
    """The precision of a training pass: matrix products in bfloat16 where `compute` says so; weights stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=compute.dtype == "bfloat16")


def widened(x: Tensor) -> Tensor:
    """`x` in float32, or as it is where it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def log_probs(
    model: nn.Module,
    tokens: Tensor,
    temperature: float = 1.0,
    grad_entropy: bool = False,
    where: Tensor | None = None,
    elements: int = ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """Log-prob of every token given those before it, and the entropy of its distribution, both (B, T) in nats.

    log p_t = log_softmax(z_{t-1} / temperature)[token_t]; position 0 has no prediction and is 0. No attention mask is
    needed: rows are padded on the right only and attention is causal, so no real token ever sees padding. The entropy
    carries a gradient only with `grad_entropy`. Results are on the device of `tokens`, wherever the model is.

    Beyond `elements` logits they are never held at once, and are made only at the tokens of `where` (B, T), elsewhere
    the results are 0; a model whose logits are not a linear layer of the last hidden state holds them all.
    """
    device = next(model.parameters()).device
    on = tokens.to(device)
    targets = on[:, 1:]
    vocabulary = int(getattr(getattr(model, "config", None), "vocab_size", 0) or 0)
    head = linear_head(model) if targets.numel() * vocabulary > elements else None
    if head is None:
        chosen, entropy = _from_logits(model, on, temperature, grad_entropy)
    else:
        assert isinstance(model, PreTrainedModel)
        hidden = model.base_model(input_ids=on[:, :-1], use_cache=False).last_hidden_state
        wanted = torch.ones_like(targets, dtype=torch.bool) if where is None else where[:, 1:].to(device)
        found = token_log_probs(hidden[wanted], head, targets[wanted], temperature, elements)
        chosen, entropy = (torch.zeros_like(targets, dtype=x.dtype).masked_scatter(wanted, x) for x in found)
        entropy = entropy if grad_entropy else entropy.detach()
    return tuple(nn.functional.pad(x, (1, 0)).to(tokens.device) for x in (chosen, entropy))  # type: ignore[return-value]


def _from_logits(model: nn.Module, tokens: Tensor, temperature: float, grad_entropy: bool) -> tuple[Tensor, Tensor]:
    logits = widened(model(input_ids=tokens[:, :-1], use_cache=False).logits)
    if temperature != 1.0:
        logits = logits / temperature
    log_p = torch.log_softmax(logits, dim=-1)  # (B, T-1, V)
    chosen = log_p.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(grad_entropy and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return chosen, entropy
