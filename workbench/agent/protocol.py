"""The protocol of Search-R1 (arXiv 2503.09516): search, information, answer; and the dialogue that keeps to
it.

A turn is what the policy writes up to </search> or </answer>. A search is answered by `<information> ...
</information>`, an answer ends the episode, anything else is invalid: the policy reads `invalid` and
continues.
"""

import re
from collections.abc import Sequence

from sorl.agent.episode import Episode
from sorl.agent.tokenizer import Codec
from sorl.agent.worlds import Question, Retrieved, World
from sorl.spec import InputError
from sorl.tensors import Tensor

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


def parse(turn: str) -> tuple[str, str]:
    """Return the first <search> or <answer> of a turn that is closed and not empty, with its text; else
    "invalid".
    """
    match = _ACTION.search(turn)
    content = match.group(2).strip() if match else ""
    return (match.group(1), content) if match and content else ("invalid", "")


def closes(codec: Codec, turn: Sequence[int]) -> bool:
    """Return whether the last token ends the turn: a closing tag ends in it, perhaps inside, or
    it is <eos>.
    """
    if turn[-1] not in codec.closers:
        return False
    if codec.exact or turn[-1] == codec.eos_id:
        return True
    text = codec.decode(turn)
    return "</search>" in text or "</answer>" in text


def turn_length(codec: Codec, tokens: Sequence[int]) -> int:
    """Tokens of a turn, up to the first that ends it; all where none does."""
    return next((n for n in range(1, len(tokens)) if closes(codec, tokens[:n])), len(tokens))


class Dialogue:
    """One episode as it happens: engines hand in the tokens of each turn and get the tokens of the
    observation.
    """

    def __init__(self, world: World, codec: Codec, question: Question, group: int) -> None:
        self.world = world
        self.codec = codec
        self._question = question
        self._group = group
        self.tokens: list[int] = []  # exactly what the policy saw and wrote: nothing is tokenised twice
        self.written: list[bool] = []
        self.log_prob: list[float] = []
        self.stretches: list[list[int]] = []
        self._add(codec.encode_prompt(question.text))
        self.prompt_length = len(self.tokens)
        self.status: list[str] = []
        self._found: list[Retrieved | None] = []  # in each turn
        self.answer: str | None = None
        self.ended: str | None = None
        self.routes: Tensor | None = None  # of the tokens, where the engine recorded them

    def _add(self, tokens: list[int], log_prob: list[float] | None = None) -> list[int]:
        """Add tokens that the policy wrote, or without `log_prob` what it reads: the prompt, an
        observation.
        """
        self.tokens += tokens
        self.written += [log_prob is not None] * len(tokens)
        self.log_prob += [0.0] * len(tokens) if log_prob is None else log_prob
        self.stretches.append(list(tokens))
        return tokens

    def turn(self, tokens: list[int], log_prob: list[float]) -> list[int]:
        """Take one turn of the policy and return the observation's tokens; empty when the episode is over."""
        self._add(tokens, log_prob)
        action, text = parse(self.codec.decode(tokens))
        found: Retrieved | None = None
        if action == "answer":
            self.answer = text
            self.ended = "answer"
        elif action == "search":
            found = self.world.search(self._question, text, len(self.status) + 1)
        self._found.append(found)
        self.status.append("invalid" if action == "search" and found is None else action)
        if self.ended is None and len(self.status) >= self.world.max_turns:
            self.ended = "max_turns"
        if self.ended is not None:
            return []
        return self._add(self.codec.encode_observation(None if found is None else found.text))

    def stop(self) -> None:
        """End the episode because no room is left, and drop the unread observation after the last turn."""
        self.ended = "max_tokens"
        end = (
            max((t for t, written in enumerate(self.written) if written), default=self.prompt_length - 1) + 1
        )
        del self.tokens[end:], self.written[end:], self.log_prob[end:]
        self.stretches.pop()

    def episode(self) -> Episode:
        """Return the finished episode, judged."""
        answer = self.answer
        question = self._question
        return Episode(
            question_id=question.id,
            group=self._group,
            question=question.text,
            gold=question.gold,
            answer=answer,
            tokens=self.tokens,
            written=self.written,
            log_prob=self.log_prob,
            stretches=self.stretches,
            prompt_length=self.prompt_length,
            ended=self.ended or "max_tokens",
            routes=self.routes,
            reward=0.0 if answer is None else self.world.score(question, answer),
            success=answer is not None and self.world.correct(question, answer),
            turns=len(self.status),
            searches=self.status.count("search"),
            turn_status=self.status,
            turn_rewards=[_process_reward(found, question.gold) for found in self._found],
            valid_turns=len(self.status) - self.status.count("invalid"),
            retrieval_status=[found.status if found else None for found in self._found],
            retrieval_seconds=[found.seconds if found else None for found in self._found],
        )


def _process_reward(found: Retrieved | None, gold: str) -> float:
    """Return 1 for a turn that has read the expected answer, else 0: a process reward of 2505.11821."""
    return float(found is not None and gold.lower() in found.text.lower())


def begin(
    world: World, codec: Codec, questions: Sequence[Question], groups: Sequence[int], limit: int
) -> list[Dialogue]:
    """Open a dialogue for each question; InputError when a prompt leaves no room in a context of `limit`
    tokens.
    """
    dialogues = [
        Dialogue(world, codec, question, group) for question, group in zip(questions, groups, strict=True)
    ]
    longest = max((dialogue.prompt_length for dialogue in dialogues), default=0)
    if longest >= limit:
        given = f"a prompt has {longest} tokens and the policy's context (max_position_embeddings) is {limit}"
        raise InputError(f"{given}; take a policy with a longer context")
    return dialogues


def search_ahead(dialogues: Sequence[Dialogue], turns: Sequence[Sequence[int]]) -> None:
    """Let the retriever answer in one request what these dialogues are about to search for in
    their `turns`.
    """
    if len(dialogues) > 1:
        actions = [
            parse(dialogue.codec.decode(turn)) for dialogue, turn in zip(dialogues, turns, strict=True)
        ]
        dialogues[0].world.search_ahead([text for action, text in actions if action == "search"])
