"""An engine that plays a script, and a policy of the embedded family in any size."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from sorl.agent.episode import Episode
from sorl.agent.protocol import Dialogue
from sorl.agent.tokenizer import VOCABULARY, Codec
from sorl.agent.worlds import Question, World

# One head of 32: the smallest that vLLM's attention on a CPU knows.
SMALL: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
}


def build(family: str = "Qwen2", **changes: object) -> Any:
    """A decoder of random weights, the same at every call."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL | changes)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def imitate(model: Qwen2ForCausalLM, shown: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Qwen2ForCausalLM:
    """The model, trained on (tokens, labels), a batch an update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for tokens, labels in shown:
        optimizer.zero_grad()
        model(tokens, labels=labels).loss.backward()
        optimizer.step()
    return model


class ScriptedEngine:
    """Plays `script(question)`, the text of each turn, cut where the world cuts turns; every token has
    log-prob -1.

    An episode whose script runs out ends as "max_tokens".
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, script: Callable[[Question], Sequence[str]]
    ) -> None:
        self._codec = Codec(tokenizer)
        self._script = script

    def rollout(
        self,
        world: World,
        questions: list[Question],
        groups: list[int],
        generator: Any = None,
        greedy: bool = False,
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
