"""`sorl plan`: what differs, how long it takes, and the seeds that an effect needs."""

import json
import platform
import shutil
from pathlib import Path

import pytest

from sorl.grid.config import load
from sorl.store.sync import sync
from tests.cli import command
from tests.cli.command import IDLE, STEPS, done, grid_file, refused, told
from tests.store.fixture import write_experiment


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "demo.toml"
    text = (
        f'question = "Which arm stays up?"\nseeds = [0, 1, 2, 3, 4]\n[base]\niterations = {STEPS}\n[axes]\n'
    )
    path.write_text(text + 'algorithm = ["ppo", "st-ppo", "grpo"]\n')
    return path


def record(runs: Path, file: Path, **onsets: list[int | None]) -> None:
    """Write runs of the grid's own arms, collapsed at the given steps or up to the end."""
    write_experiment(runs, "demo")
    cells = {(cell.arm, cell.seed): cell for cell in load(file).cells}
    for arm, steps in onsets.items():
        for seed, onset in enumerate(steps):
            cell = cells[arm, seed]
            outcome = "healthy" if onset is None else "collapsed"
            told = {"config": cell.settings.model_dump_json(), "collapse_step": onset, "outcome": outcome}
            command.record(runs, arm, seed, cell.run_id, **told)
    sync(runs)


def test_what_differs_is_shown_and_nothing_runs(here):
    path = grid_file(here, more='[[arms]]\nname = "ppo, twice"\nlearn.epochs = 2\n')
    text = done("plan", path).stdout
    for words in (
        "6 cells (3 arms x 2 seeds)",
        "epochs",
        "level=turn",
        "different numbers of optimizer updates",
    ):
        assert words in text
    assert "staleness" not in text, "what all arms share is not shown"
    assert sorted(p.name for p in (here / "runs").iterdir()) == ["script.json"]


def test_finished_cells_are_counted_and_recorded_runs_give_the_pace(here):
    versions = json.dumps({"machine": f"{platform.system()} {platform.machine()}"})
    timed = {"row": {"outcome": "healthy", "seconds": 30.0, "versions": versions}}
    path = grid_file(here, **{"ppo": timed, "st-ppo": timed})
    assert "no run recorded yet" in done("plan", path).stdout
    done("run", path)
    assert "4 finished; nothing to run" in done("plan", path).stdout
    plan = told("plan", path, "--set", "seeds=[7]", "--workers", "1")
    assert plan["estimate"]["basis"] == "pace of 4 finished runs on this machine"
    assert {cell["status"] for cell in plan["cells"]} == {"queued"}
    # 2 cells of 3 steps at 10 s a step, at most a few seconds to start each, and a warm start that was never
    # made
    assert plan["estimate"]["seconds"] >= 60


@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.usefixtures("here")
def test_a_grid_whose_cells_all_wait_for_other_runs_says_for_which(tmp_path, verb):
    more = '[[arms]]\nname = "followed"\nmatch = "other/ppo"\n'
    path = grid_file(tmp_path, more=more)
    waits = "can be trained yet: 'followed' seed 0 waits for other/ppo seed 0"
    answer = refused(waits, verb, path, "--arm", "followed")
    assert "train it with `sorl run experiments/other.toml` (and 1 more wait)" in answer.stderr


def test_a_violation_stands_before_a_difference(tmp_path):
    path = tmp_path / "demo.toml"
    path.write_text(
        f'question = "Which of the arms stays up?"\n{IDLE}[[arms]]\nname = "reused"\nlearn.epochs = 4\n'
    )
    text = done("plan", path, runs=tmp_path).stdout
    assert "Warning: ppo · clip.high 0.2 and ppo · clip.high 0.4 are one arm under 2 names" in text
    assert text.index("Warning: ") < text.index("Note: the arms had different numbers of optimizer")
    guard = told("plan", path, runs=tmp_path)["guard"]
    assert [(f["check"], f["severity"]) for f in guard] == [("idle_ratio", "warning"), ("compute", "info")]
    assert guard[0]["arms"] == ["ppo · clip.high 0.2", "ppo · clip.high 0.4"]


def test_without_recorded_runs_the_assumption_is_printed_and_too_few_seeds_told(runs, file):
    (runs / "demo").mkdir()
    done("sync", runs=runs)  # a database without runs is no obstacle
    text = done("plan", file, runs=runs).stdout
    assert not [word for word in ("Warning", "smallest possible") if word in text]
    few = done("plan", file, "--set", "seeds=[0, 1, 2]", runs=runs).stdout
    assert "With 3 seeds per arm the smallest possible p-value is 0.1." in few
    alone = ("plan", file, "--set", 'axes.algorithm=["ppo"]')
    assert "hazard ratio" not in done(*alone, runs=runs).stdout
    assert told(*alone, runs=runs)["seeds"] is None
    needed = (
        "To detect a hazard ratio of 0.2 with 80 % power at alpha .05: 12 collapses, about 12 seeds per arm"
        " (14 to "
    )
    needed += (
        "detect it in each of 2 comparisons), if 80 % of the reference arm's runs collapse (assumed: none is"
        " recorded)."
    )
    assert needed in text
    assert "The planned 5 seeds per arm detect it with 46 % power" in text


def test_recorded_runs_of_the_same_arms_replace_the_assumption(runs, file):
    record(
        runs, file, **{"ppo": [12, 14, None, None], "st-ppo": [None, None], "grpo": [20, None, None, None]}
    )
    seeds = told("plan", file, runs=runs)["seeds"]
    # Kaplan-Meier of the arm that collapsed most: two of four
    assert seeds["incidence"] == pytest.approx(0.5)
    assert seeds["incidence_basis"] == "ppo: 2 of 4 recorded runs"
    assert seeds["seeds"] == 20  # 12.1205 / (0.5 + 1 - 0.5 ** 0.2) = 19.26
    longer = told("plan", file, "--set", "iterations=80", runs=runs)["seeds"]
    assert longer["incidence_basis"] == "assumed: none is recorded", "runs with other settings are other arms"


def test_runs_that_all_stayed_up_or_all_fell_are_not_taken_to_always_do_so_and_effects_can_be_given(
    runs, file
):
    record(runs, file, grpo=[None], ppo=[None, None])
    assert "(assumed: none of 3 recorded runs did)" in done("plan", file, runs=runs).stdout
    shutil.rmtree(runs / "demo")
    (runs / "sorl.duckdb").unlink()
    record(runs, file, ppo=[12, 14, 16])
    assert told("plan", file, runs=runs)["seeds"]["incidence"] == pytest.approx(3.5 / 4)
    words = ("--hazard-ratio", "0.5", "--power", "0.9", "--incidence", "0.6")
    seeds = told("plan", file, *words, runs=runs)["seeds"]
    # (1.959964 + 1.281552)^2 / (1/4 log(0.5)^2) = 87.4792; 0.6 + 1 - 0.4 ** 0.5 = 0.967544 a seed
    assert seeds["collapses"] == pytest.approx(87.479, abs=1e-2)
    assert (seeds["seeds"], seeds["incidence_basis"]) == (91, "as given")
