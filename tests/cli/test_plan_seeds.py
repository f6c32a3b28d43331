"""What `sorl plan` says of the seeds that an effect needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.store.fixture import write_experiment, write_status
from workbench.diagnostics import CATALOGUE
from workbench.grid.config import load
from workbench.store.sync import sync

Sorl = Callable[..., Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "demo.toml"
    path.write_text(
        'question = "Which arm stays up?"\nseeds = [0, 1, 2, 3, 4]\n[base]\niterations = 36\n'
        '[axes]\nalgorithm = ["ppo", "st-ppo", "grpo"]\n'
    )
    return path


def record(runs: Path, file: Path, **onsets: list[int | None]) -> None:
    """Runs of the grid's own arms, collapsed at the given steps or up to the end."""
    write_experiment(runs, "demo")
    cells = {(cell.arm, cell.seed): cell for cell in load(file).cells}
    for arm, steps in onsets.items():
        for seed, onset in enumerate(steps):
            cell = cells[arm, seed]
            folder = runs / "demo" / cell.run_id
            folder.mkdir()
            write_status(
                folder, arm=arm, seed=seed, steps=36, config=cell.settings.model_dump_json(), collapse_step=onset,
                outcome="healthy" if onset is None else "collapsed",
            )  # fmt: skip
    sync(runs, CATALOGUE)


def test_without_recorded_runs_the_assumption_is_printed(sorl: Sorl, runs: Path, file: Path) -> None:
    result = sorl("plan", file, runs=runs)
    assert result.exit_code == 0, result.output
    assert (
        "To detect a hazard ratio of 0.2 with 80 % power at alpha .05: 12 collapses, about 12 seeds per arm "
        "(14 to detect it in each of 2 comparisons), if 80 % of the reference arm's runs collapse "
        "(assumed: none is recorded)."
    ) in result.stdout
    assert "The planned 5 seeds per arm detect it with 46 % power" in result.stdout


def test_recorded_runs_of_the_same_arms_replace_the_assumption(sorl: Sorl, runs: Path, file: Path) -> None:
    record(runs, file, **{"ppo": [12, 14, None, None], "st-ppo": [None, None], "grpo": [20, None, None, None]})
    told = json.loads(sorl("plan", file, "--format", "json", runs=runs).stdout)["seeds"]
    assert told["incidence"] == pytest.approx(0.5)  # Kaplan-Meier of the arm that collapsed most: two of four
    assert told["incidence_basis"] == "ppo: 2 of 4 recorded runs"
    assert told["seeds"] == 20  # 12.1205 / (0.5 + 1 - 0.5 ** 0.2) = 19.26
    longer = json.loads(sorl("plan", file, "--set", "iterations=80", "--format", "json", runs=runs).stdout)["seeds"]
    assert longer["incidence_basis"] == "assumed: none is recorded", "runs with other settings are other arms"


def test_an_arm_that_always_collapsed_is_not_taken_to_always_collapse(sorl: Sorl, runs: Path, file: Path) -> None:
    record(runs, file, ppo=[12, 14, 16])
    told = json.loads(sorl("plan", file, "--format", "json", runs=runs).stdout)["seeds"]
    assert told["incidence"] == pytest.approx(3.5 / 4)


def test_runs_that_all_stayed_up_leave_the_assumption_and_are_said(sorl: Sorl, runs: Path, file: Path) -> None:
    record(runs, file, ppo=[None, None], grpo=[None])
    assert "(assumed: none of 3 recorded runs did)" in sorl("plan", file, runs=runs).stdout


def test_effect_power_and_incidence_can_be_given(sorl: Sorl, runs: Path, file: Path) -> None:
    words = ("--hazard-ratio", "0.5", "--power", "0.9", "--incidence", "0.6", "--format", "json")
    told = json.loads(sorl("plan", file, *words, runs=runs).stdout)["seeds"]
    # (1.959964 + 1.281552)^2 / (1/4 log(0.5)^2) = 87.4792; 0.6 + 1 - 0.4 ** 0.5 = 0.967544 a seed
    assert told["collapses"] == pytest.approx(87.479, abs=1e-2)
    assert told["seeds"] == 91
    assert told["incidence_basis"] == "as given"


def test_too_few_seeds_for_any_test_are_told(sorl: Sorl, runs: Path, file: Path) -> None:
    text = sorl("plan", file, "--set", "seeds=[0, 1, 2]", runs=runs).stdout
    assert "With 3 seeds per arm the smallest possible p-value is 0.1." in text
    assert "smallest possible" not in sorl("plan", file, runs=runs).stdout


def test_a_grid_of_one_arm_compares_nothing(sorl: Sorl, runs: Path, file: Path) -> None:
    words = ("plan", file, "--set", 'axes.algorithm=["ppo"]')
    assert "hazard ratio" not in sorl(*words, runs=runs).stdout
    assert json.loads(sorl(*words, "--format", "json", runs=runs).stdout)["seeds"] is None


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--hazard-ratio", "1"), "--hazard-ratio 1 is no effect"),
        (("--hazard-ratio", "-0.2"), "above 0"),
        (("--power", "80"), "--power 80 is not between 0.05 and 1"),
        (("--incidence", "0"), "--incidence 0 is not between 0 and 1"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    sorl: Sorl, runs: Path, file: Path, words: tuple[str, str], part: str
) -> None:
    result = sorl("plan", file, *words, runs=runs)
    assert result.exit_code == 2
    assert part in result.stderr
    assert result.stdout == ""
