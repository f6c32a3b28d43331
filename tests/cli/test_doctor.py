import sys

import pytest
from typer.testing import Result

from tests.cli.command import done, sorl
from tests.store.fixture import write_run, write_status
from tests.store.processes import HOLD, python
from workbench.cli import doctor
from workbench.store.sync import sync


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch takes seconds and says nothing about these checks."""
    monkeypatch.setitem(sys.modules, "torch", None)


def found(result: Result, state: str) -> str:
    return "\n".join(line for line in result.stdout.splitlines() if line.startswith(state))


def test_a_healthy_place_has_nothing_to_fix(runs, small):
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    result = done("doctor", runs=runs)
    assert found(result, "fail") == ""
    for words in ("duckdb", "cores", "GB free", "can be written", "1 runs in 1 experiments", "no corrupt", "no stale"):
        assert words in found(result, "ok")
    result = done("doctor", runs=runs / "nowhere")
    assert "no runs folder" in found(result, "warn"), "where nothing ran yet is no failure"
    assert "-> sorl run FILE.toml makes it" in result.stdout


def test_corrupt_segments_stale_runs_and_unsynced_folders_are_named_with_what_to_type(runs, small):
    folder = write_run(runs, "demo", "a", shape=small, status="running")
    (folder / "segments" / "turn" / "000000.parquet").write_bytes(b"")
    sync(runs)
    write_status(runs / "demo" / "late", status="finished")
    result = done("doctor", runs=runs)
    for words in ("corrupt segment of run 'a': segments/turn/000000.parquet",
                  "run 'a' of 'demo' stopped before its end", "late' has no rows in the database"):  # fmt: skip
        assert words in found(result, "warn")
    assert "-> resume: sorl run experiments/demo.toml" in result.stdout


def test_the_process_that_holds_the_database_is_named(runs):
    sync(runs)
    holder = python(HOLD, runs / "sorl.duckdb")
    assert holder.stdout.readline() == "open\n"
    result = sorl("doctor", runs=runs)
    holder.communicate(timeout=120)
    assert f"PID {holder.pid}" in found(result, "warn")


def test_what_must_be_fixed_sets_the_exit_code(runs, tmp_path, monkeypatch):
    def fails(words, place):
        result = sorl("doctor", runs=place)
        assert result.exit_code == 1
        assert words in result.stdout

    (tmp_path / "file").write_text("")
    fails("is not a folder", tmp_path / "file")
    (runs / "sorl.duckdb").write_bytes(b"x" * 10_000)
    fails(f"rm '{runs / 'sorl.duckdb'}' && sorl sync", runs)
    (runs / "sorl.duckdb").unlink()
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1e8}))
    fails("fail  0.1 GB free", runs)
