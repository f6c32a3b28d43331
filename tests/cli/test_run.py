"""`sorl run` over the scripted trainer: bad ends and their causes, edits, starting over; `ls` and `show` of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.grid.harness import put_scripted_trainer
from workbench.cli.main import app

Sorl = Callable[..., Result]
FELL = {"row": {"outcome": "collapsed", "collapse_step": 12, "peak_success": 0.6, "final_success": 0.05}}
STOOD = {"row": {"outcome": "healthy", "peak_success": 0.75, "final_success": 0.72}, "grad_norm": 2.5}


@pytest.fixture
def sorl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sorl:
    """Types `sorl ...` in a folder of its own, where the trainer is the scripted one."""
    put_scripted_trainer(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def grid(folder: Path, text: str = "iterations = 3", seeds: str = "[0, 1]", **scripts: Any) -> Path:
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / "script.json").write_text(json.dumps(scripts))
    path = folder / "demo.toml"
    path.write_text(
        f'question = "Which of the two arms stays up?"\nseeds = {seeds}\n[base]\n{text}\n'
        '[axes]\nalgorithm = ["ppo", "st-ppo"]\n'
    )
    return path


def table_after(output: str, title: str) -> list[list[str]]:
    """The lines of the table that stands under `title`, split at two spaces."""
    lines = output.split(f"\n{title}\n", 1)[1].split("\n\n")[0].splitlines()
    return [[part.strip() for part in line.split("  ") if part.strip()] for line in lines if line]


def test_cells_that_ended_badly_are_named_with_their_causes_and_the_exit_code_says_so(
    sorl: Sorl, tmp_path: Path
) -> None:
    path = grid(tmp_path, seeds="[0]", **{"ppo": {"fail_at": 2}, "st-ppo": {"nan_at": 2}})
    result = sorl("run", path)
    assert result.exit_code == 1
    rows = table_after(result.stdout, "Ended badly")[2:]
    assert rows == [
        ["ppo", "0", "failed", "RuntimeError: scripted failure"],
        ["st-ppo", "0", "diverged", "loss or gradient is not finite in step 1"],
    ]
    assert "retry 1 of 1: ppo seed 0: RuntimeError: scripted failure" in result.stderr
    assert result.stderr.count("console.log, or `sorl show ") == 2
    assert "ppo 0 of 1" in result.stdout, "the answer says what it does not rest on"
    again = sorl("run", path)
    assert ["st-ppo", "0", "diverged", "loss or gradient is not finite in step 1"] in table_after(
        again.stdout, "Ended badly"
    ), "also when it ended before this call"


def test_a_grid_without_a_bad_end_says_nothing_of_it(sorl: Sorl, tmp_path: Path) -> None:
    result = sorl("run", grid(tmp_path, **{"ppo": FELL, "st-ppo": STOOD}))
    assert result.exit_code == 0
    assert "Ended badly" not in result.stdout


def test_a_cell_over_its_memory_or_without_a_sign_of_life_is_named(sorl: Sorl, tmp_path: Path) -> None:
    path = grid(tmp_path, seeds="[0]", **{"ppo": {"grow_at": 2}, "st-ppo": {"hang_at": 2}})
    result = sorl("run", path, "--memory", "0.3", "--hang-seconds", "3", "--retries", "0", "--workers", "2")
    assert result.exit_code == 1
    causes = {row[0]: row[2:] for row in table_after(result.stdout, "Ended badly")[2:]}
    assert causes["ppo"][0] == "out of memory"
    assert "over the limit of 0.3 GiB a cell (--memory)" in causes["ppo"][1]
    assert causes["st-ppo"][0] == "hang"
    assert "in step 1, in wait_for_an_answer_that_never_comes" in causes["st-ppo"][1]
    shown = sorl("show", "st-ppo")
    assert "status          failed" in shown.stdout
    assert "reason          hang: no sign of life for" in shown.stdout
    assert "Events: 1" in shown.stdout
    assert "wait_for_an_answer_that_never_comes" in shown.stdout.split("End of ")[1]


def test_an_edited_cell_is_announced_with_the_key_that_changed(sorl: Sorl, tmp_path: Path) -> None:
    sorl("run", grid(tmp_path, **{"ppo": FELL, "st-ppo": STOOD}))
    path = grid(tmp_path, "iterations = 3\nlearn.policy.lr = 0.1", **{"ppo": FELL, "st-ppo": STOOD})
    plan = sorl("plan", path).stdout
    assert "Edited: ppo seeds 0, 1; st-ppo seeds 0, 1 ran before with learn.policy.lr = 0.15, now 0.1;" in plan
    assert "4 cells (2 arms x 2 seeds); about" in plan
    result = sorl("run", path)
    assert (
        "ppo seeds 0, 1; st-ppo seeds 0, 1 ran before with learn.policy.lr = 0.15, now 0.1: new cells" in result.stderr
    )
    assert "4 to run" in result.stderr


def test_fresh_starts_over_and_the_tables_show_the_newest_start_only(sorl: Sorl, tmp_path: Path) -> None:
    path = grid(tmp_path, **{"ppo": FELL, "st-ppo": STOOD})
    first = sorl("run", path)
    assert "Collapsed: ppo in 2 of 2" in first.stdout
    grid(tmp_path, **{"ppo": STOOD, "st-ppo": STOOD})
    result = sorl("run", path, "--fresh")
    assert result.exit_code == 0, result.output
    assert "No arm collapsed (4 runs)." in result.stdout
    assert "No arm collapsed (4 runs)." in sorl("compare", "demo").stdout
    assert sorl("run", path).stdout == result.stdout, "the plain command stays with the newest start"
    csv = ("--format", "csv")
    assert sorl("sql", "SELECT generation, count(*) FROM run GROUP BY ALL ORDER BY 1", *csv).stdout.split()[1:] == [
        "1,4",
        "2,4",
    ]
    seeds = sorl("sql", "SELECT arm, seeds, n, collapsed FROM compare ORDER BY arm", *csv).stdout.split()
    assert seeds[1:] == ["ppo,2,2,0", "st-ppo,2,2,0"]
    assert sorl("sql", "SELECT max(n) FROM seed_band", *csv).stdout.split()[1:] == ["2"]
    listed, everything = sorl("ls", "demo").stdout, sorl("ls", "demo", "--all").stdout
    assert listed.startswith("demo: 4 runs, 4 finished\n")
    assert everything.startswith("demo: 8 runs, 8 finished, 2 collapsed\n")
    assert listed.count("-g2") == everything.count("-g2") == 4
    shown = sorl("show", "ppo-s0").stdout
    assert shown.splitlines()[0].endswith("-g2"), "of one cell's starts the newest is meant"
    assert "generation      2" in shown
    old = shown.splitlines()[0].removesuffix("-g2")
    assert sorl("show", old).stdout.splitlines()[0] == old


def test_the_plan_counts_what_the_newest_start_has_left(sorl: Sorl, tmp_path: Path) -> None:
    path = grid(tmp_path, **{"ppo": STOOD, "st-ppo": STOOD})
    sorl("run", path)
    grid(tmp_path, **{"ppo": {"fail_at": 1}, "st-ppo": STOOD})
    assert sorl("run", path, "--fresh", "--retries", "0").exit_code == 1
    assert "4 cells (2 arms x 2 seeds), 2 finished; about" in sorl("plan", path).stdout


def test_a_retried_cell_shows_its_attempts_and_what_happened_between_them(sorl: Sorl, tmp_path: Path) -> None:
    path = grid(tmp_path, seeds="[0]", **{"ppo": {"fail_at": 3, "times": 1}, "st-ppo": STOOD})
    assert sorl("run", path).exit_code == 0
    shown = sorl("show", "ppo-s0").stdout
    assert "attempt         2" in shown
    assert "attempt 2 starts from the checkpoint after 2 steps; before it: RuntimeError: scripted failure" in shown
    rescan = sorl("rescan", "demo")
    assert "withdrawn" not in rescan.stdout, "what happened to a process is not a rule's to judge again"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--memory", "0"), "--memory 0 is no size; write GiB, for example --memory 4"),
        (("--memory", "-1"), "--memory -1 is no size"),
        (("--memory", "inf"), "--memory inf is no size"),
        (("--retries", "-1"), "Invalid value for '--retries'"),
        (("--hang-seconds", "-3"), "Invalid value for '--hang-seconds'"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_before_anything_starts(
    sorl: Sorl, tmp_path: Path, words: tuple[str, ...], part: str
) -> None:
    result = sorl("run", grid(tmp_path), *words)
    assert result.exit_code == 2
    assert part in result.stderr
    assert not (tmp_path / "runs" / "demo").exists()
