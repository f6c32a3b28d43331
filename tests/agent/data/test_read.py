"""Files in the true schemas of Search-R1, FlashRAG and MedQA, with the awkward rows that they have."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workbench.agent.worlds.dataset import BENCHMARKS, Item, load, read
from workbench.spec import InputError

PREFIX = "Answer the given question. You can call a search engine by <search> query </search>."
FLASHRAG: list[dict[str, Any]] = [
    {"id": "test_0", "question": "capital of peru", "golden_answers": ["Lima"], "metadata": {}},
    {"id": "test_1", "question": " Où? ", "golden_answers": ["São Tomé", "São Tomé", " Sao Tome "], "metadata": {}},
    {"id": "test_2", "question": "moon landing", "golden_answers": [1969, 1969.0, "July 1969"]},
    {"id": "test_3", "question": "nobody knows", "golden_answers": []},
    {"id": "test_4", "question": "blank", "golden_answers": ["", "  ", None]},
    {"id": "test_5", "question": "one string", "golden_answers": "東京"},
]
KEYED = [{"key": "A", "value": "x"}, {"key": "B", "value": "y"}]  # as the hub stores choices
MEDQA = [
    {"question": "Age?", "answer": "Rest", "options": {"A": "Salt", "B": "Rest"}, "answer_idx": "B", "meta_info": "2"},
    {"question": "As the hub stores it?", "answer": "x", "meta_info": "step1", "answer_idx": "A", "options": KEYED},
    {"question": "Without a letter?", "answer": "two", "options": ["one", "two"]},
]


def search_r1(question: str, golds: Any, number: int, source: str = "nq") -> dict[str, Any]:
    """A row of Search-R1's nq_search.py."""
    return {
        "id": f"train_{number}", "question": question, "golden_answers": golds, "data_source": source,
        "prompt": [{"role": "user", "content": f"{PREFIX} Question: {question}\n"}], "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": golds}},
        "extra_info": {"split": "train", "index": number},
    }  # fmt: skip


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_flashrag_rows(tmp_path: Path) -> None:
    data = read(jsonl(tmp_path / "test.jsonl", FLASHRAG), "nq")
    assert [(item.id, item.question, item.answers) for item in data.items] == [
        ("test_0", "capital of peru", ("Lima",)),
        ("test_1", "Où?", ("São Tomé", "Sao Tome")),
        ("test_2", "moon landing", ("1969", "July 1969")),
        ("test_5", "one string", ("東京",)),
    ]
    assert (data.name, data.left_out) == ("nq", 2)


def test_search_r1_rows_with_and_without_a_question(tmp_path: Path) -> None:
    row, other = search_r1("who wrote Question: Time?", ["Mia", "Ma"], 0), search_r1("q?", ["trained"], 1, "hotpotqa")
    bare = {key: row[key] for key in ("data_source", "prompt", "reward_model")}
    plain = {"prompt": [{"role": "user", "content": "Question: where?"}], "reward_model": {"ground_truth": "here"}}
    rows = (row, bare, plain, other | {"golden_answers": ["next to it"]})
    assert [read(parquet(tmp_path / f"{i}.parquet", [row]), "x").items[0] for i, row in enumerate(rows)] == [
        Item("train_0", "who wrote Question: Time?", ("Mia", "Ma"), source="nq"),
        Item("0", "Time?", ("Mia", "Ma"), source="nq"),
        Item("0", "where?", ("here",)),
        Item("train_1", "q?", ("trained",), source="hotpotqa"),
    ]


def test_medqa_rows(tmp_path: Path) -> None:
    assert [(item.answers, item.choices) for item in read(jsonl(tmp_path / "medqa.jsonl", MEDQA), "medqa").items] == [
        (("B",), (("A", "Salt"), ("B", "Rest"))),
        (("A",), (("A", "x"), ("B", "y"))),
        (("B",), (("A", "one"), ("B", "two"))),
    ]
    rows = [MEDQA[0], {**MEDQA[0], "options": {"A": "x", "B": "y", "C": "z"}}]  # arrow gives the first row a C too
    assert [len(item.choices) for item in read(parquet(tmp_path / "m.parquet", rows), "m").items] == [2, 3]


def test_a_list_a_byte_order_mark_and_a_limit(tmp_path: Path) -> None:
    as_list, marked = tmp_path / "list.json", tmp_path / "bom.jsonl"
    as_list.write_text(json.dumps(FLASHRAG))
    marked.write_text(json.dumps(FLASHRAG[0]) + "\n\n", encoding="utf-8-sig")
    lengths = [len(read(file, "x", limit).items) for file, limit in ((as_list, None), (marked, None), (as_list, 2))]
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
        "nq/test.jsonl", "triviaqa/test.jsonl", "popqa/test.jsonl", "hotpotqa/dev.jsonl", "2wikimultihopqa/dev.jsonl",
        "musique/dev.jsonl", "bamboogle/test.jsonl", "phrases_no_exclude_test.jsonl",
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"hotpotqa has no split 'test'.*train, dev"):
        next(b for b in BENCHMARKS if b.name == "hotpotqa").file("test")


def test_a_benchmark_is_fetched_or_the_error_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert load(str(file), limit=1).items[0].id == "test_0"
