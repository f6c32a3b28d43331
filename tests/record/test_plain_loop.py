"""The example of the documentation runs, and its rows are those of its own loop."""

import math
import re
from pathlib import Path

import pytest

from examples import plain_loop
from tests.record.local import Local, read

ROOT = Path(__file__).parents[2]


def test_the_plain_loop_records_what_it_did(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_loop, "Ledger", Local)
    folder = plain_loop.main(tmp_path, steps=3)
    rows = read(folder, "minibatch")
    assert [(row["step"], row["update"], row["epoch"]) for row in rows] == [
        (step, update, update // 2) for step in range(3) for update in range(4)
    ]
    first = [row for row in rows if row["update"] == 0]
    assert all(row["ratio_max"] == pytest.approx(1, abs=1e-5) and row["clip_frac"] == 0 for row in first)
    assert all(row["tokens"] == 32 * 6 for row in rows)
    assert first[0]["entropy"] == pytest.approx(math.log(16), abs=0.1)
    turns = read(folder, "turn")
    assert {(row["turn_index"], row["n_tokens"]) for row in turns} == {(1, 3), (2, 3)}
    assert len(turns) == 3 * 64 * 2 * 2
    assert read(folder, "run")[-1]["status"] == "finished"


def test_the_page_shows_calls_that_exist():
    text = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
    names = set(re.findall(r"ledger\.(\w+)\(", text))
    assert names >= {"rollouts", "update", "end"}
    assert all(hasattr(Local, name) for name in names)
