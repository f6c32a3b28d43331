"""An engine that plays a script, a policy of the embedded family in any size, and what training computes from it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from workbench.agent.episode import Episode
from workbench.agent.protocol import Dialogue
from workbench.agent.tokenizer import VOCABULARY, Codec
from workbench.agent.worlds import Question, World
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


def imitate(model: Qwen2ForCausalLM, shown: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Qwen2ForCausalLM:
    """The model, trained on (tokens, labels), a batch an update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for tokens, labels in shown:
        optimizer.zero_grad()
        model(tokens, labels=labels).loss.backward()
        optimizer.step()
    return model


def training_log_prob(model: PreTrainedModel, batch: Batch, temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of the batch's tokens as training computes them: one causal forward, right padding, no mask; (B, T)."""
    with torch.no_grad():
        log_prob = torch.log_softmax(model(batch.tokens).logits.float() / temperature, -1)
    chosen = log_prob[:, :-1].gather(2, batch.tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(chosen, (1, 0))


class ScriptedEngine:
    """Plays `script(question)`, the text of each turn, cut where the world cuts turns; every token has log-prob -1.

    An episode whose script runs out ends as "max_tokens".
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, script: Callable[[Question], Sequence[str]]) -> None:
        self._codec, self._script = Codec(tokenizer), script

    def rollout(
        self, world: World, questions: list[Question], groups: list[int], generator: Any = None, greedy: bool = False
    ) -> list[Episode]:
        return [self._play(world, q, g) for q, g in zip(questions, groups, strict=True)]

    def _play(self, world: World, question: Question, group: int) -> Episode:
        dialogue = Dialogue(world, self._codec, question, group)
        for text in self._script(question):
            if dialogue.ended is not None:
                break
            tokens = self._codec.encode(text)[: world.max_turn_tokens]
            dialogue.turn(tokens, [-1.0] * len(tokens))
        if dialogue.ended is None:
            dialogue.stop()
        return dialogue.episode()
