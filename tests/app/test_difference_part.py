"""What a run differs in from runs that worked, on the screen Run."""

import shutil
from pathlib import Path

from sorl.app.difference_part import TITLE
from tests.app.conftest import Open, Read, Visit
from tests.cli.command import done

PPO = "ppo-s0-aaaa0000"
STOOD = "st-ppo-s1-aaaa0001"


def words(app: Visit) -> str:
    """The text of the screen from the part on."""
    text = " ".join(Read(app.source).text.split())
    return text[text.rindex(TITLE) :]


def test_nothing_is_compared_until_a_run_that_worked_is_chosen(open_screen: Open) -> None:
    app = open_screen("run", run=PPO)
    assert words(app).startswith(f"{TITLE} Choose one run that worked, or several")
    assert PPO not in app.multiselect(key="good").value


def test_a_run_of_the_address_is_compared(open_screen: Open) -> None:
    app = open_screen("run", run=PPO, good=STOOD)
    assert app.multiselect(key="good").value == [STOOD]
    assert "No setting that trains differs, but the bad run alone shows the learning rate" in words(app)
    assert "What would decide:" in words(app)
    assert "Causes that only the bad run shows" in words(app)


def test_a_choice_is_kept_in_the_address(open_screen: Open) -> None:
    app = open_screen("run", run=PPO)
    app.multiselect(key="good").set_value([STOOD]).run()
    assert app.value("good") == STOOD


def test_a_saved_baseline_is_compared_with_alone(open_screen: Open, grid: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(grid, runs)
    done("baseline", "save", "usual", STOOD, runs=runs)
    app = open_screen("run", runs, run=PPO, good="baseline usual")
    assert "Causes that only the bad run shows" in words(app)
    both = open_screen("run", runs, run=PPO, good=["baseline usual", STOOD])
    assert "a saved baseline is compared with alone" in words(both)


def test_a_damaged_baseline_is_a_message(open_screen: Open, grid: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(grid, runs)
    done("baseline", "save", "usual", STOOD, runs=runs)
    (runs / ".baselines" / "usual.json").write_text("{")
    app = open_screen("run", runs, run=PPO, good="baseline usual")
    assert "baseline 'usual' cannot be read" in words(app)
