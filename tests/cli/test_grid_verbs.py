"""`sorl run`, `plan` and `compare` as they are typed, over a scripted trainer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.grid.harness import put_scripted_trainer
from workbench.cli.main import app

Sorl = Callable[..., Result]


def typed(folder: Path, patch: pytest.MonkeyPatch) -> Sorl:
    """Types `sorl ...` in `folder`, where the trainer is the scripted one."""
    put_scripted_trainer(patch)
    patch.chdir(folder)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def sorl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sorl:
    return typed(tmp_path, monkeypatch)


def grid(folder: Path, text: str = "", **scripts: Any) -> Path:
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "script.json").write_text(json.dumps(scripts))
    path = folder / "demo.toml"
    path.write_text(
        'question = "Which of the two arms stays up?"\nseeds = [0, 1]\n[base]\niterations = 3\n'
        f'[axes]\nalgorithm = ["ppo", "st-ppo"]\n{text}'
    )
    return path


FELL = {"row": {"outcome": "collapsed", "collapse_step": 12, "peak_success": 0.6, "final_success": 0.05}}
STOOD = {"row": {"outcome": "healthy", "peak_success": 0.75, "final_success": 0.72}, "grad_norm": 2.5}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where experiment demo was trained, to be looked at only."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        result = typed(folder, patch)("run", grid(folder, **{"ppo": FELL, "st-ppo": STOOD}))
    assert result.exit_code == 0, result.output
    return folder


def test_a_grid_ends_with_its_table_and_an_answer_in_plain_words(sorl: Sorl, tmp_path: Path) -> None:
    result = sorl("run", grid(tmp_path, **{"ppo": FELL, "st-ppo": STOOD}))
    assert result.exit_code == 0, result.output
    header, _, *rows = result.stdout.splitlines()[:4]
    assert header.split("  ")[0] == "arm"
    assert [row.split()[0] for row in rows] == ["ppo", "st-ppo"]
    assert "2/2 [16 %, 100 %]" in rows[0]  # Clopper-Pearson of 2 in 2: 0.025 ** (1 / 2) = 0.158
    assert "0/2 [0 %, 84 %]" in rows[1]
    assert "0.72 [0.72, 0.72]" in rows[1]
    assert "2.50" in rows[1]
    assert "Which of the two arms stays up?" in result.stdout
    assert "Collapsed: ppo in 2 of 2 (onset near step 12). Did not collapse: st-ppo." in result.stdout
    assert "may still do so in up to 84 % of runs" in result.stdout
    assert "finished  ppo" in result.stderr
    assert "finished  ppo" not in result.stdout, "progress is no result"


def test_the_same_command_trains_nothing_twice_and_shows_the_same_table(sorl: Sorl, tmp_path: Path) -> None:
    path = grid(tmp_path, **{"ppo": FELL, "st-ppo": STOOD})
    first = sorl("run", path)
    again = sorl("run", path)
    assert again.stdout == first.stdout
    assert "4 already finished; 0 to run" in again.stderr


def test_changes_on_the_command_line_are_different_runs(sorl: Sorl, tmp_path: Path) -> None:
    path = grid(tmp_path, **{"ppo": FELL, "st-ppo": STOOD})
    sorl("run", path)
    result = sorl("run", path, "--set", "iterations=2", "--set", "seeds=[0]")
    assert "2 cells; 2 to run" in result.stderr
    compared = sorl("compare", "demo")
    assert "ppo #2: iterations = 2" in compared.stdout, "runs with other settings are no replicates"
    assert "different numbers of rollouts" in compared.stdout


@pytest.mark.parametrize("form", ["table", "csv", "md", "latex", "json"])
def test_compare_prints_every_format(trained: Path, sorl: Sorl, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.chdir(trained)
    result = sorl("compare", "demo", "--format", form)
    assert result.exit_code == 0, result.output
    if form == "json":
        rows = json.loads(result.stdout)
        assert [(r["arm"], r["n"], r["collapsed"], r["onset"]) for r in rows] == [
            ("ppo", 2, 2, 12),
            ("st-ppo", 2, 0, None),
        ]
    elif form == "csv":
        assert result.stdout.splitlines()[0].startswith(
            "arm,algorithm,runs,n,judged,recovered,falling,mild,no_learning,peak,peak_low"
        )
        assert len(result.stdout.splitlines()) == 3
    elif form == "latex":
        assert r"2/2 [16 \%, 100 \%] &" in result.stdout
    else:
        assert "2/2 [16 %, 100 %]" in result.stdout


def test_compare_of_an_unknown_experiment_names_the_known_ones(
    trained: Path, sorl: Sorl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    result = sorl("compare", "dema")
    assert result.exit_code == 2
    assert "no experiment 'dema' (did you mean 'demo'?)" in result.stderr


def test_plan_shows_what_differs_and_runs_nothing(sorl: Sorl, tmp_path: Path) -> None:
    path = grid(tmp_path, '[[arms]]\nname = "ppo, twice"\nlearn.epochs = 2\n')
    result = sorl("plan", path)
    assert result.exit_code == 0, result.output
    assert "6 cells (3 arms x 2 seeds)" in result.stdout
    assert "epochs" in result.stdout
    assert "staleness" not in result.stdout, "what all arms share is not shown"
    assert "level=turn" in result.stdout
    assert "different numbers of optimizer updates" in result.stdout
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["script.json"]


def test_plan_counts_finished_cells_and_takes_its_pace_from_recorded_runs(sorl: Sorl, tmp_path: Path) -> None:
    import platform

    versions = json.dumps({"machine": f"{platform.system()} {platform.machine()}"})
    timed = {"row": {"outcome": "healthy", "seconds": 30.0, "versions": versions}}
    path = grid(tmp_path, **{"ppo": timed, "st-ppo": timed})
    assert "no run recorded yet" in sorl("plan", path).stdout
    sorl("run", path)
    assert "4 finished; nothing to run" in sorl("plan", path).stdout
    plan = json.loads(sorl("plan", path, "--set", "seeds=[7]", "--workers", "1", "--format", "json").stdout)
    assert plan["estimate"]["basis"] == "pace of 4 finished runs on this machine"
    assert {cell["status"] for cell in plan["cells"]} == {"queued"}
    # 2 cells of 3 steps at 10 s a step, at most a few seconds to start each, and a warm start that was never made
    assert plan["estimate"]["seconds"] >= 60


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("run", "nothing.toml"), "no grid file nothing.toml"),
        (("plan", "nothing.toml"), "no grid file nothing.toml"),
        (("run", "demo.toml", "--set", "learn.epoch=2"), "did you mean 'learn.epochs'?"),
        (("run", "demo.toml", "--executor", "rya"), "did you mean 'ray'?"),
        (("run", "demo.toml", "--set", 'axes.algorithm=["pp"]'), "unknown algorithm 'pp'"),
        (("run", "demo.toml", "--set", 'axes.algorithm=["grpo"]', "--set", "learn.episodes=12"), "groups of 8"),
        (("run", "demo.toml", "--set", "slots.clip.hihg=0.3"), "did you mean 'high'?"),
        (("plan", "demo.toml", "--format", "yaml"), "--format 'yaml' is unknown"),
        (("compare", "demo", "--format", "jsn"), "did you mean 'json'?"),
        (("algorithms", "grop"), "did you mean 'grpo'?"),
        (("algorithms", "diff", "ppo"), "sorl algorithms diff ppo st-ppo"),
        (("diagnostics", "grad_nrm"), "did you mean 'grad_norm'?"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(
    sorl: Sorl, tmp_path: Path, words: tuple[str, ...], part: str
) -> None:
    grid(tmp_path)
    result = sorl(*words)
    assert result.exit_code == 2, result.output
    assert part in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output
    assert not (tmp_path / "runs" / "demo").exists(), "nothing was started"


def test_algorithms_are_listed_described_and_compared(sorl: Sorl) -> None:
    assert {"ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo"} <= {
        row["algorithm"] for row in json.loads(sorl("algorithms", "--format", "json").stdout)
    }
    assert "level=turn" in sorl("algorithms", "st-ppo").stdout
    diff = json.loads(sorl("algorithms", "diff", "ppo", "turn-ppo", "--format", "json").stdout)
    assert [(row["slot"], row["turn-ppo"]) for row in diff] == [("ratio", "pool level=turn")]
    assert "the same algorithm" in sorl("algorithms", "diff", "st-ppo", "so-ppo").stdout


def test_diagnostics_are_listed_and_described(sorl: Sorl) -> None:
    rows = json.loads(sorl("diagnostics", "--format", "json").stdout)
    assert "grad_norm" in {row["name"] for row in rows}
    assert "formula" in sorl("diagnostics", "grad_norm").stdout


def test_the_modules_of_the_verbs_start_without_torch() -> None:
    import subprocess

    program = (
        "import sys; from workbench.cli.main import app\n"
        "import workbench.cli.run, workbench.cli.plan, workbench.cli.compare\n"
        "import workbench.cli.algorithms, workbench.cli.diagnostics\n"
        "heavy = {'torch', 'transformers', 'pandas', 'duckdb'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
