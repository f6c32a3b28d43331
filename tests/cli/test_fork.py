"""`sorl fork`: arms against unchanged children within parents, and one clear line for what cannot be forked."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.command import sorl
from tests.learn.tiny import merged, train
from workbench.algorithms import resolve
from workbench.analysis import forks
from workbench.cli.fork import ARMS, allowed, arm
from workbench.grid.cell import expand
from workbench.learn.checkpoint import checkpoints
from workbench.spec import RunSettings


@pytest.fixture
def parent(new_run, cache):
    """A trained run in a runs folder of its own, with a checkpoint every second step."""
    folder = new_run(iterations=6, record={"ladder": 2})
    assert train(folder, cache) == 0
    return folder


def test_a_run_is_forked_planned_and_compared_with_unchanged_children(parent):
    runs = parent.parent.parent
    given_arms = ["--arm", "grad-clip", "--arm", "learn.epochs=1", "--draws", "2", "--steps", "2"]
    planned = sorl("fork", parent.name, "--at", "3", *given_arms, "--plan", runs=runs)
    assert planned.exit_code == 0, planned.output
    assert "Power: with 2 draws" in planned.output
    assert not list(runs.glob("fork-*"))
    done = sorl("fork", parent.name, "--at", "3", *given_arms, runs=runs)
    assert done.exit_code == 0, done.output
    assert f"Forks of {parent.name} at step 2" in done.output
    for name in ("unchanged", "grad-clip", "learn.epochs=1"):
        assert name in done.output
    assert "no change can be seen to save it" in done.output
    again = sorl("fork", parent.name, "--at", "3", *given_arms, "--format", "json", runs=runs)
    assert '"2/2"' not in again.output
    assert "already finished" in again.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--at", "onset-8"), "did not fall: name a step"),
        (("--at", "1"), "no checkpoint at or before step 1 .* nearest is --at 2"),
        (("--at", "soon"), "neither a step nor onset-N"),
        (("--at", "4", "--arm", "grad-clp"), "no arm 'grad-clp' .did you mean 'grad-clip'"),
        (("--at", "4", "--arm", "world.entities=9"), "cannot change in the middle of a run"),
        (("--at", "4", "--arm", "algorithm='grpo'"), "has other critic than the parent"),
        (("--at", "4", "--arms", "nowhere.toml"), "cannot read --arms"),
    ],
)
def test_what_cannot_be_forked_is_said_in_a_line_and_nothing_is_written(parent, options, said):
    runs = parent.parent.parent
    result = sorl("fork", parent.name, *options, runs=runs)
    assert result.exit_code == 2
    assert re.search(said, " ".join(result.output.split())), result.output
    assert not list(runs.glob("fork-*"))
    assert len(checkpoints(parent / "ladder")) == 3


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_every_arm_with_a_name_is_a_setting_that_a_run_has(algorithm):
    settings = RunSettings(algorithm=algorithm)
    for name in ARMS:
        (changes,) = arm(name, settings).values()
        allowed(name, changes, settings)
        table = expand(changes, name)
        RunSettings.model_validate(merged(settings.model_dump(), table))
        resolve(algorithm, table.get("slots"))


def family(draws, *, saves, parents=3):
    def falls(name, draw):
        return name == "unchanged" or (name == "no help" and draw % 2 == 0) or (name == "cure" and draw < saves)

    rows = [
        (f"p{parent}", name, draw, falls(name, draw))
        for parent in range(parents) for name in ("unchanged", "cure", "no help") for draw in range(draws)
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["parent", "arm", "draw", "down"])
    return frame.assign(final_success=np.where(frame["down"], 0.0, 0.5), forked_at=4)


def test_a_change_that_saves_children_is_told_from_one_that_does_not():
    found = {row["arm"]: row for row in forks.effects(family(8, saves=0), "unchanged")}
    assert found["cure"]["saves"] == 1.0
    assert found["cure"]["holm"] < 0.001
    assert found["unchanged"]["p"] is None
    assert forks.sentence(family(8, saves=0), "unchanged").startswith(
        "Unchanged, 24 of 24 are down. cure saves: 0 of 24."
    )
    assert "Undecided at this number of draws: cure (0 of 1)" in forks.sentence(
        family(1, saves=0, parents=1), "unchanged"
    )


def test_the_pooled_difference_is_that_of_the_textbook():
    # Two strata by hand: RD = (sum (a m - b n) / N) / (sum n m / N).
    difference, error = forks.mantel_haenszel([(2, 10, 5, 10), (1, 4, 3, 8)])
    expected = ((2 * 10 - 5 * 10) / 20 + (1 * 8 - 3 * 4) / 12) / (100 / 20 + 32 / 12)
    assert difference == pytest.approx(expected)
    assert 0 < error < 0.5


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4))
def test_the_permutation_is_symmetric_and_certain_of_nothing_without_a_difference(counts):
    there, back = ([(a, 4, b, 4) for a, b in counts], [(b, 4, a, 4) for a, b in counts])
    assert forks.permutation_p(there) == pytest.approx(forks.permutation_p(back), abs=0.02)
    assert forks.permutation_p([(a, 4, a, 4) for a, _ in counts]) == 1.0
