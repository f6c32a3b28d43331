from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.store.fixture import Shape, write_run, write_status
from tests.store.processes import HOLD, python
from workbench.cli import doctor
from workbench.store.sync import sync


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch takes seconds and says nothing about these checks."""
    monkeypatch.setattr(doctor, "accelerator", lambda: iter(()))


def lines(result: Any, state: str) -> list[str]:
    return [line for line in result.stdout.splitlines() if line.startswith(state)]


def test_a_healthy_place_has_nothing_to_fix(sorl: Any, runs: Path, small: Shape) -> None:
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    result = sorl("doctor", runs=runs)
    assert result.exit_code == 0
    assert lines(result, "fail") == []
    for words in (
        "duckdb",
        "cores",
        "GB free",
        "can be written",
        "1 runs in 1 experiments",
        "no corrupt segments",
        "no stale runs",
    ):
        assert any(words in line for line in lines(result, "ok")), words


def test_a_place_where_nothing_ran_yet_is_no_failure(sorl: Any, tmp_path: Path) -> None:
    result = sorl("doctor", runs=tmp_path / "nowhere")
    assert result.exit_code == 0
    assert any("no runs folder" in line for line in lines(result, "warn"))
    assert "-> sorl run FILE.toml makes it" in result.stdout


def test_corrupt_segments_stale_runs_and_unsynced_folders_are_named_with_what_to_type(
    sorl: Any, runs: Path, small: Shape
) -> None:
    folder = write_run(runs, "demo", "a", shape=small, status="running")
    (folder / "segments" / "turn" / "000000.parquet").write_bytes(b"")
    sync(runs)
    write_status(runs / "demo" / "late", status="finished")
    result = sorl("doctor", runs=runs)
    warnings = "\n".join(lines(result, "warn"))
    assert "corrupt segment of run 'a': segments/turn/000000.parquet" in warnings
    assert "run 'a' of 'demo' stopped before its end" in warnings
    assert "late' has no rows in the database" in warnings
    assert "-> resume: sorl run experiments/demo.toml" in result.stdout
    assert result.exit_code == 0


def test_who_holds_the_database_is_named(sorl: Any, runs: Path) -> None:
    sync(runs)
    holder = python(HOLD, runs / "sorl.duckdb")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    result = sorl("doctor", runs=runs)
    holder.communicate(timeout=120)
    assert any(f"PID {holder.pid}" in line for line in lines(result, "warn"))


def test_a_broken_database_fails_with_the_command_that_rebuilds_it(sorl: Any, runs: Path) -> None:
    (runs / "sorl.duckdb").write_bytes(b"x" * 10_000)
    result = sorl("doctor", runs=runs)
    assert result.exit_code == 1
    assert f"rm '{runs / 'sorl.duckdb'}' && sorl sync" in result.stdout


def test_a_runs_folder_that_is_a_file_fails(sorl: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = sorl("doctor", runs=tmp_path / "file")
    assert result.exit_code == 1
    assert "is not a folder" in result.stdout


def test_a_full_disk_fails(sorl: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1e8})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: usage)
    result = sorl("doctor", runs=runs)
    assert result.exit_code == 1
    assert any("0.1 GB free" in line for line in lines(result, "fail"))
