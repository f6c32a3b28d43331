"""What a guard is worth: cells with all their starts, equal cost, twins of healthy runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sorl.spec import InputError
from studies.guard import (
    GuardedCell,
    count_all,
    count_arms,
    count_false_rollbacks,
    gather_cells,
    read_cells,
    write_cells,
)
from tests.app.conftest import SMALL
from tests.store.fixture import write_experiment, write_run, write_status

FIRST = "guard-s300-aaaa0000"


def cell(arm: str, seed: int, final: float, **changes: object) -> GuardedCell:
    plain = GuardedCell(
        experiment="guard",
        arm=arm,
        seed=seed,
        outcome="healthy",
        rollbacks=0,
        steps=36,
        tokens=300,
        seconds=30.0,
        tokens_before=[0, 100, 300],
        seconds_before=[0.0, 10.0, 30.0],
        heldout_success=[0.4, 0.5, final],
    )
    return replace(plain, **changes)


def row_of(table: str, arm: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {arm} |")]
    return [part.strip() for part in line.strip("|").split("|")]


def test_an_arm_is_compared_with_the_reference_of_the_same_seed() -> None:
    finals = {300: (0.1, 0.5), 301: (0.6, 0.6), 302: (0.2, 0.6)}
    cells = [cell("ppo", seed, alone) for seed, (alone, _) in finals.items()]
    cells += [
        cell("ppo, guard", seed, guarded, rollbacks=int(guarded != alone))
        for seed, (alone, guarded) in finals.items()
    ]
    row = row_of(count_arms(cells), "ppo, guard")
    assert row[1] == "3"
    assert row[3].startswith("0.27 [")
    assert row[7].startswith("0.40")  # where it rolled back
    assert row[10] == "2 of 3, 2 times"


def test_at_equal_cost_the_last_evaluation_that_was_paid_for_counts() -> None:
    dear = cell("ppo, guard", 300, 0.9, tokens=500, tokens_before=[0, 200, 500], rollbacks=1)
    assert dear.success_at("tokens", 300) == 0.5
    assert dear.success_at("seconds", 30.0) == 0.9
    assert dear.tokens_to_goal() == 500
    assert cell("ppo", 300, 0.5).tokens_to_goal() is None


def test_a_rollback_is_false_where_the_twin_does_not_end_down() -> None:
    outcomes = {310: "healthy", 311: "collapsed", 312: "recovered", 313: "healthy"}
    cells = [cell("on-policy", seed, 0.6, outcome=outcome) for seed, outcome in outcomes.items()]
    cells += [cell("on-policy, guard", seed, 0.6, rollbacks=int(seed != 313)) for seed in outcomes]
    said = count_false_rollbacks(cells)
    assert said.startswith("4 runs with a guard, 3 rolled back. Left alone 3 of them do not end down")
    assert "2/3 = 67 %" in said


def test_cells_are_added_to_a_file_and_a_newer_one_replaces_the_older(tmp_path: Path) -> None:
    file = tmp_path / "cells.parquet"
    write_cells([cell("ppo", 300, 0.1), cell("ppo", 301, 0.2)], file)
    merged = write_cells([cell("ppo", 301, 0.7)], file)
    assert [one.final for one in merged] == [0.1, 0.7]
    assert read_cells(file) == merged


def test_without_a_reference_nothing_can_be_compared() -> None:
    with pytest.raises(InputError, match="no finished run of arm 'ppo'"):
        count_arms([cell("ppo, guard", 300, 0.5)])


def test_seeds_that_were_planned_together_are_counted_together() -> None:
    cells = [cell("ppo", seed, 0.5) for seed in (300, 301, 330, 331)]
    page = count_all(cells)
    tables = page.split("**")
    assert row_of(tables[2], "ppo")[1] == "2"
    assert row_of(tables[6], "ppo")[1] == "4"


def test_all_starts_of_a_cell_are_paid_for(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_experiment(runs, "guard")
    parents = (None, FIRST)
    for generation, (parent, forked_at) in enumerate(zip(parents, (None, 4), strict=True), 1):
        name = FIRST if parent is None else f"{FIRST}-g2"
        folder = write_run(runs, "guard", name, shape=SMALL)
        write_status(
            folder,
            status="finished",
            outcome="collapsed" if parent is None else "healthy",
            config=json.dumps({}),
            parent=parent,
            forked_at=forked_at,
            draw=None if parent is None else 0,
            generation=generation,
        )
    (only,) = gather_cells(runs)
    assert (only.outcome, only.rollbacks, only.steps) == ("healthy", 1, 24)
    assert only.heldout_success[:2] == only.heldout_success[2:]  # both starts were written alike
    assert only.tokens_before == sorted(only.tokens_before)
    assert only.tokens_before[2] == only.tokens // 2
