"""Questions of a data set, answered over whatever retriever is named: Search-R1's task, with any model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

import numpy as np

from workbench.agent.data import Item, best, choice, load, with_choices
from workbench.agent.draws import draw
from workbench.agent.protocol import exact_match, f1
from workbench.agent.retrievers import Passage, Retriever
from workbench.agent.retrievers.build import FAILED, Lookups, retriever_of
from workbench.agent.worlds import Question, Retrieved, Split
from workbench.spec import InputError, WorldSettings

_ORDER = 31


class Dataset:
    """The items of `world.data`; without `world.eval_data` the tenth of them whose hash says so is held out."""

    def __init__(
        self, settings: WorldSettings, retriever: Retriever | None = None, items: Sequence[Item] | None = None
    ) -> None:
        self.settings = settings
        self.max_turns = settings.max_turns
        self.max_turn_tokens = settings.max_turn_tokens
        if settings.top_k == 0:
            retriever = None
        elif retriever is None:
            retriever = retriever_of(settings.retriever)
        self._lookups = Lookups(retriever, settings.top_k)
        self._items = {"train": list(items), "eval": list(items)} if items is not None else _splits(settings)
        self._asked: dict[str, Item] = {}

    def questions(self, split: Split, seed: int, start: int, n: int) -> list[Question]:
        """Questions start .. start + n - 1 of the stream (split, seed): every item once, then all in a new order."""
        items = self._items[split]
        found = []
        for index in range(start, start + n):
            order = _order(seed, index // len(items), len(items))
            found.append(self._question(items[int(order[index % len(items)])], index))
        return found

    def every(self) -> list[Question]:
        """Return each held-out item once, in the order of the file."""
        return [self._question(item, index) for index, item in enumerate(self._items["eval"])]

    def prompt(self, question: Question) -> str:
        """Return the question, with its choices; the protocol is explained around it where the policy needs that."""
        return question.text

    def search(self, question: Question, query: str, turn: int) -> Retrieved:
        """Return the passages as Search-R1 writes them: `Doc 1(Title: ...) text`, one a line."""
        lookup = self._lookups(query)
        text = "\n".join(_document(i, passage) for i, passage in enumerate(lookup.passages, start=1))
        return Retrieved(FAILED if lookup.status == "failed" else text, lookup.status, lookup.seconds)

    def search_ahead(self, queries: Sequence[str]) -> None:
        """Ask for `queries` in one request; the next searches for them are answered from it."""
        self._lookups.ahead(queries)

    def correct(self, question: Question, answer: str) -> bool:
        """Return whether `answer` matches a gold answer exactly, or is the right choice."""
        if question.choices:
            return choice(answer, question.choices) == question.gold
        return best(exact_match, answer, question.golds) == 1.0

    def score(self, question: Question, answer: str) -> float:
        """1 or 0 for a choice; else the best exact match or F1 over the gold answers, as the settings say."""
        if question.choices or self.settings.reward == "em":
            return float(self.correct(question, answer))
        return best(f1, answer, question.golds)

    def _question(self, item: Item, index: int) -> Question:
        text = with_choices(item.question, item.choices) if item.choices else item.question
        return Question(index, text, item.answers[0], index, answers=item.answers, choices=item.choices)


def _document(number: int, passage: Passage) -> str:
    title, _, text = passage.contents.partition("\n")
    return f"Doc {number}(Title: {title}) {text}" if text else f"Doc {number} {title}"


def _splits(settings: WorldSettings) -> dict[str, list[Item]]:
    if settings.data is None:
        raise InputError('world.kind = "dataset" needs world.data: a file, or the name of a benchmark such as "nq"')
    items = load(settings.data, settings.data_split).items
    if settings.eval_data is not None:
        return {"train": items, "eval": load(settings.eval_data).items}
    parts: dict[str, list[Item]] = {"train": [], "eval": []}
    for item in items:
        held_out = int.from_bytes(sha256(item.question.encode()).digest()[:8]) % 10 == 0
        parts["eval" if held_out else "train"].append(item)
    for split, found in parts.items():
        if not found:
            raise InputError(f"'{settings.data}' is too small to hold out a tenth: no question is left to {split}")
    return parts


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, n: int) -> np.ndarray:
    """Return the permutation of n items in which pass `epoch` of the stream `seed` asks them."""
    return np.random.default_rng(draw(_ORDER, seed, epoch)).permutation(n)
