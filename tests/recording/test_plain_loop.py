"""The example of the documentation runs, and its rows are those of its own loop."""

import math
import re
from pathlib import Path

import pytest
import torch

from examples import plain_loop
from tests.recording.local import Local, read

ROOT = Path(__file__).parents[2]


def test_the_plain_loop_records_what_it_did(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_loop, "Ledger", Local)
    folder = plain_loop.main(tmp_path, steps=3)
    rows = read(folder, "minibatch")
    expected = [(step, update, update // 2) for step in range(3) for update in range(4)]
    assert [(row["step"], row["update"], row["epoch"]) for row in rows] == expected
    first = [row for row in rows if row["update"] == 0]
    assert all(row["ratio_max"] == pytest.approx(1, abs=1e-5) and row["clip_frac"] == 0 for row in first)
    assert all(row["tokens"] == 32 * 6 for row in rows)
    assert first[0]["entropy"] == pytest.approx(math.log(16), abs=0.1)
    turns = read(folder, "turn")
    assert {(row["turn_index"], row["n_tokens"]) for row in turns} == {(1, 3), (2, 3)}
    assert len(turns) == 3 * 64 * 2 * 2
    assert read(folder, "run")[-1]["status"] == "finished"


class Nothing:
    """A ledger that records nothing."""

    folder = None
    __init__ = __exit__ = rollouts = update = end = lambda *told, **named: None

    def __enter__(self):
        return self


def test_what_is_trained_is_the_same_to_the_bit_with_and_without_the_recorder(tmp_path, monkeypatch):
    trained = []

    class Policy(plain_loop.Policy):
        def __init__(self):
            super().__init__()
            trained.append(self)

    monkeypatch.setattr(plain_loop, "Policy", Policy)
    for kind in (Local, Nothing):
        monkeypatch.setattr(plain_loop, "Ledger", kind)
        plain_loop.main(tmp_path, steps=3)
    recorded, bare = (list(policy.parameters()) for policy in trained)
    assert all(map(torch.equal, recorded, bare))


def test_the_page_shows_calls_that_exist():
    text = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
    names = set(re.findall(r"ledger\.(\w+)\(", text))
    assert names >= {"rollouts", "update", "end"}
    assert all(hasattr(Local, name) for name in names)


def test_the_loop_of_the_python_interface_runs_as_it_is(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (loop,) = [code for code in examples if "ledger.rollouts" in code]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sorl.recording.Ledger", Local)
    exec(loop, {})
    (row,) = read(Path(capsys.readouterr().out.strip()), "minibatch")
    assert (row["tokens"], row["clip_frac"]) == (6, pytest.approx(1 / 6))
