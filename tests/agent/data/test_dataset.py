from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agent.data.test_read import FLASHRAG, jsonl
from workbench.agent.retrievers import Passage
from workbench.agent.worlds.dataset import Dataset, Item
from workbench.spec import InputError, RetrieverSettings, WorldSettings

SETTINGS = WorldSettings(kind="dataset", data="-", retriever=RetrieverSettings(kind="bm25", corpus="-"))
ITEMS = [
    Item("0", "capital of Peru?", ("Lima", "Ciudad de los Reyes")),
    Item("1", "Which?", ("B",), (("A", "Aspirin"), ("B", "Rest"))),
]


class Shelf:
    """The same passages for every query."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        return [[Passage("0", '"Lima"\nA city.', 2.0), Passage("1", "No title here.", 1.0)][:top_k] for _ in queries]


def world_of(items: Sequence[Item] | None = ITEMS, **settings: Any) -> Dataset:
    return Dataset(SETTINGS.model_copy(update=settings), Shelf(), items)


def test_passages_are_written_as_search_r1_writes_them() -> None:
    world = world_of()
    found: Any = world.search(world.every()[0], "Peru", 1)
    assert (found.text, found.status) == ('Doc 1(Title: "Lima") A city.\nDoc 2 No title here.', "found")
    assert found.seconds >= 0


def test_any_gold_answer_is_right_and_f1_takes_the_best() -> None:
    question, world = world_of().every()[0], world_of(reward="f1")
    right = [world.correct(question, answer) for answer in ("lima", "the Ciudad de los Reyes", "Cusco")]
    assert right == [True, True, False]
    assert world.score(question, "Ciudad de Lima") == pytest.approx(2 * 2 / (3 + 4))
    assert world_of().score(question, "Ciudad de Lima") == 0.0


def test_a_choice_is_asked_with_its_letters_and_judged_by_them() -> None:
    world, question = world_of(), world_of().every()[1]
    assert world.prompt(question).endswith("A. Aspirin\nB. Rest\nAnswer with one letter.")
    answers = ("B", "(b) Rest", "rest", "A", "a rest cure")
    assert [world.score(question, answer) for answer in answers] == [1, 1, 1, 0, 0]


def test_every_item_is_asked_once_before_any_is_asked_again() -> None:
    items = [Item(str(i), f"q{i}?", (str(i),)) for i in range(7)]
    world = world_of(items)
    stream = world.questions("train", 3, 0, 21)
    passes = [[q.text for q in stream[i : i + 7]] for i in (0, 7, 14)]
    assert all(sorted(texts) == sorted(item.question for item in items) for texts in passes)
    assert passes[0] != passes[1]
    assert world.questions("train", 3, 5, 4) == stream[5:9]
    assert [q.text for q in world.questions("train", 4, 0, 7)] != passes[0]


def test_without_held_out_data_a_tenth_is_held_out_for_good(tmp_path: Path) -> None:
    rows = [{"id": str(i), "question": f"question {i}?", "golden_answers": [str(i)]} for i in range(300)]
    world = world_of(None, data=str(jsonl(tmp_path / "a.jsonl", rows)))
    held_out = {q.text for q in world.every()}
    trained = {q.text for q in world.questions("train", 0, 0, 300 - len(held_out))}
    assert 15 < len(held_out) < 50
    assert len(trained) + len(held_out) == len(trained | held_out) == 300


def test_held_out_data_is_another_file_where_one_is_named(tmp_path: Path) -> None:
    train, held_out = jsonl(tmp_path / "a.jsonl", FLASHRAG[:2]), jsonl(tmp_path / "b.jsonl", FLASHRAG[2:3])
    world = world_of(None, data=str(train), eval_data=str(held_out))
    assert [q.gold for q in world.every()] == ["1969"]
    assert {q.gold for q in world.questions("train", 0, 0, 9)} == {"Lima", "São Tomé"}
    with pytest.raises(InputError, match="too small to hold out"):
        world_of(None, data=str(held_out))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "dataset", "data": "nq"}, "has no passages of its own"),
        ({"kind": "facts", "retriever": {"kind": "http", "url": "http://x/"}}, "answers its own queries"),
        ({"kind": "atlas", "retriever": {"kind": "http"}}, "needs retriever.url"),
        ({"kind": "atlas", "retriever": {"kind": "bm25"}}, "needs retriever.corpus"),
    ],
)
def test_a_world_without_its_retriever_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        WorldSettings.model_validate(given)
