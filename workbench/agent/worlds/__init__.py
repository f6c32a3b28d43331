"""Worlds: ask questions, answer queries and judge answers, all as text."""

import re
import string
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from typing import Literal, NamedTuple

from sorl.agent.retrievers import Passage, Retriever, RetrieverDown
from sorl.spec import WorldSettings

Split = Literal["train", "eval"]
FAILED = "search failed"  # what a policy reads when the retriever is down
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_LETTER = re.compile(r"\W*([A-Za-z])\W*")  # "B", "(b)", "B."
# "B. aspirin", "(B) aspirin"; not "A patient"
_LETTERED = re.compile(r"\W*([A-Za-z])\s*[).:]\s*(.+)", re.DOTALL)


def normalise(answer: str) -> str:
    """Drop case, punctuation, articles and extra spaces, as SQuAD and Search-R1's qa_em.py do."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """Return 1 when the normalised answers are equal, else 0."""
    return float(normalise(answer) == normalise(gold))


def f1(answer: str, gold: str) -> float:
    """Return F1 over the words of the normalised answers (SQuAD 2.0); if one has no words, whether both have
    none.
    """
    given = normalise(answer).split()
    wanted = normalise(gold).split()
    if not given or not wanted:
        return float(given == wanted)
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2.0 * common / (len(given) + len(wanted)) if common else 0.0


def best(metric: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
    """Return the highest score of `answer` over the gold answers, as SQuAD and Search-R1 judge."""
    return max(metric(answer, gold) for gold in golds)


def choice(answer: str, choices: Sequence[tuple[str, str]]) -> str | None:
    """Return the letter that `answer` chooses, by the letter, its text or both; None for no choice."""
    matches = (pattern.fullmatch(answer.strip()) for pattern in (_LETTER, _LETTERED))
    alone, lettered = (match.group(1).upper() if match else None for match in matches)
    letters = {letter for letter, _ in choices}
    if alone in letters:
        return alone
    texts = {normalise(text): letter for letter, text in choices}
    return texts.get(normalise(answer), lettered if lettered in letters else None)


def held_out(text: str) -> bool:
    """Return whether a question belongs to eval: a tenth of all texts does, by their hash, for ever."""
    return int.from_bytes(sha256(text.encode()).digest()[:8]) % 10 == 0


@dataclass(frozen=True)
class Question:
    """One question: `seed` fixes everything the world will say in its episodes, `chain` is the path to the
    answer.
    """

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
    """The text of an observation, and how the retriever did; None where the world searched without one."""

    text: str
    status: str | None = None  # found, empty, or failed where the retriever is down
    seconds: float | None = None  # wall time of the request, of a batch its share


class World:
    """A task; a world adds its questions, and observations or a search. Without a retriever every search is
    empty.
    """

    def __init__(self, settings: WorldSettings, retriever: Retriever | None = None) -> None:
        self.settings = settings
        self._retriever = retriever
        self.max_turns = settings.max_turns
        self.max_turn_tokens = settings.max_turn_tokens
        self._ahead: dict[str, Retrieved] = {}  # what `search_ahead` found; copies of the world share it

    def questions(self, split: Split, seed: int, start: int, n: int) -> list[Question]:
        """Return questions start .. start + n - 1 of the stream (split, seed); each depends on its index
        alone.
        """
        return [self.question(split, seed, index) for index in range(start, start + n)]

    def hops(self, u: float) -> int:
        """Return the number of hops of a question, 1 to 3, from a uniform number."""
        one_hop, two_hops, _ = self.settings.hops
        if u < one_hop:
            return 1
        return 2 if u < one_hop + two_hops else 3

    def question(self, split: Split, seed: int, index: int) -> Question:
        """Return question `index` of the stream (split, seed)."""
        raise NotImplementedError

    def search(self, question: Question, query: str, turn: int) -> Retrieved | None:
        """Return what the retriever finds for `query` in turn `turn` (from 1); None for a query it cannot
        read.
        """
        return self._ahead[query] if query in self._ahead else self._ask([query])[query]

    def observation(self, passages: Sequence[Passage]) -> str:
        """Return the passages of a search as the policy reads them."""
        raise NotImplementedError

    def search_ahead(self, queries: Sequence[str]) -> None:
        """Send `queries`, the next searches, in one request; the answers hold until the next call."""
        distinct = list(dict.fromkeys(queries))
        self._ahead.clear()
        self._ahead |= self._ask(distinct) if len(distinct) > 1 else {}

    def _ask(self, queries: list[str]) -> dict[str, Retrieved]:
        if self._retriever is None:
            return {query: Retrieved("", "empty", 0.0) for query in queries}
        began = time.perf_counter()
        try:
            passages = self._retriever.retrieve(queries, self.settings.top_k)
            found = [(self.observation(some), "found" if some else "empty") for some in passages]
        except RetrieverDown:
            found = [(FAILED, "failed") for _ in queries]
        share = (time.perf_counter() - began) / len(queries)
        return {query: Retrieved(*one, share) for query, one in zip(queries, found, strict=True)}

    def correct(self, question: Question, answer: str) -> bool:
        """Return whether `answer` matches a gold answer after normalisation, or is the right choice."""
        if question.choices:
            return choice(answer, question.choices) == question.gold
        return best(exact_match, answer, question.golds) == 1.0

    def score(self, question: Question, answer: str) -> float:
        """Return 1 or 0 for a choice; else the best exact match or F1 over the gold answers, as the settings
        say.
        """
        if question.choices or self.settings.reward == "em":
            return float(self.correct(question, answer))
        return best(f1, answer, question.golds)


@lru_cache(maxsize=4)
def build(settings: WorldSettings) -> World:
    """Return the world of `settings`, the same for equal ones. Raises InputError where its data or retriever
    lacks.
    """
    module = import_module(f"sorl.agent.worlds.{settings.kind}")
    world: World = getattr(module, settings.kind.capitalize())(settings)
    return world
