"""Names from files and options become folders below the runs folder, or one clear line."""

import copy
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from docs.generate.render import ROOT
from sorl.analysis import results
from sorl.recording import Ledger
from sorl.spec import InputError
from sorl.spec.names import LONGEST, FolderName, folder_to_write
from sorl.store import batches, notes
from tests.cli.command import done, grid_file, refused, sorl

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
    "an option": "-x",
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


@pytest.mark.parametrize("repeat", [copy.copy, copy.deepcopy, lambda name: pickle.loads(pickle.dumps(name))])
def test_a_copy_of_a_safe_name_is_a_safe_name(repeat):
    name = FolderName("ppo-s0", "a run")
    assert repeat(name) == name
    assert type(repeat(name)) is FolderName


# A file system holds no NUL, no separator and nothing longer than 255 bytes, so no file has such a name.
FILE_NAMES = {title: name for title, name in UNSAFE.items() if not set(name) & set("/\0") and len(name) < 250}


@pytest.mark.parametrize("name", [name for name in FILE_NAMES.values() if name], ids=lambda name: repr(name))
@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.usefixtures("here")
def test_a_grid_file_whose_name_is_no_folder_name_makes_nothing(verb: str, name: str, tmp_path: Path) -> None:
    file = grid_file(tmp_path).rename(tmp_path / f"{name}.toml")
    before = everything_below(tmp_path)
    refused("its name is the experiment's, and", verb, file, runs=tmp_path / "runs")
    assert everything_below(tmp_path) == before


def named_in_a_fork(name: str) -> str:
    quoted = json.dumps(name)
    return f'[base.fork]\nexperiment = {quoted}\nrun = "a"\nat_step = 1\nseed = 0\n'


@pytest.mark.parametrize("name", [*UNSAFE.values()], ids=UNSAFE)
@pytest.mark.usefixtures("here")
def test_a_grid_that_forks_from_outside_the_runs_folder_is_refused(name: str, tmp_path: Path) -> None:
    file = grid_file(tmp_path)
    file.write_text(file.read_text().replace("[axes]", named_in_a_fork(name) + "[axes]"))
    before = everything_below(tmp_path)
    says = "holds a NUL character" if "\0" in name else "is no name of a folder"
    refused(says, "run", file, runs=tmp_path / "runs")
    assert everything_below(tmp_path) == before


@pytest.mark.usefixtures("here")
def test_an_arm_of_an_experiment_outside_the_runs_folder_is_not_followed(tmp_path: Path) -> None:
    file = grid_file(tmp_path, more='[[arms]]\nname = "mine"\nmatch = "../ppo"\n')
    refused("its experiment '..' is no name of a folder", "plan", file, runs=tmp_path / "runs")


@pytest.mark.usefixtures("here")
def test_arms_with_the_names_of_paths_stay_inside_their_experiment(tmp_path: Path) -> None:
    names = ("../../outside", "/tmp/outside", ".cache", "x" * 300, "segments")
    more = "".join(
        f'[[arms]]\nname = "{name}"\n"learn.policy.lr" = 0.00{place + 1}\n'
        for place, name in enumerate(names)
    )
    file = grid_file(tmp_path, more=more, seeds="[0]")
    before = set(tmp_path.iterdir())
    done("run", file, runs=tmp_path / "runs")
    assert set(tmp_path.iterdir()) == before
    assert len([*(tmp_path / "runs" / "demo").glob("*/run.json")]) == len(names) + 2


@pytest.mark.usefixtures("here")
def test_a_report_of_a_mailed_file_is_not_written_where_the_file_says(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    (inside / "report-x").mkdir(parents=True)
    file = mailed(inside, experiment="x/../../outside")
    before = everything_below(tmp_path)
    os.chdir(inside)
    refused("without --output, the name of the report", "report", "--from", file)
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("name", UNSAFE.values(), ids=UNSAFE)
def test_a_ledger_of_no_folder_name_writes_nothing(name: str, tmp_path: Path) -> None:
    for names in ({"experiment": name}, {"experiment": "demo", "run": name}):
        with pytest.raises(InputError, match="is no name of a folder"):
            Ledger(tmp_path / "runs", algorithm="ppo", **names)
    assert everything_below(tmp_path) == []


TYPED = ("report", "compare", "ls", "show", "audit", "replay", "eval --data x.jsonl", "diagnose", "fork")


@pytest.mark.parametrize("verb", TYPED)
def test_a_name_that_is_typed_reaches_no_folder_outside_the_runs(
    verb: str, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = two.parent / "outside" / "inside"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)  # `diagnose` takes folders of logs: here `..` has none
    done("sync", runs=two)
    before = everything_below(two.parent)
    for name in ("..", "../outside", ".cache", "", "a" * 300, "demo/../../outside"):
        word, *more = verb.split()
        result = sorl(word, name, *more, runs=two)
        assert result.exit_code in (1, 2), (name, result.output)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert everything_below(two.parent) == before


@pytest.mark.parametrize("name", UNSAFE.values(), ids=UNSAFE)
def test_no_folder_of_a_run_is_found_under_an_unsafe_name(name: str, two: Path) -> None:
    (two / "segments" / "a").mkdir(parents=True)
    (two / "demo" / "segments").mkdir(exist_ok=True)
    assert batches.folder_of(two, name, "a") is None
    assert batches.folder_of(two, "demo", name) is None
    assert notes.every(two, name) == {}
    with pytest.raises(InputError, match="cannot keep notes"):
        notes.write(two, "demo", name, notes.Notes("mine"))


def test_folders_whose_names_are_no_names_are_left_out_and_named(two: Path) -> None:
    (two / "demo" / "a\nb" / "segments" / "step").mkdir(parents=True)
    assert "left out, in" in done("ls", runs=two).stderr


# Twins: on a file system that tells no upper from lower case they are one folder.


@pytest.mark.usefixtures("here")
def test_an_experiment_that_differs_by_case_only_is_refused(tmp_path: Path) -> None:
    done("run", grid_file(tmp_path), runs=tmp_path / "runs")
    (tmp_path / "demo.toml").rename(tmp_path / "Demo.toml")
    before = everything_below(tmp_path)
    for verb in ("plan", "run"):
        refused("already has 'demo'", verb, tmp_path / "Demo.toml", runs=tmp_path / "runs")
    file = mailed(tmp_path, experiment="DEMO")
    refused("already has 'demo'", "sync", "--from", file, runs=tmp_path / "runs")
    file.unlink()
    log = tmp_path / "log.jsonl"
    refused("already has 'demo'", "import", log, "--name", "DeMo", runs=tmp_path / "runs")
    with pytest.raises(InputError, match="already has 'demo'"):
        Ledger(tmp_path / "runs", experiment="dEMO", algorithm="ppo")
    assert everything_below(tmp_path) == before


def test_a_run_that_differs_by_case_only_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path, experiment="demo", algorithm="ppo", run="first"):
        pass
    before = everything_below(tmp_path)
    with pytest.raises(InputError, match="already has 'first'"):
        Ledger(tmp_path, experiment="demo", algorithm="ppo", run="First")
    assert everything_below(tmp_path) == before
    shipped = mailed(tmp_path, run_id="FIRST")
    refused("already has 'first'", "sync", "--from", shipped, runs=tmp_path)


def test_twins_in_one_file_are_refused(tmp_path: Path) -> None:
    first = results.read(mailed(tmp_path)).table["run_id"][0].as_py()
    file = mailed(tmp_path, run_id=first.upper())
    refused("upper and lower case only", "sync", "--from", file, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# Links that lead out of the runs folder


@pytest.mark.usefixtures("here")
def test_nothing_is_written_through_a_link_that_leads_out(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    file = grid_file(tmp_path)
    (tmp_path / "runs" / "demo").symlink_to(outside)
    for verb in ("plan", "run"):
        refused("a link that leads out of", verb, file, runs=tmp_path / "runs")
    refused("a link that leads out of", "sync", "--from", mailed(tmp_path), runs=tmp_path / "runs")
    refused("a link that leads out of", "import", file, "--name", "demo", runs=tmp_path / "runs")
    with pytest.raises(InputError, match="a link that leads out of"):
        Ledger(tmp_path / "runs", experiment="demo", algorithm="ppo")
    assert everything_below(outside) == []


@pytest.mark.usefixtures("here")
def test_a_run_that_is_a_link_out_is_not_written_to(tmp_path: Path) -> None:
    file = grid_file(tmp_path, seeds="[0]")
    done("run", file, runs=tmp_path / "runs")
    (run, *_) = sorted((tmp_path / "runs" / "demo").glob("*/run.json"))
    outside = run.parent.rename(tmp_path / "outside")
    run.parent.symlink_to(outside)
    bad = outside / "segments" / "step" / "000099.parquet"
    bad.write_bytes(b"no Parquet")
    before = everything_below(outside)
    refused("a link that leads out of", "run", file, runs=tmp_path / "runs")
    done("sync", runs=tmp_path / "runs")
    refused("a link that leads out of", "eval", run.parent.name, "--data", "x.jsonl", runs=tmp_path / "runs")
    assert everything_below(outside) == before, "what is damaged there keeps its name too"


@pytest.mark.usefixtures("here")
def test_a_link_inside_the_runs_folder_is_no_matter(tmp_path: Path) -> None:
    file = grid_file(tmp_path)
    (tmp_path / "runs" / "elsewhere").mkdir()
    (tmp_path / "runs" / "demo").symlink_to("elsewhere")
    assert folder_to_write(tmp_path / "runs", FolderName("demo", "experiment")) == tmp_path / "runs" / "demo"
    done("plan", file, runs=tmp_path / "runs")
