"""The sync behind the app: it delays no screen, and brings in what has come."""

import time
from pathlib import Path

from sorl.app import sync as module
from sorl.app.sync import BackgroundSync
from sorl.store.connect import writer
from sorl.store.reader import Reader
from sorl.store.sync import SyncReport
from tests.app.conftest import SMALL, Patch
from tests.store.fixture import write_experiment, write_run, write_status


def test_a_held_lock_delays_no_screen_and_the_next_look_syncs(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "_LOCK", 0.05)
    write_run(tmp_path, "demo", "a", shape=SMALL)
    syncing = BackgroundSync(tmp_path)
    with writer(tmp_path, 1.0):
        began = time.monotonic()
        syncing.look(0.0)
        assert time.monotonic() - began < 1
        syncing.look(30.0)
        assert "not up to date" in syncing.notes[0]
    syncing.look(30.0)
    assert syncing.notes == []
    assert Reader(tmp_path).rows("SELECT count(*) FROM step").rows[0][0] == 12


def test_nothing_new_costs_no_sync_and_every_new_segment_is_noticed(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(module, "sync", lambda runs, **_: calls.append(runs) or SyncReport())
    monkeypatch.setattr(module, "_PERIOD", 0.0)
    run = write_run(tmp_path, "demo", "a", shape=SMALL)
    syncing = BackgroundSync(tmp_path)
    for _ in range(20):
        syncing.look(30.0)
    assert len(calls) == 1
    for number, write in enumerate(
        (
            lambda: write_status(run, status="finished"),
            lambda: write_experiment(tmp_path, "demo"),
            lambda: write_run(tmp_path, "demo", "b", shape=SMALL),
            lambda: (tmp_path / "other" / "c").mkdir(parents=True),
        )
    ):
        write()
        syncing.look(30.0)
        assert len(calls) == number + 2


def test_a_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    syncing = BackgroundSync(tmp_path / "nowhere")
    syncing.look(30.0)
    assert "no runs folder" in syncing.notes[0]
