"""Dense retrieval with a real embedding model; only where `make dense` has installed one."""

from pathlib import Path

import pytest

from sorl.agent.retrievers.local import Dense
from studies.dense_retrieval import PACKAGE

MODEL = Path(__file__).parents[3] / "build" / "models" / "packages" / PACKAGE / "model"


@pytest.mark.skipif(not MODEL.is_dir(), reason="no embedding model; `make dense` installs it")
def test_a_question_in_other_words_finds_its_passage(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="the extra dense is not installed")
    dense = Dense(corpus, str(MODEL), tmp_path)
    french, peruvian, nothing = dense.retrieve(["seat of the French government", "money in Peru", ""], 1)
    assert (french[0].id, peruvian[0].id, nothing) == ("p1", "p2", [])
    assert 0 < french[0].score < 1
