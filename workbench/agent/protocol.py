"""The protocol of Search-R1 (arXiv 2503.09516): search, information, answer; and the dialogue that keeps to it.

A turn is what the policy writes up to </search> or </answer>. A search is answered by
`<information> ... </information>`, an answer ends the episode, anything else is invalid, which
the policy reads as `invalid` before it continues.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from workbench.agent.episode import Episode
from workbench.agent.tokenizer import Codec
from workbench.agent.worlds import Question, Retrieved, World
from workbench.spec import InputError

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Action(NamedTuple):
    """What a turn asks for: "search" or "answer" with its text, or "invalid"."""

    kind: str
    text: str


def parse(turn: str) -> Action:
    """Return the action of a turn: its first <search> ... </search> or <answer> ... </answer> that is not empty."""
    match = _ACTION.search(turn)
    content = match.group(2).strip() if match else ""
    return Action(match.group(1), content) if match and content else Action("invalid", "")


def closes(turn: str) -> bool:
    """Return True once the text of a turn holds a closing tag that ends it."""
    return "</search>" in turn or "</answer>" in turn


def turn_length(codec: Codec, tokens: Sequence[int]) -> int:
    """Tokens of a turn: up to the first at which its text holds a closing tag, or <eos>; all where none does.

    A tag may end inside a token (">." is one in many vocabularies): the token stays whole, as it was sampled.
    """
    for n, token in enumerate(tokens, start=1):
        if token not in codec.closers:
            continue
        if codec.exact or token == codec.eos_id or closes(codec.decode(tokens[:n])):
            return n
    return len(tokens)


def normalise(answer: str) -> str:
    """Lower case, no punctuation, no articles, single spaces: as SQuAD and Search-R1's qa_em.py normalise."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """1 when the normalised answers are equal, else 0."""
    return float(normalise(answer) == normalise(gold))


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall over the words of the normalised answers (SQuAD 2.0).

    Where one of them has no word left it is 1 if both have none, else 0.
    """
    given, wanted = normalise(answer).split(), normalise(gold).split()
    if not given or not wanted:
        return float(given == wanted)
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2.0 * common / (len(given) + len(wanted)) if common else 0.0


def begin(
    world: World, codec: Codec, questions: Sequence[Question], groups: Sequence[int], limit: int
) -> list[Dialogue]:
    """Open a dialogue for each question; InputError when a prompt leaves no room in a context of `limit` tokens."""
    dialogues = [Dialogue(world, codec, question, group) for question, group in zip(questions, groups, strict=True)]
    longest = max((dialogue.prompt_length for dialogue in dialogues), default=0)
    if longest >= limit:
        raise InputError(
            f"a prompt has {longest} tokens and the policy's context (max_position_embeddings) is {limit}; "
            f"take a policy with a longer context"
        )
    return dialogues


def search_ahead(dialogues: Sequence[Dialogue], turns: Sequence[Sequence[int]]) -> None:
    """Let the retriever answer in one request what these dialogues are about to search for in their `turns`.

    Nothing but the number of requests changes; a world that answers its own queries has no use for it.
    """
    if len(dialogues) > 1:
        dialogues[0].world_ahead([dialogue.decoded(turn) for dialogue, turn in zip(dialogues, turns, strict=True)])


class Dialogue:
    """One episode as it happens: engines hand in the tokens of each turn and get the tokens of the observation.

    Token in, token out: `tokens` is exactly what the policy saw and wrote, nothing is tokenised twice.
    """

    def __init__(self, world: World, codec: Codec, question: Question, group: int) -> None:
        self._world, self._codec, self._question, self._group = world, codec, question, group
        self.tokens = codec.asked(world.prompt(question))
        self.prompt_length = len(self.tokens)
        self.written = [False] * self.prompt_length
        self.log_prob = [0.0] * self.prompt_length
        self.stretches = [list(self.tokens)]
        self.status: list[str] = []
        self.retrieval_status: list[str | None] = []
        self.retrieval_seconds: list[float | None] = []
        self.answer: str | None = None
        self.ended: str | None = None

    def turn(self, tokens: list[int], log_prob: list[float]) -> list[int]:
        """Take one turn of the policy and return the observation's tokens; empty when the episode is over."""
        self.tokens += tokens
        self.written += [True] * len(tokens)
        self.log_prob += log_prob
        self.stretches.append(list(tokens))
        action = parse(self._codec.decode(tokens))
        found: str | Retrieved | None = None
        if action.kind == "answer":
            self.answer, self.ended = action.text, "answer"
        elif action.kind == "search":
            found = self._world.search(self._question, action.text, len(self.status) + 1)
        if isinstance(found, Retrieved):
            self.retrieval_status.append(found.status)
            self.retrieval_seconds.append(found.seconds)
            found = found.text
        else:
            self.retrieval_status.append(None)
            self.retrieval_seconds.append(None)
        self.status.append("invalid" if action.kind == "search" and found is None else action.kind)
        if self.ended is None and len(self.status) >= self._world.max_turns:
            self.ended = "max_turns"
        if self.ended is not None:
            return []
        observation = self._codec.observed(found)
        self.tokens += observation
        self.written += [False] * len(observation)
        self.log_prob += [0.0] * len(observation)
        self.stretches.append(observation)
        return observation

    def decoded(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`."""
        return self._codec.decode(tokens)

    def world_ahead(self, texts: Sequence[str]) -> None:
        """Hand the queries among `texts`, turns of several dialogues in this world, to the world at once."""
        ahead = getattr(self._world, "search_ahead", None)
        if ahead is not None:
            ahead([action.text for action in map(parse, texts) if action.kind == "search"])

    def stop(self) -> None:
        """End the episode because no room is left, and drop the unread observation after the last turn."""
        self.ended = "max_tokens"
        end = max((t for t, written in enumerate(self.written) if written), default=self.prompt_length - 1) + 1
        del self.tokens[end:], self.written[end:], self.log_prob[end:]
        self.stretches.pop()

    def episode(self) -> Episode:
        """Return the finished episode, judged."""
        answer, gold = self.answer, self._question.gold
        return Episode(
            question_id=self._question.id,
            group=self._group,
            tokens=self.tokens,
            written=self.written,
            log_prob=self.log_prob,
            prompt_length=self.prompt_length,
            question=self._question.text,
            gold=gold,
            answer=answer,
            reward=0.0 if answer is None else self._world.score(self._question, answer),
            success=answer is not None and self._world.correct(self._question, answer),
            ended=self.ended or "max_tokens",
            turns=len(self.status),
            searches=self.status.count("search"),
            valid_turns=len(self.status) - self.status.count("invalid"),
            turn_status=self.status,
            retrieval_status=self.retrieval_status,
            retrieval_seconds=self.retrieval_seconds,
            stretches=self.stretches,
        )
