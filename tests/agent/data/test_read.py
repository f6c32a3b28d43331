"""Files in the true schemas of Search-R1, FlashRAG and MedQA, with the awkward rows that they have."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from workbench.agent.data import BENCHMARKS, Item, load, read
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
MEDQA = [
    {
        "question": "A 23-year-old?", "answer": "Nitrofurantoin", "options": {"A": "Ampicillin", "B": "Nitrofurantoin"},
        "meta_info": "step2&3", "answer_idx": "B", "metamap_phrases": ["23 year old"],
    },
    {
        "question": "As the hub stores it?", "answer": "x", "meta_info": "step1", "answer_idx": "A",
        "options": [{"key": "A", "value": "x"}, {"key": "B", "value": "y"}],
    },
    {"question": "Without a letter?", "answer": "two", "options": ["one", "two"]},
]  # fmt: skip


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


def test_search_r1_rows(tmp_path: Path) -> None:
    rows = [search_r1("who is the mentor of Ada?", ["Ana", "Anna"], 0), search_r1("where?", ["here"], 1, "hotpotqa")]
    items = read(parquet(tmp_path / "train.parquet", rows), "x").items
    assert items[0] == Item("train_0", "who is the mentor of Ada?", ("Ana", "Anna"), source="nq")
    assert items[1].source == "hotpotqa"


def test_search_r1_rows_without_question_are_read_from_prompt_and_reward(tmp_path: Path) -> None:
    row = search_r1("who wrote Question: Time?", ["Mia"], 0)
    bare = {key: row[key] for key in ("data_source", "prompt", "reward_model")}
    plain = {"prompt": [{"role": "user", "content": "Question: where?"}], "reward_model": {"ground_truth": "here"}}
    both = search_r1("q?", ["trained"], 0) | {"golden_answers": ["next to it"]}
    rows = (bare, plain, both)
    items = [read(parquet(tmp_path / f"{i}.parquet", [row]), "x").items[0] for i, row in enumerate(rows)]
    assert [(i.question, i.answers, i.id) for i in items] == [
        ("Time?", ("Mia",), "0"), ("where?", ("here",), "0"), ("q?", ("trained",), "train_0"),
    ]  # fmt: skip


def test_medqa_rows(tmp_path: Path) -> None:
    data = read(jsonl(tmp_path / "medqa.jsonl", MEDQA), "medqa")
    assert [(item.answers, item.choices) for item in data.items] == [
        (("B",), (("A", "Ampicillin"), ("B", "Nitrofurantoin"))),
        (("A",), (("A", "x"), ("B", "y"))),
        (("B",), (("A", "one"), ("B", "two"))),
    ]


def test_medqa_as_parquet_keeps_only_the_choices_that_a_row_has(tmp_path: Path) -> None:
    rows = [{**MEDQA[0]}, {**MEDQA[0], "options": {"A": "x", "B": "y", "C": "z"}}]  # arrow gives the first row a C too
    assert [len(item.choices) for item in read(parquet(tmp_path / "m.parquet", rows), "m").items] == [2, 3]


def test_a_list_a_byte_order_mark_and_a_limit(tmp_path: Path) -> None:
    as_list = tmp_path / "list.json"
    as_list.write_text(json.dumps(FLASHRAG))
    assert len(read(as_list, "x").items) == 4
    marked = tmp_path / "bom.jsonl"
    marked.write_text(json.dumps(FLASHRAG[0]) + "\n\n", encoding="utf-8-sig")
    assert len(read(marked, "x").items) == 1
    assert len(read(as_list, "x", limit=2).items) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", f"{json.dumps(FLASHRAG[0])}\n{json.dumps(MEDQA[0])}\n", "split it into two"),
        ("a.jsonl", '{"query": "q", "answer": "a"}\n', "row 1 .*columns query, answer.*golden_answers"),
        ("a.jsonl", '{"question": "q", "golden_answers": ["a"]}\n{"question"\n', "cannot read"),
        ("a.jsonl", "[1, 2]", "row 1 .*is int"),
        ("a.jsonl", "", "no question with a gold answer among its 0 rows"),
        ("a.jsonl", '{"question": "q", "golden_answers": []}', "no question with a gold answer among its 1 rows"),
        ("a.jsonl", '{"question": "q", "options": {"A": "x"}, "answer_idx": "F"}', "right choice is 'F'"),
        ("a.jsonl", '{"question": "q", "options": 5, "answer_idx": "F"}', "row 1"),
        ("a.parquet", "not parquet", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path: Path, name: str, content: str, said: str) -> None:
    file = tmp_path / name
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


def test_a_benchmark_is_fetched_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repository: str, file: str, repo_type: str) -> str:
        asked.append((repository, file, repo_type))
        return str(jsonl(tmp_path / "cached.jsonl", FLASHRAG))

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert (load("hotpotqa").name, load("nq", "train").name) == ("hotpotqa", "nq/train")
    assert asked == [
        ("RUC-NLPIR/FlashRAG_datasets", "hotpotqa/dev.jsonl", "dataset"),
        ("RUC-NLPIR/FlashRAG_datasets", "nq/train.jsonl", "dataset"),
    ]


def test_a_hub_that_does_not_answer_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
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
