"""Data sets: scores, files in the schemas of Search-R1, FlashRAG and MedQA with their awkward rows, and the
world.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sorl.agent.retrievers import Passage
from sorl.agent.worlds import best, choice, exact_match, f1
from sorl.agent.worlds.dataset import BENCHMARKS, Dataset, Item, load, read
from sorl.spec import InputError, RetrieverSettings, WorldSettings

CASES = json.loads(Path(__file__).with_name("squad_cases.json").read_text())
CHOICES = (("A", "Aspirin"), ("B", "A beta blocker"), ("C", "Vitamin C"), ("D", "Bed rest"))


def test_exact_match_and_f1_are_squads_on_every_recorded_case() -> None:
    assert len(CASES) >= 300
    assert 40 < sum(case["em"] for case in CASES) < 200  # both outcomes, and partial overlaps, are among them
    assert sum(0 < case["f1"] < 1 for case in CASES) > 60
    for case in CASES:
        assert best(exact_match, case["answer"], case["golds"]) == case["em"], case
        assert best(f1, case["answer"], case["golds"]) == pytest.approx(case["f1"], abs=1e-6), case


@pytest.mark.parametrize(
    ("answers", "letter"),
    [
        (("A", "a", "(A) aspirin", "aspirin"), "A"),
        (("(b)", "B: a beta blocker", "The beta blocker."), "B"),
        (("C.", "C) Vitamin C", "vitamin c"), "C"),
        ((" D ",), "D"),
        (("E", "", "A patient needs rest", "E. Aspirin", "neither", "A B"), None),
    ],
)
def test_a_choice_is_read_from_its_letter_its_text_or_both(
    answers: tuple[str, ...], letter: str | None
) -> None:
    assert {choice(answer, CHOICES) for answer in answers} == {letter}


PREFIX = "Answer the given question. You can call a search engine by <search> query </search>."
FLASHRAG: list[dict[str, Any]] = [
    {"id": "test_0", "question": "capital of peru", "golden_answers": ["Lima"], "metadata": {}},
    {
        "id": "test_1",
        "question": " Où? ",
        "golden_answers": ["São Tomé", "São Tomé", " Sao Tome "],
        "metadata": {},
    },
    {"id": "test_2", "question": "moon landing", "golden_answers": [1969, 1969.0, "July 1969"]},
    {"id": "test_3", "question": "nobody knows", "golden_answers": []},
    {"id": "test_4", "question": "blank", "golden_answers": ["", "  ", None]},
    {"id": "test_5", "question": "one string", "golden_answers": "東京"},
]
KEYED = [{"key": "A", "value": "x"}, {"key": "B", "value": "y"}]  # as the hub stores choices
MEDQA = [
    {
        "question": "Age?",
        "answer": "Rest",
        "options": {"A": "Salt", "B": "Rest"},
        "answer_idx": "B",
        "meta_info": "2",
    },
    {
        "question": "As the hub stores it?",
        "answer": "x",
        "meta_info": "step1",
        "answer_idx": "A",
        "options": KEYED,
    },
    {"question": "Without a letter?", "answer": "two", "options": ["one", "two"]},
]


def search_r1(question: str, golds: Any, number: int, source: str = "nq") -> dict[str, Any]:
    """A row of Search-R1's nq_search.py."""
    return {
        "id": f"train_{number}",
        "question": question,
        "golden_answers": golds,
        "data_source": source,
        "prompt": [{"role": "user", "content": f"{PREFIX} Question: {question}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": golds}},
        "extra_info": {"split": "train", "index": number},
    }


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_flashrag_rows(tmp_path: Path) -> None:
    data = read(jsonl(tmp_path / "test.jsonl", FLASHRAG), "nq")
    assert data.items == [
        Item("capital of peru", ("Lima",)),
        Item("Où?", ("São Tomé", "Sao Tome")),
        Item("moon landing", ("1969", "July 1969")),
        Item("one string", ("東京",)),
    ]
    assert (data.name, data.left_out) == ("nq", 2)


def test_search_r1_rows_with_and_without_a_question(tmp_path: Path) -> None:
    row = search_r1("who wrote Question: Time?", ["Mia", "Ma"], 0)
    other = search_r1("q?", ["trained"], 1, "hotpotqa")
    bare = {key: row[key] for key in ("data_source", "prompt", "reward_model")}
    plain = {
        "prompt": [{"role": "user", "content": "Question: where?"}],
        "reward_model": {"ground_truth": "here"},
    }
    rows = (row, bare, plain, other | {"golden_answers": ["next to it"]})
    assert [read(parquet(tmp_path / f"{i}.parquet", [row]), "x").items[0] for i, row in enumerate(rows)] == [
        Item("who wrote Question: Time?", ("Mia", "Ma")),
        Item("Time?", ("Mia", "Ma")),
        Item("where?", ("here",)),
        Item("q?", ("trained",)),
    ]


def test_medqa_rows(tmp_path: Path) -> None:
    assert [
        (item.answers, item.choices) for item in read(jsonl(tmp_path / "medqa.jsonl", MEDQA), "medqa").items
    ] == [
        (("B",), (("A", "Salt"), ("B", "Rest"))),
        (("A",), (("A", "x"), ("B", "y"))),
        (("B",), (("A", "one"), ("B", "two"))),
    ]
    # arrow gives the first row a C too
    rows = [MEDQA[0], {**MEDQA[0], "options": {"A": "x", "B": "y", "C": "z"}}]
    assert [len(item.choices) for item in read(parquet(tmp_path / "m.parquet", rows), "m").items] == [2, 3]


def test_a_list_a_byte_order_mark_and_a_limit(tmp_path: Path) -> None:
    as_list = tmp_path / "list.json"
    marked = tmp_path / "bom.jsonl"
    as_list.write_text(json.dumps(FLASHRAG))
    marked.write_text(json.dumps(FLASHRAG[0]) + "\n\n", encoding="utf-8-sig")
    lengths = [
        len(read(file, "x", limit).items) for file, limit in ((as_list, None), (marked, None), (as_list, 2))
    ]
    assert lengths == [4, 1, 2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{json.dumps(FLASHRAG[0])}\n{json.dumps(MEDQA[0])}\n", "split it into two"),
        ('{"query": "q", "answer": "a"}\n', "row 1 .*columns query, answer.*golden_answers"),
        ('{"question": "q", "golden_answers": ["a"]}\n{"question"\n', "cannot read"),
        ("[1, 2]", "row 1 .*is int"),
        ("", "no question with a gold answer among its 0 rows"),
        ('{"question": "q", "golden_answers": []}', "no question with a gold answer among its 1 rows"),
        ('{"question": "q", "options": {"A": "x"}, "answer_idx": "F"}', "right choice is 'F'"),
        ('{"question": "q", "options": 5, "answer_idx": "F"}', "row 1"),
        ("not parquet", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / ("a.parquet" if content == "not parquet" else "a.jsonl")
    file.write_text(content)
    with pytest.raises(InputError, match=said):
        read(file, "x")


def test_the_eight_benchmarks_and_their_files() -> None:
    assert [b.file(b.split) for b in BENCHMARKS] == [
        "nq/test.jsonl",
        "triviaqa/test.jsonl",
        "popqa/test.jsonl",
        "hotpotqa/dev.jsonl",
        "2wikimultihopqa/dev.jsonl",
        "musique/dev.jsonl",
        "bamboogle/test.jsonl",
        "phrases_no_exclude_test.jsonl",
    ]
    with pytest.raises(InputError, match=r"hotpotqa has no split 'test'.*train, dev"):
        next(b for b in BENCHMARKS if b.name == "hotpotqa").file("test")


def test_a_benchmark_is_fetched_or_the_error_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(repository: str, file: str, repo_type: str) -> str:
        asked.append((repository, file, repo_type))
        return str(jsonl(tmp_path / "cached.jsonl", FLASHRAG))

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert (load("hotpotqa").name, load("nq", "train").name) == ("hotpotqa", "nq/train")
    files = ("hotpotqa/dev.jsonl", "nq/train.jsonl")
    assert asked == [("RUC-NLPIR/FlashRAG_datasets", file, "dataset") for file in files]

    def offline(*arguments: object, **options: object) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", offline)
    with pytest.raises(InputError, match=r"bamboogle/test.jsonl .*\(no route\).*--data FILE.jsonl"):
        load("bamboogle")


def test_data_is_a_file_or_a_known_name(tmp_path: Path) -> None:
    (tmp_path / "musique").mkdir()
    file = jsonl(tmp_path / "musique" / "dev.jsonl", FLASHRAG)
    assert load(str(file)).name == "musique/dev"
    assert load(str(jsonl(tmp_path / "mine.jsonl", FLASHRAG))).name == "mine"
    with pytest.raises(InputError, match=r"no data 'hotpot'.*did you mean 'hotpotqa'"):
        load("hotpot")
    with pytest.raises(InputError, match="--split is for benchmarks"):
        load(str(file), "dev")
    assert load(str(file), limit=1).items[0].question == "capital of peru"


SETTINGS = WorldSettings(kind="dataset", data="-", retriever=RetrieverSettings(kind="bm25", corpus="-"))
ITEMS = [
    Item("capital of Peru?", ("Lima", "Ciudad de los Reyes")),
    Item("Which?", ("B",), (("A", "Aspirin"), ("B", "Rest"))),
]


class Shelf:
    """Finds a city and the query itself, nothing for an empty query, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        self.requests.append(list(queries))
        return [
            [Passage("0", '"Lima"\nA city.', 2.0), Passage("1", q, 1.0)][:top_k] if q else [] for q in queries
        ]


def world_of(items: Sequence[Item] | None = ITEMS, shelf: Shelf | None = None, **settings: Any) -> Dataset:
    return Dataset(SETTINGS.model_copy(update=settings), shelf or Shelf(), items)


def test_passages_are_as_search_r1_writes_them_and_queries_asked_ahead_are_one_request() -> None:
    world = world_of(shelf=(shelf := Shelf()))
    question = world.every()[0]
    lima = 'Doc 1(Title: "Lima") A city.\nDoc 2'

    def search(query: str) -> Any:
        return world.search(question, query, 1)

    world.search_ahead(["a", "", "a", "b"])
    assert shelf.requests == [["a", "", "b"]]
    assert [search(q)[:2] for q in ("a", "", "b")] == [
        (f"{lima} a", "found"),
        ("", "empty"),
        (f"{lima} b", "found"),
    ]
    assert (search("c").text, search("c").seconds >= 0) == (f"{lima} c", True)
    world.search_ahead(["d"])  # one query is no batch, and what was asked before is over
    assert search("a").status == "found"
    assert shelf.requests[1:] == [["c"], ["c"], ["a"]]
    without = world_of(top_k=0)
    without.search_ahead(["a", "b"])
    assert without.search(question, "a", 1) == ("", "empty", 0.0)


def test_any_gold_answer_is_right_and_f1_takes_the_best() -> None:
    question = world_of().every()[0]
    world = world_of(reward="f1")
    right = [world.correct(question, answer) for answer in ("lima", "the Ciudad de los Reyes", "Cusco")]
    assert right == [True, True, False]
    assert world.score(question, "Ciudad de Lima") == pytest.approx(2 * 2 / (3 + 4))
    assert world_of().score(question, "Ciudad de Lima") == 0.0


def test_a_choice_is_asked_with_its_letters_and_judged_by_them() -> None:
    world = world_of()
    question = world_of().every()[1]
    assert question.text.endswith("A. Aspirin\nB. Rest\nAnswer with one letter.")
    answers = ("B", "(b) Rest", "rest", "A", "a rest cure")
    assert [world.score(question, answer) for answer in answers] == [1, 1, 1, 0, 0]


def test_every_item_is_asked_once_before_any_is_asked_again() -> None:
    items = [Item(f"q{i}?", (str(i),)) for i in range(7)]
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
    train = jsonl(tmp_path / "a.jsonl", FLASHRAG[:2])
    held_out = jsonl(tmp_path / "b.jsonl", FLASHRAG[2:3])
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
