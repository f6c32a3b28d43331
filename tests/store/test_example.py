"""The example that ships: made by today's code, unpacked once, and read like any runs folder."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sorl.grid import config
from sorl.grid.folder import History
from sorl.recording.segments import schema_of
from sorl.store import batches, example
from tests.cli.command import done, refused


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return example.runs_folder()


def test_the_example_was_recorded_by_todays_code_and_fits_in_six_megabytes(recorded):
    cells = {
        cell.run_id
        for cell in config.load(Path("experiments/quickstart.toml"), [], History(recorded), []).cells
    }
    folders = [path for path in (recorded / "quickstart").iterdir() if (path / "run.json").is_file()]
    assert {folder.name for folder in folders} <= cells, (
        "the settings of the quickstart changed: type `make example`"
    )
    arms = {json.loads((folder / "run.json").read_text())["arm"] for folder in folders}
    assert arms == {"ppo", "turn-ppo", "s-ppo", "st-ppo", "grpo", "so-grpo", "ppo, on-policy"}
    for file in (recorded / "quickstart").glob("*/segments/*/*.parquet"):
        assert pq.read_schema(file).names == schema_of(file.parent.name).names, (
            f"type `make example`: {file.parent.name}"
        )
    assert example.ARCHIVE.stat().st_size <= 6_000_000


def test_a_second_call_unpacks_nothing_and_a_cache_that_cannot_be_written_is_named(
    recorded, tmp_path, monkeypatch
):
    (recorded / "mine").touch()
    assert (example.runs_folder() / "mine").is_file()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    refused("set XDG_CACHE_HOME to another folder", "ls", "--example", runs=None)


def test_the_verbs_read_the_example_and_diagnose_names_its_fallen_runs(recorded):
    assert "quickstart: 8 runs, 8 finished" in done("ls", "--example").stdout
    told = done("diagnose", "--example").stdout
    assert told.count("Collapsed") >= 1
    assert "likely cause" in told
    assert "ratio_geo" in done("sql", "turn", "--example").stdout


def test_the_stored_batches_of_the_example_are_read_replayed_and_audited(recorded):
    folder = next(path for path in (recorded / "quickstart").glob("ppo-s0-*") if path.is_dir())
    first, second = (batches.read(folder, step, weights=True) for step in batches.steps(folder))
    assert first.weights
    assert not second.weights
    for batch in (first, second):
        told = done("replay", folder.name, "--step", str(batch.step), "--example").stdout
        assert "clip_frac" in told
    assert "No identity is violated" in done("audit", folder.name, "--example").stdout
