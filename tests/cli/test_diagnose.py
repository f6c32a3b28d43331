"""`sorl diagnose`: a run, an experiment, a folder, a foreign log; text, Markdown, JSON; exit codes; wrong input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workbench.cli.diagnose import _name_of


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A log of TRL whose learning rate leaps; its completions try to act on the terminal."""
    path = tmp_path / "evil\x1b[2J<b>.jsonl"
    rows = [
        {"step": i, "entropy": 0.5, "reward": 0.4, "learning_rate": 1e-6 if i < 20 else 1e-4, "grad_norm": 0.3}
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_runs_of_an_experiment_are_diagnosed_one_after_the_other(sorl: Any, grid: Path) -> None:
    result = sorl("diagnose", "demo", "--format", "json", runs=grid)
    assert result.exit_code == 0, result.stderr
    names = [one["log"] for one in json.loads(result.stdout)]
    assert len(names) == len(set(names)) == 8
    alone = json.loads(sorl("diagnose", grid / "demo" / names[0], "--format", "json", runs=grid).stdout)
    assert [one["log"] for one in alone] == names[:1]
    assert _name_of((grid / "demo").resolve(), grid.resolve()) == "demo"


def test_a_foreign_log_is_diagnosed_without_a_runs_folder(sorl: Any, foreign: Path, tmp_path: Path) -> None:
    result = sorl("diagnose", foreign, runs=tmp_path / "nowhere")
    assert result.exit_code == 0, result.stderr
    assert "1. The learning rate is not the one that was set  [learning_rate: critical" in result.stdout
    assert "from step 20 on the optimizer's learning rate is 0.0001, where it began with 1e-06" in result.stdout
    assert "Cannot tell: " in result.stdout
    assert "\x1b" not in result.stdout


def test_markdown_carries_no_markup_of_a_log(sorl: Any, foreign: Path) -> None:
    result = sorl("diagnose", foreign, "--format", "md")
    assert result.stdout.startswith("### evil\\u001b[2J&lt;b>.jsonl: ")
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(("level", "code"), [("info", 1), ("warning", 1), ("critical", 1), (None, 0)])
def test_fail_on_sets_the_exit_code(sorl: Any, foreign: Path, level: str | None, code: int) -> None:
    assert sorl("diagnose", foreign, *(["--fail-on", level] if level else [])).exit_code == code


def test_a_clean_log_never_fails(sorl: Any, tmp_path: Path) -> None:
    path = tmp_path / "clean.jsonl"
    path.write_text("".join(json.dumps({"step": i, "entropy": 0.5, "learning_rate": 1e-6}) + "\n" for i in range(40)))
    result = sorl("diagnose", path, "--fail-on", "info")
    assert result.exit_code == 0
    assert "Nothing found." in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "no run 'nothing'"),
        (["nowhere.jsonl"], "there is no file 'nowhere.jsonl'"),
        (["demo", "--format", "html"], "--format 'html' is unknown"),
        (["demo", "--fail-on", "worst"], "--fail-on 'worst' is unknown"),
    ],
)
def test_wrong_input_is_one_message(sorl: Any, grid: Path, arguments: list[str], says: str) -> None:
    result = sorl("diagnose", *arguments, runs=grid)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("sorl: ")
    assert says in result.stderr


def test_a_run_folder_of_another_runs_folder_is_told_how_to_be_read(sorl: Any, grid: Path, runs: Path) -> None:
    result = sorl("diagnose", grid / "demo", runs=runs)
    assert result.exit_code == 2
    assert f"--runs {grid} diagnose demo" in result.stderr


def test_bench_diagnose_counts_shipped_cases_and_says_what_to_run_without_any(
    sorl: Any, grid: Path, tmp_path: Path
) -> None:
    from studies import diagnosis as score
    from tests.studies.test_diagnosis import FOUND

    path = tmp_path / "scored.parquet"
    score.write(FOUND, path)
    result = sorl("bench", "diagnose", "--from", path)
    assert result.exit_code == 0, result.stderr
    assert "| all | 1/4 = 25 %" in result.stdout
    other = tmp_path / "more.parquet"
    score.write([FOUND[0], *[replace(case, run_id=f"{case.run_id}-more") for case in FOUND]], other)
    joined = sorl("bench", "diagnose", "--from", path, "--from", other, "--output", tmp_path / "joined.parquet")
    assert "| all | 2/8 = 25 %" in joined.stdout  # the run that is in both files counts once
    assert len(score.read(tmp_path / "joined.parquet")) == 2 * len(FOUND)
    assert "takes no experiment" in sorl("bench", "diagnose", "fault_lab", runs=grid).stderr
    none = sorl("bench", "diagnose", runs=grid)
    assert none.exit_code == 2
    assert "experiments/fault_lab.toml" in none.stderr
    assert sorl("bench", "speed", runs=grid).exit_code == 2
