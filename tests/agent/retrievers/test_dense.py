from pathlib import Path

import numpy as np
import pytest

from workbench.agent.retrievers.dense import Dense

pytest.importorskip("faiss", reason="the extra dense is not installed")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class CountingEncoder:
    """A text as how often each letter is in it."""

    def __init__(self) -> None:
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
    first, second, other = CountingEncoder(), CountingEncoder(), CountingEncoder()
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
