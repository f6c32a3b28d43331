import json
from pathlib import Path

import pytest

PASSAGES = (
    "Lima is the capital of Peru.",
    "Paris is the capital of France.",
    "The sol is the currency of Peru.",
    "São Tomé lies on the equator — 0°.",
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.jsonl"
    lines = [
        json.dumps({"id": f"p{i}", "contents": text}, ensure_ascii=i % 2 == 0)
        for i, text in enumerate(PASSAGES)
    ]
    file.write_text("\n".join(lines), encoding="utf-8")  # no newline at the end
    return file
