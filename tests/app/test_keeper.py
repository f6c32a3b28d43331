from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.store.fixture import Shape, write_experiment, write_run, write_status
from workbench.app import keeper
from workbench.app.keeper import Keeper
from workbench.store.connect import writer
from workbench.store.reader import Reader
from workbench.store.sync import SyncReport

SMALL = Shape(steps=4, trajectories=2, turns=2, epochs=1, steps_per_segment=4)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each sync began, in seconds; nothing is really ingested."""
    found: list[float] = []

    def fake(runs: Path, **options: Any) -> SyncReport:
        found.append(time.monotonic())
        return SyncReport()

    monkeypatch.setattr(keeper, "sync", fake)
    monkeypatch.setattr(keeper, "_PERIOD", 0.0)
    return found


def rows(runs: Path) -> int:
    return int(Reader(runs).rows("SELECT count(*) FROM step").rows[0][0])


def test_a_look_ingests_what_a_training_wrote(tmp_path: Path) -> None:
    write_run(tmp_path, "demo", "a", shape=SMALL)
    Keeper(tmp_path).look(30.0)
    assert rows(tmp_path) == 4


def test_a_held_lock_keeps_no_screen_waiting_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_LOCK", 0.05)
    write_run(tmp_path, "demo", "a", shape=SMALL)
    kept = Keeper(tmp_path)
    with writer(tmp_path, 1.0):
        began = time.monotonic()
        kept.look(0.0)
        assert time.monotonic() - began < 1
        kept.look(30.0)
        assert "not up to date" in kept.notes[0]
    kept.look(30.0)
    assert (kept.notes, rows(tmp_path)) == ([], 4)


def test_nothing_new_on_disk_costs_no_sync(tmp_path: Path, calls: list[float]) -> None:
    write_run(tmp_path, "demo", "a", shape=SMALL)
    kept = Keeper(tmp_path)
    for _ in range(20):
        kept.look(30.0)
    assert len(calls) == 1


def test_every_kind_of_new_segment_is_noticed(tmp_path: Path, calls: list[float]) -> None:
    run = write_run(tmp_path, "demo", "a", shape=SMALL)
    kept = Keeper(tmp_path)
    kept.look(30.0)
    for number, news in enumerate(
        [
            lambda: write_status(run, status="finished"),
            lambda: write_experiment(tmp_path, "demo"),
            lambda: write_run(tmp_path, "demo", "b", shape=SMALL),
            lambda: (tmp_path / "other" / "c").mkdir(parents=True),
        ],
        start=2,
    ):
        news()
        kept.look(30.0)
        assert len(calls) == number


def test_what_moves_no_folder_is_looked_for_now_and_then(
    tmp_path: Path, calls: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_ANYWAY", 0.0)
    monkeypatch.setattr(keeper, "_PAUSES", 0)
    kept = Keeper(tmp_path)
    for _ in range(3):
        kept.look(30.0)
    assert len(calls) == 3


def test_looks_leave_a_pause_between_them(tmp_path: Path, calls: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_PERIOD", 0.3)
    monkeypatch.setattr(keeper, "_ANYWAY", 0.0)
    monkeypatch.setattr(keeper, "_PAUSES", 0)
    kept = Keeper(tmp_path)
    kept.look(30.0)
    kept.look(30.0)
    assert calls[1] - calls[0] >= 0.29


def test_a_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    kept = Keeper(tmp_path / "nowhere")
    kept.look(30.0)
    assert "no runs folder" in kept.notes[0]
