"""The quickstart grid, every arm, shrunk by --set to a network that trains in seconds; then what the README
types.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from sorl.spec import TABLES
from tests.store.processes import ROOT

SMALL = (
    "seeds=[0]",
    "iterations=4",
    "world.entities=8",
    "world.relations=4",
    "world.hops=[1.0, 0.0, 0.0]",
    "world.max_turns=3",
    "policy.hidden=32",
    "policy.layers=1",
    "policy.heads=2",
    "policy.mlp=32",
    "warmstart.steps=100",
    "warmstart.batch=32",
    "learn.episodes=16",
    "learn.minibatches=2",
    "evaluation.episodes=16",
)
RUN = ("run", "experiments/quickstart.toml", *(word for change in SMALL for word in ("--set", change)))


def sorl(runs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "cli.py"), "--runs", str(runs), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    done = sorl(runs, *RUN)
    assert done.returncode == 0, done.stderr[-2000:]
    for arm in ("ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo", "ppo, on-policy"):
        assert arm in done.stdout
    return runs


def test_every_table_has_rows_but_events_and_notes_and_the_ledger_answers_by_turn(trained):
    with duckdb.connect(str(trained / "sorl.duckdb"), read_only=True) as db:
        empty = {t.name for t in TABLES if db.execute(f"SELECT count(*) FROM {t.name}").fetchone() == (0,)}
        ledger = (
            "SELECT algorithm, avg(ratio_geo) FROM turn JOIN run USING (run_id) GROUP BY algorithm,"
            " turn_index"
        )
        rows = db.execute(ledger).fetchall()
    # A quiet run has no event, and only a person writes a note.
    assert empty <= {"event", "note"}
    assert {name for name, _ in rows} == {"ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo"}
    assert all(ratio > 0 for _, ratio in rows)
    folder, *_ = sorted((trained / "quickstart").glob("ppo-s0-*"))
    assert {"config.toml", "segments", "checkpoints", "console.log", "lock"} <= {
        p.name for p in folder.iterdir()
    }


def test_the_same_command_again_starts_nothing(trained):
    stamps = {p: p.stat().st_mtime_ns for p in trained.glob("quickstart/*/checkpoints/*")}
    assert sorl(trained, *RUN).returncode == 0
    assert {p: p.stat().st_mtime_ns for p in trained.glob("quickstart/*/checkpoints/*")} == stamps


def readme_commands() -> list[str]:
    text = re.sub(
        r'"SELECT[^"]*"', lambda found: " ".join(found[0].split()), (ROOT / "README.md").read_text()
    )
    return [line.strip() for line in text.splitlines() if line.strip().startswith(".venv/bin/sorl")]


@pytest.mark.parametrize("command", readme_commands())
def test_every_command_of_the_readme_answers(trained, command):
    done = sorl(trained, *shlex.split(command, comments=True)[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
