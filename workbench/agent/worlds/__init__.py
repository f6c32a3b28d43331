"""Worlds: ask questions, answer queries and judge answers, all as text."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from typing import Literal, NamedTuple

from workbench.agent.retrievers import FAILED, Lookups, Passage
from workbench.spec import WorldSettings

Split = Literal["train", "eval"]
Choices = Sequence[tuple[str, str]]  # letter and text
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LETTER = re.compile(r"\W*([A-Za-z])\W*")  # "B", "(b)", "B."
_LETTERED = re.compile(r"\W*([A-Za-z])\s*[).:]\s*(.+)", re.DOTALL)  # "B. aspirin", "(B) aspirin"; not "A patient"


def normalise(answer: str) -> str:
    """Lower case, no punctuation, no articles, single spaces: as SQuAD and Search-R1's qa_em.py normalise."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """1 when the normalised answers are equal, else 0."""
    return float(normalise(answer) == normalise(gold))


def f1(answer: str, gold: str) -> float:
    """F1 over the words of the normalised answers (SQuAD 2.0); without words in one of them, whether both have none."""
    given, wanted = normalise(answer).split(), normalise(gold).split()
    if not given or not wanted:
        return float(given == wanted)
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2.0 * common / (len(given) + len(wanted)) if common else 0.0


def best(metric: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
    """Return the highest score of `answer` over the gold answers, as SQuAD and Search-R1 judge."""
    return max(metric(answer, gold) for gold in golds)


def choice(answer: str, choices: Choices) -> str | None:
    """The letter that `answer` chooses: by the letter, by letter and text, or by the text alone; None for no choice."""
    alone, lettered = (
        match.group(1).upper() if (match := pattern.fullmatch(answer.strip())) else None
        for pattern in (_LETTER, _LETTERED)
    )
    letters = {letter for letter, _ in choices}
    if alone in letters:
        return alone
    texts = {normalise(text): letter for letter, text in choices}
    return texts.get(normalise(answer), lettered if lettered in letters else None)


def held_out(text: str) -> bool:
    """Return whether a question text belongs to eval for ever: the tenth of all texts whose hash says so."""
    return int.from_bytes(sha256(text.encode()).digest()[:8]) % 10 == 0


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


class World:
    """The calls that engines and learning make of a task; a world adds its questions, and passages or a search."""

    _lookups: Lookups  # of a world that searches through a retriever

    def __init__(self, settings: WorldSettings) -> None:
        self.settings = settings
        self.max_turns, self.max_turn_tokens = settings.max_turns, settings.max_turn_tokens

    def questions(self, split: Split, seed: int, start: int, n: int) -> list[Question]:
        """Questions start .. start + n - 1 of the stream (split, seed); each depends on its own index alone."""
        return [self.question(split, seed, index) for index in range(start, start + n)]

    def question(self, split: Split, seed: int, index: int) -> Question:
        """Return question `index` of the stream (split, seed)."""
        raise NotImplementedError

    def prompt(self, question: Question) -> str:
        """Return the text that the policy reads first; the wording explains the protocol where the policy needs it."""
        return question.text

    def search(self, question: Question, query: str, turn: int) -> str | Retrieved | None:
        """What the retriever returns for `query` in turn `turn` (from 1); None for a query that it cannot read."""
        passages, status, seconds = self._lookups(query)
        return Retrieved(FAILED if status == "failed" else self.observation(passages), status, seconds)

    def observation(self, passages: Sequence[Passage]) -> str:
        """Return the passages of a search as the policy reads them."""
        raise NotImplementedError

    def search_ahead(self, queries: Sequence[str]) -> None:
        """Answer the next searches for `queries` from one request, where a retriever answers them."""
        if hasattr(self, "_lookups"):
            self._lookups.ahead(queries)

    def correct(self, question: Question, answer: str) -> bool:
        """Return whether `answer` matches a gold answer after normalisation, or is the right choice."""
        if question.choices:
            return choice(answer, question.choices) == question.gold
        return best(exact_match, answer, question.golds) == 1.0

    def score(self, question: Question, answer: str) -> float:
        """1 or 0 for a choice; else the best exact match or F1 over the gold answers, as the settings say."""
        if question.choices or self.settings.reward == "em":
            return float(self.correct(question, answer))
        return best(f1, answer, question.golds)


@lru_cache(maxsize=4)
def build(settings: WorldSettings) -> World:
    """Return the world of `settings`, the same for equal ones. Raises InputError where its data or retriever lacks."""
    world: World = getattr(import_module(f"workbench.agent.worlds.{settings.kind}"), settings.kind.capitalize())(
        settings
    )
    return world
