"""Every format, by a file that its own tool wrote (files/make.py), and what is said of a broken one."""

import gzip
import math
import sqlite3
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sorl.importing import configs, rows, trackers, unpack
from sorl.importing.logs import Imported, sources
from sorl.spec import InputError
from tests.cli.damaged_logs import mlflow
from tests.importing.files.make import CONFIG, HELD_OUT, STEPS, reward

FILES = Path(__file__).parent / "files"
BOTH = {"learn.policy.lr": CONFIG["learning_rate"], "learn.policy.max_grad_norm": CONFIG["max_grad_norm"]}
NORM = "minibatch.grad_norm"


def unpacked(tool: str, folder: Path) -> Path:
    """The folder that a tool wrote."""
    with tarfile.open(FILES / f"{tool}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / tool


def runs(path: Path) -> Iterator[Imported]:
    for source in sources(path):
        yield from source.runs()


def series(run: Imported, place: str) -> dict[int, float]:
    """A column by step, without the steps where nothing was logged."""
    table, name = place.split(".")
    columns = run.tables[table]
    shown = ~np.ma.getmaskarray(columns[name])
    return dict(
        zip(columns["step"][shown].tolist(), np.ma.getdata(columns[name])[shown].tolist(), strict=True)
    )


# Tool, format of each source, a metric with a NaN, steps at which it has none, settings that are found.
WRITTEN = [
    ("tensorboard", ["TensorBoard"], NORM, [], BOTH),
    ("wandb", ["W&B"], NORM, [], BOTH),
    ("swanlab", ["SwanLab"], NORM, [], BOTH),
    ("trackio", ["trackio"], NORM, [], BOTH),
    ("mlflow", ["MLflow", "MLflow"], NORM, [], BOTH),
    ("aim", ["Aim"], NORM, [], BOTH),
    ("trl", ["TRL"], NORM, [], {"iterations": 12}),  # its arguments are in a pickle, which nothing here opens
    ("verl", ["text", "JSON lines"], NORM, [7], BOTH),  # its file logger writes NaN as null
    ("tinker", ["JSON lines"], "step.entropy", [], {"learn.policy.lr": CONFIG["learning_rate"]} | BOTH),
    ("prime-rl", ["JSON lines"], NORM, [7, 12], BOTH),  # it drops NaN, and the trainer is a step behind
]


@pytest.mark.parametrize(
    ("tool", "formats", "noisy", "without", "settings"), WRITTEN, ids=[case[0] for case in WRITTEN]
)
def test_a_log_that_its_own_tool_wrote_is_read_to_the_last_value(
    tool, formats, noisy, without, settings, tmp_path
):
    if tool == "aim":
        pytest.importorskip("aim")
    folder = unpacked(tool, tmp_path)
    assert [source.format.name for source in sources(folder)] == formats
    for run in runs(folder):
        assert series(run, "step.reward") == {step: pytest.approx(reward(step)) for step in STEPS}
        assert series(run, "step.heldout_success") == HELD_OUT
        noise = series(run, noisy)
        gone = [step for step in without if step not in noise]
        assert gone == without or tool == "verl"
        assert [step for step, value in noise.items() if math.isnan(value)] == ([] if gone else [7])
        assert {value for value in noise.values() if value == value} == {0.5}
        assert run.settings == settings
        notes = [line for line in run.reading.notes if "success" not in line]
        assert (run.status, run.reading.left_out, notes) == ("finished", 0, [])


def test_a_chart_that_wandb_saved_as_csv_is_a_run_a_curve(tmp_path: Path) -> None:
    file = tmp_path / "chart.csv"
    names = [f"{run} - reward{end}" for run in ("a - 1", "b") for end in ("", "__MIN", "__MAX")]
    lines = [",".join(f'"{name}"' for name in ["Step", *names]), "1,.5,.5,.5,,,", "2,.25,.25,.25,NaN,NaN,NaN"]
    file.write_text("\n".join(lines))
    first, second = runs(file)
    assert (first.name, series(first, "step.reward")) == ("a - 1", {1: 0.5, 2: 0.25})
    assert (second.name, str(series(second, "step.reward"))) == ("b", "{2: nan}")


def test_a_console_of_numpy_2_and_a_cluster_is_read(tmp_path: Path) -> None:
    file = tmp_path / "console.out"
    file.write_text(
        "INFO:2026-01-01 step: loading\n\x1b[36m(TaskRunner pid=9)\x1b[0m step:1 -"
        " critic/score/mean:np.float64(0.5) - val-core/openai/gsm8k/reward/mean@1:0.25\nstep:2 -"
        " critic/score/mean:nan - note:unread\n"
    )
    (run,) = runs(file)
    assert str(series(run, "step.reward")) == "{1: 0.5, 2: nan}"
    assert series(run, "step.heldout_success") == {1: 0.25}


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the three trackers that write messages in frames."""
    folder = tmp_path_factory.mktemp("binary")
    forms = {"tensorboard": "*tfevents*", "wandb": "*.wandb", "swanlab": "*.swanlab"}
    files = (file for tool, form in forms.items() for file in unpacked(tool, folder).rglob(form))
    return {file.name: file.read_bytes() for file in files}


@given(st.integers(0, 3), st.integers(70, 900), st.integers(0, 255))
def test_a_binary_log_that_is_cut_off_or_changed_is_read_as_far_as_it_goes_or_refused(
    binary, which, at, mask
):
    name = sorted(binary)[which]
    content = bytearray(binary[name])
    if mask:
        content[at % len(content)] ^= mask
    else:
        del content[at:]
    with TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        with suppress(InputError):  # any other error fails the test
            assert all((run.steps >= 0).all() for run in runs(file))


def test_a_cut_off_record_is_said(tmp_path: Path) -> None:
    for tool in ("wandb", "swanlab"):
        source = sources(unpacked(tool, tmp_path))[0].path
        source.write_bytes(source.read_bytes()[:-300])
        (run,) = runs(source)
        assert run.reading.left_out == 1
        said = [*run.reading.warnings, *run.reading.notes]
        assert any("left out: the last record is cut off, first in byte" in sentence for sentence in said)


def line_of_a_gigabyte(path: Path) -> None:
    with path.open("wb") as file:
        file.write(
            (b'{"reward": 1, "x": "' if path.suffix == ".jsonl" else b"step,reward\n1,") + b"1" * 70_000
        )
        file.truncate(2**30)  # a hole: NUL after NUL, which takes no room on the disk


def bomb(path: Path) -> None:
    """A few kilobytes of Parquet that are forty million rows."""
    million = pa.table({"step": pa.array(np.zeros(10**6, np.int64)), "reward": pa.array(np.zeros(10**6))})
    pq.write_table(pa.concat_tables([million] * 40), path, compression="zstd")


BROKEN = [
    ("empty.jsonl", b"", "it is empty"),
    ("lines.jsonl", b'{"step": 1}\nnot json\n{"step": 2}\n', "line 2"),
    ("list.jsonl", b"[1, 2]\n[3]\n", "its first line is '[1, 2]'"),
    ("deep.jsonl", b'{"reward": ' + b"[" * 9000 + b"\n\n", 'its first line is \'{"reward": [[['),
    ("mine.jsonl", b'{"step": 1, "my/own": 2}\n', "no metric that is known"),
    ("steps.jsonl", b'{"step": "x", "reward": 2}\n', "no row"),
    ("object.json", b'{"a": 1,\n "b": 2}', "no records of numbers"),
    ("cut.json", b"{", "its first line is '{'"),
    ("no.parquet", b"PAR1 no", "is damaged, or no Parquet of a known version"),
    ("empty.csv", b"\n\n", "its first line does not name the columns"),
    ("names.csv", b"a,b\n1,2\n", "no metric that is known"),
    ("run.log", b"nothing\nhere\n", "has no record of metrics that is known here"),
    ("zip.jsonl", b"PK\x03\x04....", "is damaged: the list of its files is missing"),
    ("lines.jsonl.gz", b"\x1f\x8b\x08....", "is damaged: it cannot be decompressed"),
    ("noise.bin", b"\x7fELF\0\1" * 99, "is in no format that is known"),
    ("base.db", b"SQLite format 3\0" + bytes(4096), "is in no format that is known"),
    ("x.wandb", b":W&B\xe1\xbe\x00" + b"\xff" * 999, "holds no rows"),
    ("old.swanlab", b":SWL\xd6\xe1\x01" + bytes(99), "another version of SwanLab's format"),
    (
        "events.out.tfevents.1",
        b"\x0f" + bytes(11) + b"\x1a\x0dbrain.Event:2" + b"\xff" * 99,
        "left out: damaged records",
    ),
    ("line.jsonl", line_of_a_gigabyte, "left out: longer than 4 MiB"),
    ("line.csv", line_of_a_gigabyte, "left out: longer than 4 MiB"),
    ("bomb.parquet", bomb, "says it holds 40,000,000 rows"),
]


@pytest.mark.parametrize(("name", "content", "says"), BROKEN, ids=[case[0] for case in BROKEN])
def test_a_broken_file_gets_one_clear_line(name: str, content: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    content(path) if callable(content) else path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        list(runs(path))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_log_of_too_many_values_is_refused_before_memory_is_full(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(rows, "CELLS", 10_000)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"step": {i}, "reward": 0.5, "entropy": 1}}\n' for i in range(4000)))
    with pytest.raises(InputError, match="holds more than 10,000 values"):
        list(runs(path))


def test_of_a_log_with_very_many_metrics_the_first_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(rows, "METRICS", 3)
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "reward": 0.5, "a": 1, "b": 2}\n{"step": 2, "reward": 1, "c": 3}\n')
    (run,) = runs(path)
    assert (run.kept, run.reading.notes[0]) == ({"a": "a"}, "only the first 3 metrics were read")


def test_a_folder_whose_links_go_round_is_looked_at_once(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"reward": 1}\n')
    (tmp_path / "not a log.jsonl").mkdir()
    assert [source.path.name for source in sources(tmp_path)] == ["a.jsonl"]


def test_a_configuration_that_refers_to_itself_is_left_out_and_said(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    bombs = "a: &a {x: 1}\n" + "".join(
        f"{c}: &{c} {{l: *{p}, r: *{p}}}\n" for p, c in pairwise("abcdefghijklm")
    )
    notes: list[str] = []
    for text in ("a: &a {b: *a}", "a: [", bombs, "a: !!python/object/apply:os.system ['true']"):
        (tmp_path / "config.yaml").write_text(text)
        assert len(configs.config_near(tmp_path / "log.jsonl", notes)) <= 5000
    assert len(notes) == 3


def test_a_database_that_its_tracker_is_writing_is_read_from_a_copy(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trackers, "_PATIENCE_SECONDS", 0.1)
    path = tmp_path / "mlflow.db"
    mlflow(path, damaged=False)
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("INSERT INTO metrics VALUES ('a', 99, 'reward', 0.5, 0, 99)")
        (run,) = runs(path)
    assert len(run.steps) == 40


def test_an_archive_inside_of_archives_is_not_unpacked_for_ever(tmp_path: Path) -> None:
    content = b'{"step": 1, "reward": 0.5}\n'
    for _ in range(4):
        content = gzip.compress(content)
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is an archive inside of 2 archives"):
        list(runs(path))


def test_a_file_that_unpacks_to_more_than_the_bound_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(unpack, "UNPACKED", 2**20)
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(2**22)))
    with pytest.raises(InputError, match="unpacks to more than 1 MiB"):
        list(runs(path))


def test_a_zip_with_a_folder_of_runs_is_those_runs(tmp_path: Path) -> None:
    path = tmp_path / "sweep.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("a/metrics.jsonl", "b/metrics.jsonl"):
            archive.writestr(name, '{"step": 1, "reward": 0.5}\n')
    found = sources(path)
    assert [source.path for source in found] == [path / "a" / "metrics.jsonl", path / "b" / "metrics.jsonl"]
    assert [run.name for run in runs(path)] == ["a", "b"]
