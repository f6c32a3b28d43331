"""Names from files and options become folders below the runs folder, or one clear line."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from docs.generate.render import ROOT
from sorl.analysis import results
from sorl.spec import InputError
from sorl.spec.names import LONGEST, FolderName
from tests.cli.command import done, refused

UNSAFE = {
    "parent": "../outside",
    "parent alone": "..",
    "absolute": "/tmp/outside",
    "hidden": ".cache",
    "empty": "",
    "nul": "a\0b",
    "line break": "a\nb",
    "backslash": "..\\outside",
    "long": "a" * 300,
    "blank at its end": "a ",
    "reserved": "segments",
}


def mailed(folder: Path, *, experiment: str = "demo", run_id: str | None = None) -> Path:
    """A results file as somebody could mail it, with a name of their choice."""
    shipped = results.read(ROOT / "experiments" / "results" / "six_by_five.parquet")
    table = shipped.table.slice(0, 2)
    if run_id is not None:
        at = table.schema.get_field_index("run_id")
        ids = pa.array([table["run_id"][0].as_py(), run_id], table.schema.field(at).type)
        table = table.set_column(at, "run_id", ids)
    file = folder / "mailed.parquet"
    results.write(replace(shipped, experiment=experiment, table=table), file)
    return file


def everything_below(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", UNSAFE.values(), ids=UNSAFE)
def test_a_run_id_that_is_no_folder_name_writes_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    file = mailed(tmp_path, run_id=name)
    before = everything_below(tmp_path)
    refused("is no name of a folder", "sync", "--from", file, runs=tmp_path / "runs")
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("name", UNSAFE.values(), ids=UNSAFE)
def test_an_experiment_that_is_no_folder_name_writes_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    file = mailed(tmp_path, experiment=name)
    before = everything_below(tmp_path)
    refused("is no name of a folder", "sync", "--from", file, runs=tmp_path / "runs")
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize(
    "name", [name for name in UNSAFE.values() if "\0" not in name]
)  # no argument holds NUL
def test_an_import_under_no_folder_name_writes_nothing(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {i}, "reward": 0.5}}\n' for i in range(12)))
    before = everything_below(tmp_path)
    refused("is no name of a folder", "import", log, "--name", name, runs=tmp_path / "runs")
    assert everything_below(tmp_path) == before


def test_an_honest_file_is_restored(tmp_path: Path) -> None:
    assert "demo: 2 runs" in done("sync", "--from", mailed(tmp_path), runs=tmp_path / "runs").stdout


@pytest.mark.parametrize("name", ["quickstart", "ppo-s0-7c0dfe63", "lr-0.1", "größe", "a" * LONGEST])
def test_ordinary_names_stay_as_they_are(name: str) -> None:
    assert FolderName(name, "a run") == name


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="a run None is no name of a folder: it is no text"):
        FolderName(None, "a run")
