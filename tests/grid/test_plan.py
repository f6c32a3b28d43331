"""How long a grid takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.grid.config import load
from workbench.grid.plan import START, Needs, estimate, rough
from workbench.spec import RunSettings

PLAIN = Needs(critic=False)
SLOW = 3.0 / rough(RunSettings(), PLAIN)  # three seconds an iteration


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "x.toml"
    file.write_text(
        'question = "How long does it take?"\nseeds = [0, 1, 2]\n[base]\niterations = 10\nlearn.minibatches = 4'
    )
    return file


def test_an_iteration_costs_more_with_a_critic_more_epochs_and_a_larger_network() -> None:
    base, once = RunSettings(), rough(RunSettings(), Needs())
    assert once > rough(base, PLAIN)
    assert rough(base, Needs(second_backward=True)) > once
    assert rough(base, Needs(passes=3.5)) > 2 * once > rough(base, Needs(draws=2.5)) > once
    twice = base.model_copy(update={"learn": base.learn.model_copy(update={"episodes": 128})})
    large = base.model_copy(update={"policy": base.policy.model_copy(update={"layers": 4})})
    assert rough(twice, Needs()) == pytest.approx(2 * once)
    assert rough(large, Needs()) == pytest.approx(2 * once)


def test_recorded_runs_set_the_pace_and_a_missing_warm_start_counts(path: Path) -> None:
    cells = load(path).cells
    found = estimate(cells, lambda _: PLAIN, [SLOW], workers=1)
    assert found.seconds == pytest.approx(3 * (START + 30.0))  # three cells of ten steps at three seconds, one by one
    assert found.recorded == 1
    assert estimate(cells, lambda _: PLAIN, [SLOW], workers=3).seconds == pytest.approx(START + 30.0)
    assert estimate([], lambda _: PLAIN).seconds == 0.0
    without = estimate(cells, lambda _: PLAIN)
    assert without.recorded == 0
    warm = estimate(cells, lambda _: PLAIN, warm_starts=[cells[0].settings])
    assert warm.seconds > without.seconds + 10


@pytest.mark.parametrize(
    ("budget", "training"),
    [("stop.updates=10", 9.0), ("stop.seconds=5.0", 5.0), ("stop.updates=400", 30.0)],  # 4 updates an iteration
)
def test_budgets_bound_the_time_of_a_cell(path: Path, budget: str, training: float) -> None:
    cells = load(path, [budget, "seeds=[0]"]).cells
    assert estimate(cells, lambda _: PLAIN, [SLOW]).seconds == pytest.approx(START + training)
