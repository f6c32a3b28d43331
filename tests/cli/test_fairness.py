"""What the fair-comparison guard makes `sorl plan` and `sorl compare` say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.grid.harness import put_scripted_trainer
from tests.store.fixture import START, Shape, write_experiment, write_run, write_segment, write_status
from workbench.spec import RunSettings

Sorl = Callable[..., Any]
SHAPE = Shape(steps=30, trajectories=2, turns=2, epochs=1)


def grid(folder: Path, text: str) -> Path:
    path = folder / "demo.toml"
    path.write_text(f'question = "Which of the arms stays up?"\n{text}')
    return path


IDLE = '[base.learn]\nepochs = 1\nminibatches = 1\n[axes]\n"slots.clip.high" = [0.2, 0.4]\n'


def test_plan_warns_of_a_violation_before_it_notes_a_difference(sorl: Sorl, tmp_path: Path) -> None:
    text = IDLE + '[[arms]]\nname = "reused"\nlearn.epochs = 4\n'
    result = sorl("plan", grid(tmp_path, text), runs=tmp_path)
    assert result.exit_code == 0, result.output
    assert "Warning: ppo · clip.high 0.2 and ppo · clip.high 0.4 are one arm under 2 names" in result.stdout
    assert result.stdout.index("Warning: ") < result.stdout.index("Note: the arms had different numbers of optimizer")
    told = json.loads(sorl("plan", grid(tmp_path, text), "--format", "json", runs=tmp_path).stdout)["guard"]
    assert [(f["check"], f["severity"]) for f in told] == [("idle_ratio", "warning"), ("compute", "info")]
    assert told[0]["arms"] == ["ppo · clip.high 0.2", "ppo · clip.high 0.4"]


def test_plan_of_a_fair_grid_says_nothing(sorl: Sorl, tmp_path: Path) -> None:
    result = sorl("plan", grid(tmp_path, '[axes]\nalgorithm = ["ppo", "turn-ppo"]\n'), runs=tmp_path)
    assert "Warning" not in result.stdout
    assert "Note" not in result.stdout


def two_arms(runs: Path) -> None:
    write_experiment(runs, "demo")
    for arm, seed in (("ppo", 0), ("st-ppo", 0)):
        folder = write_run(runs, "demo", f"{arm}-s{seed}", shape=SHAPE, algorithm=arm, seed=seed)
        settings = RunSettings(algorithm=arm, iterations=SHAPE.steps)
        write_status(folder, algorithm=arm, arm=arm, config=settings.model_dump_json(), steps=SHAPE.steps)


def test_compare_of_sound_runs_has_no_warning(sorl: Sorl, runs: Path) -> None:
    two_arms(runs)
    result = sorl("compare", "demo", runs=runs)
    assert result.exit_code == 0, result.output
    assert "Warning" not in result.stdout


def test_compare_warns_of_questions_that_differ_and_of_what_a_trainer_flagged(sorl: Sorl, runs: Path) -> None:
    two_arms(runs)
    lost = {"run_id": ["ppo-s0"], "step": [SHAPE.steps], "questions_hash": [1], "written_at": [START]}
    other = {"run_id": ["st-ppo-s0"], "step": [SHAPE.steps], "questions_hash": [2], "written_at": [START]}
    for name, rows in (("ppo-s0", lost), ("st-ppo-s0", other)):
        write_segment(runs / "demo" / name, "step", rows)
    event = {
        "run_id": "st-ppo-s0", "step": 3, "kind": "guard_token_identity", "severity": "critical", "diagnostic": "",
        "message": "row 5\x1b[2J\nNote: all is well", "written_at": START,
    }  # fmt: skip
    write_segment(runs / "demo" / "st-ppo-s0", "event", {k: [v] for k, v in event.items()})
    for form in ("table", "md"):
        result = sorl("compare", "demo", "--format", form, runs=runs)
        assert result.exit_code == 0, result.output
        seen = f"with seed 0, from step {SHAPE.steps} on"
        assert f"Warning: ppo and st-ppo trained on different questions {seen}." in result.stdout
        assert "Warning: st-ppo, seed 0, step 3: row 5\\u001b[2J\\nNote: all is well." in result.stdout, (
            "one line, no controls"
        )
    bare = sorl("compare", "demo", "--format", "csv", runs=runs)
    assert "Warning" not in bare.stdout


def test_compare_of_runs_with_settings_of_another_version_says_that_it_cannot_check(sorl: Sorl, runs: Path) -> None:
    two_arms(runs)
    folder = runs / "demo" / "ppo-s0"
    write_status(folder, algorithm="ppo", arm="ppo", config='{"learn": {"gone": 1}}', steps=SHAPE.steps)
    result = sorl("compare", "demo", runs=runs)
    assert result.exit_code == 0, result.output
    assert "settings of another version of sorl" in result.stdout


def test_compare_of_runs_without_settings_has_nothing_to_check(sorl: Sorl, runs: Path) -> None:
    two_arms(runs)
    for arm in ("ppo", "st-ppo"):
        write_status(runs / "demo" / f"{arm}-s0", algorithm=arm, arm=arm, config=None, steps=SHAPE.steps)
    result = sorl("compare", "demo", runs=runs)
    assert result.exit_code == 0, result.output
    assert "Warning" not in result.stdout
    assert "Note" not in result.stdout


def test_run_warns_before_it_trains_and_leaves_the_violation_as_an_event_of_its_runs(
    sorl: Sorl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_scripted_trainer(monkeypatch)
    runs, path = tmp_path / "runs", grid(tmp_path, f"[base]\niterations = 2\n{IDLE}")
    warning = "Warning: ppo · clip.high 0.2 and ppo · clip.high 0.4 are one arm under 2 names"
    for attempt in ("first", "again"):
        result = sorl("run", path, "--workers", "2", runs=runs)
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith(warning), attempt
        assert warning in result.stdout
    found = sorl("sql", "SELECT run_id, kind, severity, step FROM event ORDER BY 1", "--format", "json", runs=runs)
    rows = json.loads(found.stdout)
    assert [(row["kind"], row["severity"], row["step"]) for row in rows] == [("guard_idle_ratio", "warning", None)] * 2
    assert "one arm under 2 names" in sorl("show", rows[0]["run_id"], runs=runs).stdout
    again = sorl("rescan", runs=runs)
    assert again.exit_code == 0, again.output
    assert "withdrawn" not in again.stdout, "rules over recorded columns have no say in it"
    files = len(list(runs.glob("demo/*/segments/event/*.parquet")))
    assert files == 2, "the same finding is not written twice"
