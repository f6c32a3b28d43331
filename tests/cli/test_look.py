"""The verbs that look: ls, show, sql, sync."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.store.fixture import START, Shape, run_row, write_run, write_segment, write_status
from tests.store.processes import HOLD, ROOT, python
from workbench.spec import TABLES
from workbench.store.reader import saved
from workbench.store.sync import sync


def test_ls_shows_every_experiment_with_its_runs(sorl: Any, grid: Path) -> None:
    result = sorl("ls", runs=grid)
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "demo: 8 runs, 6 finished, 2 stopped, 2 collapsed\nDoes the clip stop the collapse?\n"
    )
    assert len([line for line in result.stdout.splitlines() if "aaaa000" in line]) == 6


def test_ls_of_an_unknown_experiment_names_the_nearest(sorl: Any, grid: Path) -> None:
    result = sorl("ls", "dem", runs=grid)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "sorl: no experiment 'dem' (did you mean 'demo'?); there is: demo\n"


def test_an_empty_runs_folder_is_no_error_and_says_what_to_type(sorl: Any, runs: Path) -> None:
    result = sorl("ls", runs=runs)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "`sorl run FILE.toml`" in result.stderr


@pytest.mark.parametrize("verb", [["ls"], ["show", "x"], ["sql", "SELECT 1"], ["sync"], ["rescan"]])
def test_a_missing_runs_folder_is_one_message_and_exit_code_2(sorl: Any, tmp_path: Path, verb: list[str]) -> None:
    result = sorl(*verb, runs=tmp_path / "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("sorl: no runs folder '")
    assert not (tmp_path / "nowhere").exists()


def test_show_takes_a_unique_beginning_and_tells_the_run_its_events_and_its_rows(sorl: Any, grid: Path) -> None:
    result = sorl("show", "ppo-s0", runs=grid)
    assert result.exit_code == 0
    for words in (
        "ppo-s0-aaaa0000",
        "outcome         collapsed",
        "ess_frac_min fell below 0.3",
        "minibatch",
        "Events: 3",
    ):
        assert words in result.stdout


def test_show_refuses_an_ambiguous_beginning_with_the_candidates(sorl: Any, grid: Path) -> None:
    result = sorl("show", "ppo", runs=grid)
    assert result.exit_code == 2
    assert "begins 2 runs: ppo-s0-aaaa0000, ppo-s1-aaaa0001" in result.stderr


def test_show_of_an_unknown_run_names_the_nearest(sorl: Any, grid: Path) -> None:
    result = sorl("show", "ppo-s3-aaaa0000", runs=grid)
    assert result.exit_code == 2
    assert "did you mean 'ppo-s" in result.stderr


def test_the_log_of_a_failed_run_is_shown_without_its_control_sequences_and_with_its_brackets(
    sorl: Any, grid: Path
) -> None:
    result = sorl("show", "so-grpo-s0", runs=grid)
    assert "  RuntimeError: [bold]CUDA out of memory[/bold]\n" in result.stdout
    assert "\x1b" not in result.stdout
    assert "console.log" not in sorl("show", "ppo-s0", runs=grid).stdout
    assert "  loading\n" not in sorl("show", "so-grpo-s0", "--log", "1", runs=grid).stdout


def test_show_config_prints_every_setting_and_otherwise_the_changed_ones(sorl: Any, runs: Path) -> None:
    folder = runs / "demo" / "a"
    config = json.loads(run_row(folder)["config"]) | {"iterations": 7}
    write_status(folder, config=json.dumps(config))
    short, whole = (
        sorl("show", "a", *flag, runs=runs).stdout.partition("\nConfiguration")[2] for flag in ([], ["--config"])
    )
    assert short.splitlines()[1:] == ["  iterations = 7", "  learn.episodes = 1000"]
    assert "  learn.staleness = 0" in whole


def test_sql_alone_lists_tables_with_grain_rows_and_columns_and_the_saved_queries(sorl: Any, grid: Path) -> None:
    result = sorl("sql", runs=grid)
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    for table in TABLES:
        assert table.grain in lines[table.name]
    assert lines["run"].split()[1:4] == ["table", "8", str(len(next(t for t in TABLES if t.name == "run").columns))]
    assert lines["culprit"].split()[1] == "view"
    assert all(query.title in lines[query.name] for query in saved())


def test_sql_with_a_table_describes_its_columns(sorl: Any, grid: Path) -> None:
    result = sorl("sql", "turn", runs=grid)
    assert any(line.startswith("ratio_geo ") and "[ratio]" in line for line in result.stdout.splitlines())
    wrong = sorl("sql", "turm", runs=grid)
    assert wrong.exit_code == 2
    assert "did you mean 'turn'" in wrong.stderr


def test_sql_tells_null_from_nan_in_every_format(sorl: Any, grid: Path, tmp_path: Path) -> None:
    question = "SELECT NULL::DOUBLE AS a, 'nan'::DOUBLE AS b, '-inf'::DOUBLE AS c, [1, NULL] AS d, 'x,\"y' AS e"
    shown = sorl("sql", question, runs=grid).stdout.splitlines()[2].split()
    assert shown == ["NULL", "nan", "-inf", "[1", "NULL]", 'x,"y']
    rows = list(csv.reader(io.StringIO(sorl("sql", question, "--format", "csv", runs=grid).stdout)))
    assert rows[1] == ["", "nan", "-inf", "[1, null]", 'x,"y']
    told = json.loads(sorl("sql", question, "--format", "json", runs=grid).stdout)
    assert told == [{"a": None, "b": "NaN", "c": "-Infinity", "d": [1, None], "e": 'x,"y'}]
    file = tmp_path / "x.parquet"
    result = sorl("sql", question, "--format", "parquet", "--output", file, runs=grid)
    assert (result.exit_code, result.stdout) == (0, "")
    row = pq.read_table(file).to_pylist()[0]
    assert row["a"] is None
    assert math.isnan(row["b"])
    assert row["d"] == [1, None]


def test_a_table_stops_at_its_limit_and_says_so_and_a_file_holds_everything(
    sorl: Any, grid: Path, tmp_path: Path
) -> None:
    shown = sorl("sql", "FROM range(3000)", runs=grid)
    assert len(shown.stdout.splitlines()) == 1002
    assert "only the first 1,000 rows" in shown.stderr
    file = tmp_path / "x.csv"
    sorl("sql", "FROM range(3000)", "--format", "csv", "-o", file, runs=grid)
    assert len(file.read_text().splitlines()) == 3001
    limited = sorl("sql", "FROM range(3000)", "--format", "csv", "--limit", "2", runs=grid)
    assert limited.stdout == "range\n0\n1\n"


def test_saved_queries_run_by_name(sorl: Any, grid: Path) -> None:
    assert "ppo" in sorl("sql", "--saved", "ratio_by_turn", runs=grid).stdout
    wrong = sorl("sql", "--saved", "ratio_by_tern", runs=grid)
    assert wrong.exit_code == 2
    assert "did you mean 'ratio_by_turn'" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SELECT * FROM runn"], 'Did you mean "run"'),
        (["DROP TABLE run"], "DROP is not a question: only one SELECT"),
        (["SELECT 1; SELECT 2"], "2 statements: only one SELECT"),
        (["SELECT 1", "--format", "tsv"], "allowed: table, csv, json, parquet"),
        (["SELECT 1", "--format", "parquet"], "add --output FILE.parquet"),
        (["SELECT 1", "--saved", "worst_turns"], "type one of them"),
        (["SELECT 1", "--output", "/no/such/folder/x.csv"], "cannot write --output"),
        (["SELECT count(*) FROM range(1000000000) a, range(1000) b", "--seconds", "0.2"], "stopped after 0.2 s"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(sorl: Any, grid: Path, arguments: list[str], words: str) -> None:
    result = sorl("sql", *arguments, runs=grid)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_every_reading_verb_syncs_first(sorl: Any, runs: Path, small: Shape) -> None:
    write_run(runs, "demo", "a", shape=small)
    assert sorl("sql", "SELECT count(*) AS n FROM step", "--format", "csv", runs=runs).stdout == f"n\n{small.steps}\n"
    write_segment(runs / "demo" / "a", "step", {"run_id": ["a"], "step": [12], "written_at": [START]})
    assert (
        sorl("sql", "SELECT count(*) AS n FROM step", "--format", "csv", runs=runs).stdout == f"n\n{small.steps + 1}\n"
    )


def test_sync_says_what_it_did_and_what_it_set_aside(sorl: Any, runs: Path, small: Shape) -> None:
    folder = write_run(runs, "demo", "a", shape=small)
    (folder / "segments" / "step" / "000001.parquet").write_bytes(b"")
    result = sorl("sync", runs=runs)
    assert result.exit_code == 0
    assert "new segments" in result.stdout
    assert "corrupt segment set aside" in result.stderr
    assert "0 rows from 0 new segments" in sorl("sync", runs=runs).stdout


def test_a_locked_database_is_read_as_it_is_with_a_note_or_refused_with_the_holder(
    sorl: Any, runs: Path, small: Shape
) -> None:
    write_run(runs, "demo", "a", shape=small)
    sync(runs)
    write_run(runs, "demo", "b", shape=small)
    count = ("sql", "SELECT count(*) AS n FROM run", "--format", "csv")
    reader = python(HOLD, runs / "sorl.duckdb", "read")
    assert reader.stdout is not None
    assert reader.stdout.readline() == "open\n"
    result = sorl(*count, runs=runs)
    assert (result.exit_code, result.stdout) == (0, "n\n1\n")
    assert f"not synced, showing the rows of the last sync: database '{runs}/sorl.duckdb' is held" in result.stderr
    assert f"PID {reader.pid}" in result.stderr
    reader.communicate(timeout=120)
    writer = python(HOLD, runs / "sorl.duckdb")
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    refused = sorl(*count, runs=runs)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"held open by PID {writer.pid}" in refused.stderr
    writer.communicate(timeout=120)
    assert sorl(*count, runs=runs).stdout == "n\n2\n"


def test_a_folder_that_cannot_be_written_is_one_message(sorl: Any, grid: Path) -> None:
    sorl("ls", runs=grid)  # every import done: the other user below may not reach this interpreter's files
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o555)
        root = os.geteuid() == 0
        if root:  # root may write everywhere
            os.seteuid(65534)
        try:
            result = sorl("ls", runs=Path(place))
        finally:
            if root:
                os.seteuid(0)
            Path(place).chmod(0o700)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"sorl: cannot open database '{place}/sorl.duckdb'")
    assert "can be written" in result.stderr


def test_a_folder_in_the_place_of_the_database_is_one_message(sorl: Any, runs: Path) -> None:
    (runs / "sorl.duckdb").mkdir()
    result = sorl("ls", runs=runs)
    assert result.exit_code == 2
    assert "cannot open database" in result.stderr
    assert "Traceback" not in result.stderr


def test_output_into_a_closed_pipe_is_no_error(grid: Path) -> None:
    command = [sys.executable, "cli.py", "--runs", str(grid), "sql", "FROM range(300000)", "--format", "csv"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"range\n"
    process.stdout.close()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    assert process.wait(timeout=60) in (0, 1)


@pytest.mark.parametrize(
    "verb", [["replay", "--step", "0"], ["diagnose", "--step", "0"], ["eval", "--data", "x.jsonl"]]
)
def test_a_run_whose_folder_was_renamed_is_one_message(sorl: Any, runs: Path, small: Shape, verb: list[str]) -> None:
    write_run(runs, "demo", "ppo-s0", shape=small).rename(runs / "demo" / "renamed")
    result = sorl(verb[0], "ppo-s0", *verb[1:], runs=runs)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"sorl: run 'ppo-s0' has no folder of that name in '{runs}'")


@pytest.mark.parametrize("config", ["{", "[1, 2]", "[" * 5000, '"text"', '{"collapse": 3}'])
def test_a_stored_configuration_that_is_none_is_said_and_the_rest_is_told(
    sorl: Any, runs: Path, small: Shape, config: str
) -> None:
    folder = write_run(runs, "demo", "odd", shape=small)
    write_run(runs, "demo", "usual", shape=small)
    write_status(folder, config=config)
    shown = sorl("show", "odd", runs=runs)
    assert shown.exit_code == 0, shown.output
    assert ("what is stored of it is no JSON table" in shown.stdout) == (config != '{"collapse": 3}')
    judged = sorl("rescan", "--dry-run", runs=runs)
    assert judged.exit_code == 0, judged.output
    assert "left alone: run 'odd'" in judged.stderr
    assert "2 runs judged" in judged.stderr


def test_a_rescan_leaves_a_run_alone_whose_folder_is_gone(sorl: Any, runs: Path, small: Shape) -> None:
    folder = write_run(runs, "demo", "ppo-s0", shape=small)
    write_status(folder, outcome="recovered")
    folder.rename(runs / "demo" / "renamed")
    result = sorl("rescan", runs=runs)
    assert result.exit_code == 0, result.output
    assert "left alone: run 'ppo-s0' has no folder of that name" in result.stderr
    assert not (runs / "demo" / "ppo-s0").exists()


def test_a_plan_beside_an_index_without_runs_is_made(sorl: Any, runs: Path, tmp_path: Path) -> None:
    (runs / "demo").mkdir()
    assert sorl("sync", runs=runs).exit_code == 0
    (tmp_path / "x.toml").write_text('question = "Which is up?"\nseeds = [0]\n[axes]\nalgorithm = ["ppo", "grpo"]\n')
    result = sorl("plan", tmp_path / "x.toml", runs=runs)
    assert result.exit_code == 0, result.output
