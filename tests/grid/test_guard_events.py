"""Flagged findings as events of the runs of their arms: once, and withdrawn when they no longer hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.fixture import write_run
from workbench.diagnostics import CATALOGUE
from workbench.grid.cell import Cell
from workbench.grid.guard import Finding, events
from workbench.spec import RunSettings
from workbench.store.reader import Reader
from workbench.store.sync import sync


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def cell(arm: str, seed: int = 0) -> Cell:
    return Cell("demo", arm, "ppo", seed, RunSettings(seed=seed), "0", f"{arm}-s{seed}")


def stored(runs: Path) -> list[tuple[Any, ...]]:
    sync(runs, CATALOGUE)
    return Reader(runs).rows("SELECT run_id, step, kind, severity, message FROM event ORDER BY run_id, kind").rows


def test_flagged_findings_become_events_of_the_runs_of_their_arms_once_and_are_withdrawn(runs: Path) -> None:
    cells = [cell("a"), cell("a", 1), cell("b"), cell("c")]
    for one in cells[:3]:  # c never ran
        write_run(runs, "demo", one.run_id, arm=one.arm, seed=one.seed)
    findings = [
        Finding("idle_ratio", "a and c are one arm", ("a", "c"), flagged=True),
        Finding("compute", "b did more", ("b",)),
    ]
    assert events.write(runs, cells, findings) == 2
    row = (None, "guard_idle_ratio", "warning", "a and c are one arm")
    assert stored(runs) == [("a-s0", *row), ("a-s1", *row)]
    assert events.write(runs, cells, findings) == 0
    changed = [replace(findings[0], message="a and c are still one arm")]
    assert events.write(runs, cells, changed) == 2
    assert [r[4] for r in stored(runs)] == ["a and c are still one arm"] * 2
    assert events.write(runs, cells, []) == 2
    assert stored(runs) == []
    assert events.write(runs, cells, []) == 0
    assert events.write(runs, cells, changed) == 2
    assert len(stored(runs)) == 2


def test_what_a_trainer_sees_itself_is_left_to_it(runs: Path) -> None:
    write_run(runs, "demo", "a-s0", arm="a")
    told = [Finding("stuck_batch", "again", ("a",), flagged=True)]
    assert events.write(runs, [cell("a")], told) == 0
