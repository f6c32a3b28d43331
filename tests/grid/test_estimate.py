from __future__ import annotations

from pathlib import Path

import pytest

from workbench.grid.estimate import START, Recorded, estimate, rough
from workbench.grid.file import load
from workbench.spec import RunSettings


def plain(settings: RunSettings) -> tuple[bool, bool]:
    return False, False


def test_an_iteration_costs_more_with_a_critic_more_epochs_and_a_larger_network() -> None:
    base = RunSettings()
    assert rough(base, critic=True) > rough(base, critic=False)
    assert rough(base, second_backward=True) > rough(base)
    assert rough(base, passes=3.5) > 2 * rough(base) > rough(base, draws=2.5) > rough(base)
    twice = rough(base.model_copy(update={"learn": base.learn.model_copy(update={"episodes": 128})}))
    assert twice == pytest.approx(2 * rough(base))
    assert rough(base.model_copy(update={"policy": base.policy.model_copy(update={"layers": 4})})) == pytest.approx(
        2 * rough(base)
    )


def test_recorded_runs_set_the_pace(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('question = "How long does it take?"\nseeds = [0, 1, 2]\n[base]\niterations = 10')
    cells = load(path).cells
    slow = Recorded(RunSettings(), False, False, seconds_per_step=3.0)
    found = estimate(cells, plain, [slow], workers=1)
    assert found.seconds == pytest.approx(3 * (START + 30.0))  # three cells of ten steps at three seconds, one by one
    assert found.recorded == 1
    assert estimate(cells, plain, [slow], workers=3).seconds == pytest.approx(START + 30.0)
    assert estimate(cells, plain).recorded == 0
    assert estimate([], plain).seconds == 0.0


def test_budgets_bound_the_time_of_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('question = "How long does it take?"\n[base]\niterations = 10\nlearn.minibatches = 4')
    slow = Recorded(RunSettings(), False, False, seconds_per_step=3.0)
    budgets = (
        ("stop.updates=10", 9.0),
        ("stop.seconds=5.0", 5.0),
        ("stop.updates=400", 30.0),
    )  # 4 updates an iteration
    for budget, training in budgets:
        assert estimate(load(path, [budget]).cells, plain, [slow]).seconds == pytest.approx(START + training), budget


def test_a_warm_start_that_must_be_made_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('question = "How long does it take?"')
    cells = load(path).cells
    assert estimate(cells, plain, warm_starts=[cells[0].settings]).seconds > estimate(cells, plain).seconds + 10
