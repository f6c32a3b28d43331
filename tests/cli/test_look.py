"""The verbs that look: ls, show, sql, sync, algorithms, diagnostics."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from sorl.cli import doctor
from sorl.spec import TABLES
from sorl.spec.files import lock_file
from sorl.spec.heartbeat import NAME, Doing
from sorl.store.reader import saved
from sorl.store.sync import sync
from tests.cli.command import done, record, refused, sorl, told
from tests.store.fixture import run_row, write_experiment, write_run, write_segment, write_status
from tests.store.processes import HOLD, ROOT, python

COUNT = ("sql", "SELECT count(*) AS n FROM run", "--format", "csv")
SHOWN = [  # what is typed, what is printed, what is not
    ("ls", ["demo: 8 runs, 6 finished, 2 stopped, 2 collapsed\nDoes the clip stop the collapse?\n"], []),
    (
        "show ppo-s0",
        [
            "ppo-s0-aaaa0000",
            "outcome         collapsed",
            "ess_frac_min fell below 0.3",
            "minibatch",
            "Events: 3",
        ],
        ["console.log"],
    ),
    ("show so-grpo-s0", ["  loading\n", "  RuntimeError: [bold]CUDA out of memory[/bold]\n"], ["\x1b"]),
    ("show so-grpo-s0 --log 1", ["RuntimeError"], ["  loading\n"]),
    ("sql turn", ["ratio_geo ", "[ratio]"], []),
    ("sql --saved ratio_by_turn", ["ppo"], []),
    ("algorithms st-ppo", ["level=turn"], []),
    ("algorithms diff st-ppo so-ppo", ["the same algorithm"], []),
    ("algorithms diff ppo turn-ppo --format json", ['"slot": "ratio"', '"turn-ppo": "pool level=turn"'], []),
    ("algorithms --format json", ['"algorithm": "so-grpo"', '"algorithm": "grpo"'], []),
    ("diagnostics", ["warning when above 10 x the median"], []),
    ("diagnostics grad_norm", ["formula"], []),
]


@pytest.mark.parametrize(("line", "words", "absent"), SHOWN, ids=[line for line, *_ in SHOWN])
def test_it_prints(grid, line, words, absent):
    text = done(*line.split(), runs=grid).stdout
    assert [word for word in words if word not in text] == []
    assert [word for word in absent if word in text] == []


def test_a_running_run_says_what_it_is_doing(runs):
    folder = runs / "demo" / "a"
    write_status(folder, status="running")
    (folder / NAME).write_text(Doing("update\x1b[31m", 3, 80, 2, 16).as_json())
    with lock_file(folder / "lock"):
        assert "a: step 4 of 80: update 2 of 16" in done("ls", "demo", runs=runs).stdout
        assert "  doing           step 4 of 80: update 2 of 16" in done("show", "a", runs=runs).stdout
    assert "doing " not in done("show", "a", runs=runs).stdout


def test_show_config_prints_every_setting_and_otherwise_the_changed_ones(runs):
    folder = runs / "demo" / "a"
    write_status(folder, config=json.dumps(json.loads(run_row(folder)["config"]) | {"iterations": 7}))
    shown = (done("show", "a", *flag, runs=runs).stdout for flag in ([], ["--config"]))
    short, whole = (text.partition("\nConfiguration")[2] for text in shown)
    assert short.splitlines()[1:] == ["  iterations = 7", "  learn.episodes = 1000"]
    assert "  learn.staleness = 0" in whole


def test_of_very_many_events_the_first_of_each_kind_is_shown_with_their_number_and_its_last_step(runs):
    folder = runs / "demo" / "a"
    write_status(folder)
    kinds = {"kind": ["alarm"] * 24 + ["mild"], "diagnostic": ["grad_norm_max"] * 24 + ["success"]}
    write_segment(
        folder, "event", {"step": [*range(24), 30], "severity": "warning", "message": "it rang", **kinds}
    )
    shown = done("show", "a", runs=runs).stdout.partition("\nEvents: ")[2].partition("\n\n")[0].splitlines()
    assert shown[0].startswith("25, the first of each kind; all: sorl sql ")
    assert [line.split()[:5] for line in shown[3:]] == [
        ["0", "23", "24", "warning", "alarm"],
        ["30", "30", "1", "warning", "mild"],
    ]


def test_a_long_text_is_cut_and_its_length_is_said(runs):
    record(runs, "ppo", 0, reason="x" * 3_000_000, status="failed")
    write_experiment(runs, "demo", question="y" * 3_000_000)
    for line in ("show p3-s0", "ls", "sql SELECT(reason)FROM(run)", "report demo --format md"):
        output = done(*line.split(), runs=runs).output
        assert len(output) < 1_200_000, line  # a report quotes a grid file, of at most 1 MiB
        assert "more characters)" in output, line
    assert "(2,996,000 more characters)" in done("show", "p3-s0", runs=runs).stdout
    assert len(done("sql", "SELECT reason FROM run", "--format", "csv", runs=runs).stdout) > 3_000_000


def test_a_broken_stored_configuration_is_said_and_the_rest_is_shown(runs, small):
    broken = ("{", "[1, 2]", "[" * 5000, '"text"', '{"collapse": 3}', '{"learn": 1}')
    for i, config in enumerate(broken):
        write_status(write_run(runs, "demo", f"odd{i}", shape=small), config=config)
    write_run(runs, "demo", "usual", shape=small)
    judged = done("rescan", "--dry-run", runs=runs).stderr
    assert f"{len(broken) + 1} runs judged" in judged
    for i, config in enumerate(broken):
        shown = done("show", f"odd{i}", runs=runs).stdout
        assert ("the stored configuration is not a JSON object" in shown) == (":" not in config)
        assert f"skipped: run 'odd{i}'" in judged


def test_sql_alone_lists_tables_with_grain_rows_and_columns_and_the_saved_queries(grid):
    lines = {line.split()[0]: line for line in done("sql", runs=grid).stdout.splitlines() if line.strip()}
    tables = {table.name: table for table in TABLES}
    assert all(table.grain in lines[name] for name, table in tables.items())
    assert lines["run"].split()[1:4] == ["table", "8", str(len(tables["run"].columns))]
    assert lines["culprit"].split()[1] == "view"
    assert all(query.title in lines[query.name] for query in saved())


def test_sql_tells_null_from_nan_in_every_format(grid, tmp_path):
    question = (
        "SELECT NULL::DOUBLE AS a, 'nan'::DOUBLE AS b, '-inf'::DOUBLE AS c, [1, NULL] AS d, 'x,\"y' AS e"
    )
    shown = done("sql", question, runs=grid).stdout.splitlines()[2].split()
    assert shown == ["NULL", "nan", "-inf", "[1", "NULL]", 'x,"y']
    rows = list(csv.reader(io.StringIO(done("sql", question, "--format", "csv", runs=grid).stdout)))
    assert rows[1] == ["", "nan", "-inf", "[1, null]", 'x,"y']
    assert told("sql", question, runs=grid) == [
        {"a": None, "b": "NaN", "c": "-Infinity", "d": [1, None], "e": 'x,"y'}
    ]
    file = tmp_path / "x.parquet"
    assert done("sql", question, "--format", "parquet", "--output", file, runs=grid).stdout == ""
    (row,) = pq.read_table(file).to_pylist()
    assert (row["a"], str(row["b"]), row["d"]) == (None, "nan", [1, None])


def test_a_table_stops_at_its_limit_and_says_so_and_a_file_holds_everything(grid, tmp_path):
    shown = done("sql", "FROM range(3000)", runs=grid)
    assert len(shown.stdout.splitlines()) == 1002
    assert "only the first 1,000 rows" in shown.stderr
    file = tmp_path / "x.csv"
    done("sql", "FROM range(3000)", "--format", "csv", "-o", file, runs=grid)
    assert len(file.read_text().splitlines()) == 3001
    assert (
        done("sql", "FROM range(3000)", "--format", "csv", "--limit", 2, runs=grid).stdout == "range\n0\n1\n"
    )
    # Output into a closed pipe is no error.
    command = f"{sys.executable} cli.py --runs {grid} sql 'FROM range(300000)' --format csv | head -1"
    result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("range\n", "")


def test_sync_says_what_it_did_and_what_it_set_aside(runs, small):
    folder = write_run(runs, "demo", "a", shape=small)
    (folder / "segments" / "turn" / "000009.parquet").write_bytes(b"")
    result = done("sync", runs=runs)
    assert "new segments" in result.stdout
    assert "corrupt segment set aside" in result.stderr
    assert "0 rows from 0 new segments" in done("sync", runs=runs).stdout
    write_segment(folder, "step", {"step": 12})
    count = ("sql", "SELECT count(*) AS n FROM step", "--format", "csv")
    assert done(*count, runs=runs).stdout == f"n\n{small.steps + 1}\n", "every reading verb syncs first"


def hold(runs, *mode):
    process = python(HOLD, runs / "sorl.duckdb", *mode)
    assert process.stdout.readline() == "open\n"
    return process


def test_a_locked_database_is_read_as_it_is_with_a_note_or_refused_with_the_holder(runs, small):
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    write_run(runs, "demo", "b", shape=small)
    reader = hold(runs, "read")
    result = done(*COUNT, runs=runs)
    assert result.stdout == "n\n1\n"
    assert (
        f"not synced, showing the rows of the last sync: database '{runs}/sorl.duckdb' is held"
        in result.stderr
    )
    assert f"PID {reader.pid}" in result.stderr
    reader.communicate(timeout=120)
    writer = hold(runs)
    refused(f"held open by PID {writer.pid}", *COUNT, runs=runs)
    for line in ("ls", "show a", "sync", "compare demo"):
        began = time.monotonic()
        result = refused(f"database '{runs}/sorl.duckdb' is held open by PID", *line.split(), runs=runs)
        assert f"(`kill {writer.pid}` ends it), or wait and try again" in result.stderr
        assert time.monotonic() - began < 6.0, line
    writer.communicate(timeout=120)
    assert done(*COUNT, runs=runs).stdout == "n\n2\n"


def test_a_folder_that_cannot_be_written_is_one_message(grid):
    done("ls", runs=grid)  # every import done: the other user below may not reach this interpreter's files
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o555)
        own = os.geteuid()
        try:
            os.seteuid(own or 65534)  # root may write everywhere
            result = refused("can be written", "ls", runs=Path(place))
        finally:
            os.seteuid(own)
            Path(place).chmod(0o700)
    assert result.stderr.startswith(f"sorl: cannot open database '{place}/sorl.duckdb'")


def test_a_run_whose_folder_was_renamed_is_one_message(runs, small):
    write_run(runs, "demo", "ppo-s0", shape=small).rename(runs / "demo" / "renamed")
    says = (
        "1 run folder is left out, with rows that are those of another run: 'demo/renamed' (rows of 'ppo-s0')"
    )
    for line in ("replay ppo-s0 --step 0", "diagnose ppo-s0 --step 0", "eval ppo-s0 --data x.jsonl"):
        result = refused("no run 'ppo-s0'", *line.split(), runs=runs)
        assert f"{says}; remove a copy, and give a renamed folder the name of its run back" in result.stderr
    (runs / "demo" / "renamed").rename(runs / "demo" / "ppo-s0")
    assert one_count(runs, "SELECT count(*) AS n FROM step") == small.steps
    reader = hold(runs, "read")  # the rows of the last sync are shown
    shutil.move(runs / "demo" / "ppo-s0", runs.parent)
    refused(f"run 'ppo-s0' has no folder of that name in '{runs}'", "replay", "ppo-s0", runs=runs)
    reader.communicate(timeout=120)


def one_count(runs: Path, query: str) -> int:
    return int(done("sql", query, "--format", "csv", runs=runs).stdout.split()[1])


def test_a_copied_run_folder_adds_no_rows_and_is_said(runs, small):
    write_run(runs, "demo", "a", shape=small)
    shutil.copytree(runs / "demo" / "a", runs / "demo" / "a copy")
    says = "1 run folder is left out, with rows that are those of another run: 'demo/a copy' (rows of 'a')"
    for line in ("sync", "sync", "ls"):
        assert says in done(*line.split(), runs=runs).stderr, "each time, not only the first"
    assert one_count(runs, "SELECT count(*) FROM step") == small.steps
    doctors = sorl("doctor", runs=runs).stdout
    assert f"folder '{runs}/demo/a copy' was copied or renamed: it holds rows of another run" in doctors
    assert "has no rows in the database" not in doctors
    for number in range(7):
        shutil.copytree(runs / "demo" / "a", runs / "demo" / f"b{number}")
    assert "8 run folders are left out" in done("ls", runs=runs).stderr
    for folder in (runs / "demo").glob("[!a]*"):
        shutil.rmtree(folder)
    shutil.rmtree(runs / "demo" / "a copy")
    assert done("ls", runs=runs).stderr == ""
    assert one_count(runs, "SELECT count(*) FROM segment WHERE status <> 'ingested'") == 0


def test_very_many_damaged_segments_are_a_number(runs, small):
    steps = write_run(runs, "demo", "a", shape=small) / "segments" / "step"
    for number in range(100, 130):
        (steps / f"{number:06d}.parquet").write_bytes(b"PAR1")
    noted = done("sync", runs=runs).stderr
    assert noted.count("corrupt segment set aside: ") == 10
    assert "and 20 more corrupt segments set aside, 30 in all" in noted
    assert one_count(runs, "SELECT count(*) FROM step") == small.steps


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
    for words in (
        "duckdb",
        "cores",
        "GB free",
        "can be written",
        "1 runs in 1 experiments",
        "no corrupt",
        "no stale",
    ):
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
    for words in (
        "corrupt segment of run 'a': segments/turn/000000.parquet",
        "run 'a' of 'demo' stopped before its end",
        "late' has no rows in the database",
    ):
        assert words in found(result, "warn")
    assert "-> resume: sorl run experiments/demo.toml" in result.stdout


def test_the_process_that_holds_the_database_is_named(runs):
    sync(runs)
    holder = hold(runs)
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
