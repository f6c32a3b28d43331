"""The policy: any transformers decoder-only language model, made from settings or loaded from a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from workbench.spec import InputError, PolicySettings

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


def load(path: Path | str) -> PreTrainedModel:
    """The checkpoint at `path` in float32; safetensors only, because other weight formats can run code when read.

    Raises InputError when the folder is missing or holds no safetensors weights.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"no model at '{folder}': policy.path names a folder with config.json and *.safetensors, "
            "as save_pretrained writes"
        )
    if not list(folder.glob("*.safetensors")):
        raise InputError(
            f"no safetensors weights in '{folder}': other formats are not read because they can execute code; "
            f"convert with model.save_pretrained('{folder}')"
        )
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
    )


def log_probs(
    model: nn.Module, tokens: Tensor, temperature: float = 1.0, grad_entropy: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of every token given those before it, and the entropy of its distribution, both (B, T) in nats.

    log p_t = log_softmax(z_{t-1} / temperature)[token_t]; position 0 has no prediction and is 0. No attention mask is
    needed: rows are padded on the right only and attention is causal, so no real token ever sees padding. The entropy
    carries a gradient only with `grad_entropy`.
    """
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    log_p = torch.log_softmax(logits, dim=-1)  # (B, T-1, V)
    chosen = log_p.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(grad_entropy and torch.is_grad_enabled()):
        entropy = -(log_p.exp() * log_p).sum(-1)
    return nn.functional.pad(chosen, (1, 0)), nn.functional.pad(entropy, (1, 0))
