"""A policy of the embedded family in any size, and what training computes from it."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from workbench.agent.tokenizer import VOCABULARY
from workbench.batch import Batch
from workbench.spec import PolicySettings

# One head of 32: the smallest that vLLM's attention on a CPU knows.
SMALL = PolicySettings(hidden=32, heads=1, mlp=64)


def build(settings: PolicySettings, vocabulary: int = len(VOCABULARY), positions: int = 512) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary, hidden_size=settings.hidden, intermediate_size=settings.mlp,
            num_hidden_layers=settings.layers, num_attention_heads=settings.heads, num_key_value_heads=settings.heads,
            tie_word_embeddings=settings.tied, max_position_embeddings=positions, pad_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


def training_log_prob(model: PreTrainedModel, batch: Batch, temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of the batch's tokens as training computes them: one causal forward, right padding, no mask; (B, T)."""
    with torch.no_grad():
        log_prob = torch.log_softmax(model(batch.tokens).logits.float() / temperature, -1)
    chosen = log_prob[:, :-1].gather(2, batch.tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(chosen, (1, 0))
