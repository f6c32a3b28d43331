"""BM25 and dense retrieval over one small corpus."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from sorl.agent.retrievers import Corpus
from sorl.agent.retrievers.local import BM25, Dense, words
from sorl.spec import InputError
from tests.agent.retrievers.conftest import PASSAGES


@pytest.fixture
def bm25(corpus: Path, tmp_path: Path) -> BM25:
    return BM25(corpus, tmp_path / "cache")


def test_passages_come_best_first_and_only_where_a_word_is_shared(bm25: BM25) -> None:
    capital, nothing, empty, accents = bm25.retrieve(["capital of Peru?", "zebra", "", "são tomé"], 2)
    assert [(p.id, p.contents) for p in capital] == [("p0", PASSAGES[0]), ("p1", PASSAGES[1])]
    assert capital[0].score > capital[1].score > 0
    assert nothing == empty == []
    assert [p.id for p in accents] == ["p3"]


def test_stop_words_count_only_where_there_is_nothing_else_and_ties_keep_their_order(bm25: BM25) -> None:
    assert bm25.retrieve(["capital"], 4) == bm25.retrieve(["the capital of the"], 4)
    assert {p.id for p in bm25.retrieve(["of"], 4)[0]} == {"p0", "p1", "p2"}
    # Equal scores keep the order of the corpus.
    assert [p.id for p in bm25.retrieve(["is"], 2)[0]] == ["p0", "p1"]


def test_the_ranking_agrees_with_an_implementation_of_its_own(tmp_path: Path) -> None:
    texts = [f"{'alpha ' * (i % 3)}{'beta ' * (i % 5)}word{i % 7} tail{i}" for i in range(60)]
    file = tmp_path / "c.jsonl"
    file.write_text("\n".join(json.dumps({"id": i, "contents": t}) for i, t in enumerate(texts)))
    other = BM25Okapi([words(t) for t in texts], k1=1.5, b=0.75)
    passages_with = Counter(word for text in texts for word in set(words(text)))
    other.idf = {w: math.log(1 + (60 - n + 0.5) / (n + 0.5)) for w, n in passages_with.items()}
    ours = BM25(file, tmp_path / "cache")
    for query in ("alpha word3", "beta tail7 word1", "tail59"):
        expected = other.get_scores(words(query)) / 2.5  # rank_bm25 keeps Okapi's constant factor k1 + 1
        for passage in ours.retrieve([query], 10)[0]:
            assert passage.score == pytest.approx(expected[int(passage.id)], rel=1e-5)
        assert ours.retrieve([query], 1)[0][0].score == pytest.approx(max(expected), rel=1e-5)


def test_the_index_is_made_once_for_a_content_and_again_for_another(corpus: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    BM25(corpus, cache)
    (made,) = (cache / "bm25").iterdir()
    before = {p.name: p.stat().st_mtime_ns for p in made.iterdir()}
    moved = corpus.rename(tmp_path / "elsewhere.jsonl")
    assert BM25(moved, cache).retrieve(["Lima"], 1)[0][0].id == "p0"
    assert {p.name: p.stat().st_mtime_ns for p in made.iterdir()} == before
    moved.write_text(moved.read_text(encoding="utf-8").replace("Lima", "Cusco"), encoding="utf-8")
    assert BM25(moved, cache).retrieve(["Lima"], 1) == [[]]
    assert len(list((cache / "bm25").iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ('{"id": 1, "contents": "a b"}\n{"id": 2}\n', "line 2 .*KeyError"),
        ('{"id": 1, "contents": 7}\n', "line 1 .*contents is int"),
        ("not json\n", "line 1"),
        ('{"id": 1, "contents": "?!"}\n', "no word"),
    ],
)
def test_a_corpus_that_is_none_says_where(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text(content)
    with pytest.raises(InputError, match=said):
        BM25(file, tmp_path / "cache")
    with pytest.raises(InputError, match=r"no corpus file '.*nowhere.jsonl'"):
        BM25(tmp_path / "nowhere.jsonl", tmp_path)
    # Blank lines are no passages.
    file.write_text('\n{"id": 1, "contents": "one"}\n\n  \n{"id": 2, "contents": "two"}\n\n')
    assert list(Corpus(file)) == [("1", "one"), ("2", "two")]


LETTERS = "abcdefghijklmnopqrstuvwxyz"


class CountingEncoder:
    """A text as how often each letter is in it."""

    def __init__(self) -> None:
        pytest.importorskip("faiss", reason="the extra dense is not installed")
        self.texts: list[str] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.texts += texts
        return np.array([[t.lower().count(c) for c in LETTERS] for t in texts], dtype=np.float64)


def test_passages_are_ranked_by_cosine_similarity(corpus: Path, tmp_path: Path) -> None:
    dense = Dense(corpus, "letters", tmp_path, CountingEncoder())
    found, nothing = dense.retrieve(["PARIS is the capital of France!", " "], 3)
    assert (found[0].id, found[0].score, len(found), nothing) == ("p1", pytest.approx(1.0), 3, [])
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    assert len(dense.retrieve(["x"], 99)[0]) == 4


def test_the_index_of_a_model_is_made_once(corpus: Path, tmp_path: Path) -> None:
    first = CountingEncoder()
    second = CountingEncoder()
    other = CountingEncoder()
    Dense(corpus, "letters", tmp_path, first)
    again = Dense(corpus, "letters", tmp_path, second)
    Dense(corpus, "other", tmp_path, other)
    assert [len(encoder.texts) for encoder in (first, second, other)] == [4, 0, 4]
    assert again.retrieve(["Peru currency sol"], 1)[0][0].id == "p2"


def test_e5_models_get_their_prefixes(corpus: Path, tmp_path: Path) -> None:
    encoder = CountingEncoder()
    Dense(corpus, "intfloat/e5-base-v2", tmp_path, encoder).retrieve(["where is Lima"], 1)
    assert encoder.texts[0] == "passage: Lima is the capital of Peru."
    assert encoder.texts[-1] == "query: where is Lima"
