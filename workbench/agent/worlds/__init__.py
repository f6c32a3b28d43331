"""Worlds: ask questions, answer queries and judge answers, all as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class Question:
    """One question: `seed` fixes everything the world will say in its episodes, `chain` is the path to the answer."""

    id: int  # index in its stream
    text: str
    gold: str
    seed: int
    start: str = ""
    chain: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()  # every accepted answer, `gold` first; empty where there is only one
    choices: tuple[tuple[str, str], ...] = ()  # letter and text; `gold` is a letter then

    @property
    def golds(self) -> tuple[str, ...]:
        """Every accepted answer."""
        return self.answers or (self.gold,)


class Retrieved(NamedTuple):
    """The text of an observation, and how the retriever did: found, empty or failed, in how many seconds."""

    text: str
    status: str
    seconds: float


class World(Protocol):
    """The calls that engines and learning make of a task."""

    max_turns: int
    max_turn_tokens: int

    def questions(self, split: Split, seed: int, start: int, n: int) -> list[Question]:
        """Questions start .. start + n - 1 of the stream (split, seed)."""

    def prompt(self, question: Question) -> str:
        """Return the text that the policy reads first."""

    def search(self, question: Question, query: str, turn: int) -> str | Retrieved | None:
        """What the retriever returns for `query` in turn `turn` (from 1); None for a query that it cannot read."""

    def correct(self, question: Question, answer: str) -> bool:
        """Return whether `answer` is right."""

    def score(self, question: Question, answer: str) -> float:
        """Reward of `answer`."""
