"""The command `sorl` in this process, and runs for it to look at."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sorl.cli.main import app
from sorl.spec import RunSettings
from tests.store.fixture import write_status

FELL = {"row": {"outcome": "collapsed", "collapse_step": 12, "peak_success": 0.6, "final_success": 0.05}}
STOOD = {"row": {"outcome": "healthy", "peak_success": 0.75, "final_success": 0.72}, "grad_norm": 2.5}
ONE_FALLS = {"ppo": FELL, "st-ppo": STOOD}
STEPS = 36
# Of a grid file: every ratio is 1, so no clip does anything.
IDLE = '[base.learn]\nepochs = 1\nminibatches = 1\n[axes]\n"slots.clip.high" = [0.2, 0.4]\n'


def sorl(*words: object, runs: Path | None = None) -> Result:
    """Call `sorl WORDS --runs RUNS`."""
    more = [] if runs is None else ["--runs", str(runs)]
    return CliRunner().invoke(app, [*map(str, words), *more], prog_name="sorl")


def done(*words: object, runs: Path | None = None) -> Result:
    """Call it, expect success."""
    result = sorl(*words, runs=runs)
    assert result.exit_code == 0, result.output
    return result


def told(*words: object, runs: Path | None = None) -> Any:
    """Return what it prints as JSON."""
    text = done(*words, "--format", "json", runs=runs).stdout
    return json.loads(text, parse_constant=pytest.fail)


def refused(says: str, *words: object, runs: Path | None = None) -> Result:
    """Expect one message that says so, exit code 2 and nothing on stdout."""
    result = sorl(*words, runs=runs)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    return result


def grid_file(
    folder: Path, base: str = "iterations = 3", more: str = "", seeds: str = "[0, 1]", **does: Any
) -> Path:
    """Write demo.toml with arms ppo and st-ppo, and what the scripted trainer does in each."""
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "script.json").write_text(json.dumps(does))
    path = folder / "demo.toml"
    question = 'question = "Which of the two arms stays up?"'
    path.write_text(
        f'{question}\nseeds = {seeds}\n[base]\n{base}\n[axes]\nalgorithm = ["ppo", "st-ppo"]\n{more}'
    )
    return path


def record(runs: Path, arm: str, seed: int, name: str = "", steps: int = STEPS, **columns: Any) -> Path:
    """Write the row of a run: finished and healthy after 36 of 36 steps unless `columns` differ."""
    folder = runs / "demo" / (name or f"{arm[:1]}{len(arm)}-s{seed}")
    folder.mkdir(parents=True)
    config = RunSettings(iterations=STEPS, seed=seed).model_dump_json()
    row = {"arm": arm, "seed": seed, "steps": steps, "config": config, "final_success": 0.7 + 0.01 * seed}
    write_status(folder, **(row | columns))
    return folder


def fell(runs: Path, arm: str, seed: int, onset: int, **columns: Any) -> None:
    """Write the row of a run that collapsed."""
    record(runs, arm, seed, outcome="collapsed", collapse_step=onset, final_success=0.05, **columns)
