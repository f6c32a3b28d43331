"""Questions of a data set over any retriever: Search-R1's task, with any model."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from workbench.agent.data import Item, load
from workbench.agent.draws import draw
from workbench.agent.retrievers import Passage, Retriever, retriever_of
from workbench.agent.worlds import Question, Split, World, held_out
from workbench.spec import InputError, WorldSettings

_ORDER = 31


class Dataset(World):
    """The items of `world.data`; without `world.eval_data` the tenth of them whose hash says so is held out."""

    def __init__(
        self, settings: WorldSettings, retriever: Retriever | None = None, items: Sequence[Item] | None = None
    ) -> None:
        super().__init__(settings, None if settings.top_k == 0 else retriever or retriever_of(settings.retriever))
        self._items = {"train": list(items), "eval": list(items)} if items is not None else _splits(settings)

    def question(self, split: Split, seed: int, index: int) -> Question:
        """Return question `index` of the stream (split, seed): every item once, then all in a new order."""
        items = self._items[split]
        epoch, place = divmod(index, len(items))
        return _question(items[int(_order(seed, epoch, len(items))[place])], index)

    def every(self) -> list[Question]:
        """Return each held-out item once, in the order of the file."""
        return [_question(item, index) for index, item in enumerate(self._items["eval"])]

    def observation(self, passages: Sequence[Passage]) -> str:
        """Return the passages as Search-R1 writes them: `Doc 1(Title: ...) text`, one a line."""
        documents = []
        for number, passage in enumerate(passages, start=1):
            title, _, text = passage.contents.partition("\n")
            documents.append(f"Doc {number}(Title: {title}) {text}" if text else f"Doc {number} {title}")
        return "\n".join(documents)


def _question(item: Item, index: int) -> Question:
    text = item.question
    if item.choices:
        text = "\n".join([text, *(f"{letter}. {said}" for letter, said in item.choices), "Answer with one letter."])
    return Question(index, text, item.answers[0], index, answers=item.answers, choices=item.choices)


def _splits(settings: WorldSettings) -> dict[str, list[Item]]:
    if settings.data is None:
        raise InputError('world.kind = "dataset" needs world.data: a file, or the name of a benchmark such as "nq"')
    items = load(settings.data, settings.data_split).items
    if settings.eval_data is not None:
        return {"train": items, "eval": load(settings.eval_data).items}
    parts: dict[str, list[Item]] = {"train": [], "eval": []}
    for item in items:
        parts["eval" if held_out(item.question) else "train"].append(item)
    for split, found in parts.items():
        if not found:
            raise InputError(f"'{settings.data}' is too small to hold out a tenth: no question is left to {split}")
    return parts


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, n: int) -> np.ndarray:
    return np.random.default_rng(draw(_ORDER, seed, epoch)).permutation(n)
