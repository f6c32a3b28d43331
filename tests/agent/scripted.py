"""An engine that plays what it is given: the fake for tests and for looking at a protocol by hand."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from workbench.agent.episode import Episode
from workbench.agent.protocol import Dialogue
from workbench.agent.tokenizer import Codec
from workbench.agent.worlds import Question, World


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
