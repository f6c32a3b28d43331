from __future__ import annotations

import io
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.store.contents import contents, one
from workbench.spec import InputError
from workbench.store.connect import Busy, writer
from workbench.store.reader import Reader
from workbench.store.sync import sync

# Everything that could leave the tables or change them: each must be refused, and change nothing.
ESCAPES = {
    "copy out": "COPY run TO '{file}'",
    "copy query out": "COPY (SELECT 1) TO '{file}' (FORMAT parquet)",
    "copy in": "COPY run FROM '{secret}'",
    "attach": "ATTACH '{file}' AS other",
    "detach": "DETACH sorl",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "load file": "LOAD '{file}'",
    "pragma": "PRAGMA enable_profiling",
    "pragma version": "PRAGMA version",
    "set": "SET enable_external_access = true",
    "set threads": "SET threads = 64",
    "reset": "RESET enable_external_access",
    "use": "USE memory",
    "csv": "SELECT * FROM read_csv('{secret}')",
    "csv auto": "SELECT * FROM read_csv_auto('{secret}')",
    "sniff": "SELECT * FROM sniff_csv('{secret}')",
    "parquet": "SELECT * FROM read_parquet('{secret}')",
    "parquet metadata": "SELECT * FROM parquet_metadata('{secret}')",
    "parquet schema": "SELECT * FROM parquet_schema('{secret}')",
    "text": "SELECT * FROM read_text('{secret}')",
    "blob": "SELECT * FROM read_blob('{secret}')",
    "json": "SELECT * FROM read_json('{secret}')",
    "json objects": "SELECT * FROM read_json_objects('{secret}')",
    "ndjson": "SELECT * FROM read_ndjson_auto('{secret}')",
    "file as a table": "SELECT * FROM '{secret}'",
    "file with a known ending": "SELECT * FROM '{secret}.csv'",
    "glob": "SELECT * FROM glob('{folder}/*')",
    "http csv": "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
    "http parquet": "SELECT * FROM 'http://127.0.0.1:9/x.parquet'",
    "http blob": "SELECT * FROM read_blob('https://127.0.0.1:9/x')",
    "s3": "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "another database": "SELECT * FROM sqlite_scan('{secret}', 't')",
    "duckdb file": "SELECT * FROM read_duckdb('{folder}/sorl.duckdb')",
    "postgres": "SELECT * FROM postgres_scan('host=127.0.0.1', 'public', 't')",
    "two statements": "SELECT 1; SELECT 2",
    "hidden second statement": "SELECT 1; DROP TABLE run",
    "after a comment": "SELECT 1 -- \n; DELETE FROM run",
    "call": "CALL pragma_version()",
    "call table function": "CALL enable_logging()",
    "logging by select": "SELECT * FROM enable_logging()",
    "export": "EXPORT DATABASE '{folder}/export'",
    "import": "IMPORT DATABASE '{folder}'",
    "getenv": "SELECT getenv('HOME')",
    "insert": "INSERT INTO run (run_id) VALUES ('ghost')",
    "update": "UPDATE run SET status = 'finished'",
    "delete": "DELETE FROM run",
    "insert in a with": "WITH x AS (INSERT INTO run (run_id) VALUES ('ghost') RETURNING run_id) SELECT * FROM x",
    "delete in a with": "WITH x AS (DELETE FROM run RETURNING run_id) SELECT * FROM x",
    "explain analyze insert": "EXPLAIN ANALYZE INSERT INTO run (run_id) VALUES ('ghost')",
    "explain analyze copy": "EXPLAIN ANALYZE COPY run TO '{file}'",
    "merge": "MERGE INTO run USING run r2 ON run.run_id = r2.run_id WHEN MATCHED THEN DELETE",
    "truncate": "TRUNCATE run",
    "drop": "DROP TABLE run",
    "create": "CREATE TABLE mine AS SELECT 1",
    "create temp": "CREATE TEMP TABLE mine AS SELECT 1",
    "create or replace view": "CREATE OR REPLACE VIEW outcome AS SELECT 1",
    "create macro": "CREATE MACRO f(x) AS x",
    "create secret": "CREATE SECRET s (TYPE http)",
    "alter": "ALTER TABLE run DROP COLUMN status",
    "comment": "COMMENT ON TABLE run IS 'mine'",
    "begin": "BEGIN",
    "checkpoint": "CHECKPOINT",
    "force checkpoint by select": "SELECT * FROM force_checkpoint()",
    "vacuum": "VACUUM",
    "prepare": "PREPARE p AS SELECT 1",
    "execute": "EXECUTE p",
    "deallocate": "DEALLOCATE p",
    "python variable": "SELECT * FROM frame_of_the_caller",
    "query function": "SELECT * FROM query('DROP TABLE run')",
    "query function on a file": "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
    "serialised plan": "SELECT * FROM json_execute_serialized_sql('{{}}')",
    "nothing": "",
    "only a comment": "-- SELECT 1",
}


@pytest.fixture(scope="module")
def before(grid: Path) -> dict[str, list[str]]:
    return contents(grid)


@pytest.mark.parametrize("attempt", ESCAPES.values(), ids=ESCAPES)
def test_user_sql_can_only_look_at_the_tables(
    grid: Path, before: dict[str, list[str]], tmp_path: Path, attempt: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password\n")
    frame_of_the_caller = pd.DataFrame({"a": [1]})
    text = attempt.format(file=tmp_path / "written", secret=secret, folder=tmp_path)
    with pytest.raises(InputError) as refusal:
        Reader(grid).rows(text, limit=10)
    assert "Traceback" not in str(refusal.value)
    assert "password" not in str(refusal.value)
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]
    assert len(frame_of_the_caller) == 1
    assert one(grid, "SELECT count(*) FROM run") == len(before["run"])


def test_after_all_attempts_the_database_is_what_it_was(grid: Path, before: dict[str, list[str]]) -> None:
    assert contents(grid) == before


@pytest.mark.parametrize(
    "question",
    [
        "SELECT count(*) FROM run",
        "  with x as (select 1 as a) select * from x;",
        "FROM run",
        "VALUES (1), (2)",
        "TABLE run",
        "DESCRIBE run",
        "SHOW TABLES",
        "SUMMARIZE step",
        "EXPLAIN SELECT * FROM run",
        "EXPLAIN ANALYZE SELECT * FROM run",
        "PIVOT run ON status IN ('finished', 'failed') USING count(*) GROUP BY arm",
        "-- a comment first\nSELECT 1",
        "SELECT config->>'$.learn.staleness' FROM run",
        "SELECT unnest(log_ratio) FROM token LIMIT 3",
    ],
)
def test_every_way_to_ask_is_allowed(grid: Path, question: str) -> None:
    assert Reader(grid).rows(question).columns


def test_no_secret_on_disk_is_listed(grid: Path) -> None:
    assert Reader(grid).rows("SELECT * FROM duckdb_secrets()").rows == []


def test_a_pivot_without_values_says_what_to_type(grid: Path) -> None:
    with pytest.raises(InputError, match="a PIVOT needs its values"):
        Reader(grid).rows("PIVOT run ON status USING count(*)")


@pytest.mark.parametrize("ask", [Reader.rows, partial(Reader.excerpt, rows=100, size=10**6)], ids=["rows", "excerpt"])
def test_a_question_that_runs_too_long_is_stopped(grid: Path, ask: Any) -> None:
    began = time.monotonic()
    with pytest.raises(InputError, match=r"stopped after 0\.3 s"):
        ask(Reader(grid, seconds=0.3), "SELECT count(*) FROM range(1000000000) a, range(1000000) b")
    assert time.monotonic() - began < 60


def test_a_row_limit_bounds_the_work_not_only_the_answer(grid: Path) -> None:
    began = time.monotonic()
    answer = Reader(grid).rows("SELECT * FROM range(100000000000)", limit=5)
    assert [row[0] for row in answer.rows] == [0, 1, 2, 3, 4]
    assert answer.cut
    assert time.monotonic() - began < 60


def test_a_limit_that_is_not_reached_cuts_nothing(grid: Path) -> None:
    answer = Reader(grid).rows("SELECT * FROM range(5)", limit=5)
    assert (len(answer.rows), answer.cut) == (5, False)
    empty = Reader(grid).query("SELECT run_id, step FROM step WHERE step < 0")
    assert list(empty.columns) == ["run_id", "step"]
    assert empty.empty


def test_values_travel_beside_the_question_never_in_it(grid: Path) -> None:
    hostile = "' OR 1=1 --"
    assert Reader(grid).rows("SELECT * FROM run WHERE run_id = ?", [hostile]).rows == []
    named = Reader(grid).rows("SELECT $word AS word", {"word": hostile})
    assert named.rows == [(hostile,)]


def test_null_is_none_and_nan_is_nan(grid: Path) -> None:
    row = Reader(grid).rows("SELECT NULL::DOUBLE, 'nan'::DOUBLE, 'inf'::DOUBLE, [1.0, NULL]").rows[0]
    assert row[0] is None
    assert math.isnan(row[1])
    assert math.isinf(row[2])
    assert row[3] == [1.0, None]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("SELECT * FROM runn", 'Did you mean "run"'),
        ("SELECT ratio_gio FROM turn", "ratio_geo"),
        ("SELECT FROM WHERE", "syntax error"),
        ("SELECT count(*) FROM run WHERE seed = ?", "parameter"),
        ("SELECT 'abc'::INT", "Could not convert"),
    ],
)
def test_a_mistake_is_named_with_the_nearest_name(grid: Path, question: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Reader(grid).rows(question)


def test_without_a_database_it_says_what_builds_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`sorl sync` builds it"):
        Reader(tmp_path).rows("SELECT 1")


def test_a_reader_leaves_the_database_free_for_the_next_writer(grid: Path, runs: Path) -> None:
    sync(runs)
    reader = Reader(runs)
    reader.rows("SELECT 1")
    with pytest.raises(InputError):
        reader.rows("SELECT nonsense")
    sync(runs, seconds=0.0)
    (runs / "sorl.duckdb").unlink()
    assert sync(runs, seconds=0.0).rows == 0


def test_a_few_questions_share_an_opening_and_then_let_go(grid: Path) -> None:
    reader, free = Reader(grid), []
    with reader.together():
        free.append(_is_free(grid))
        reader.rows("SELECT 1")
        free.append(_is_free(grid))
        with reader.together():
            reader.rows("SELECT 1")
        free.append(_is_free(grid))  # the inner block ends no outer one
    assert [*free, _is_free(grid)] == [True, False, False, True]
    with pytest.raises(InputError), reader.together():
        reader.rows("SELECT nonsense")
    assert _is_free(grid)


def _is_free(runs: Path) -> bool:
    try:
        with writer(runs, 0.0):
            return True
    except Busy:
        return False


def test_every_column_is_selected_without_quotes(grid: Path) -> None:
    columns = Reader(grid).rows("SELECT table_name, column_name FROM information_schema.columns").rows
    assert len(columns) > 100
    for table in {table for table, _ in columns}:
        names = ", ".join(column for name, column in columns if name == table)
        Reader(grid).rows(f"SELECT {names} FROM {table} LIMIT 0")


# Excerpts: the beginning of an answer as an Arrow table.

ANY = {"rows": 100, "size": 10**6}


def test_an_excerpt_holds_the_first_rows_and_says_that_there_are_more(grid: Path) -> None:
    found = Reader(grid).excerpt("SELECT * FROM range(100000000000) AS t(i)", rows=5000, size=10**9)
    assert found.table.column("i").to_pylist() == list(range(5000))
    assert found.cut


def test_an_answer_of_exactly_the_limit_is_not_cut(grid: Path) -> None:
    for rows in (5, 2048, 4096):
        found = Reader(grid).excerpt(f"FROM range({rows})", rows=rows, size=10**9)
        assert (found.table.num_rows, found.cut) == (rows, False)


def test_wide_rows_end_an_excerpt_before_they_fill_the_memory(grid: Path) -> None:
    found = Reader(grid).excerpt("SELECT repeat('x', 1000) FROM range(1000000)", rows=10**6, size=3 * 10**6)
    assert found.cut
    assert found.table.nbytes < 10 * 10**6


def test_an_empty_answer_keeps_its_columns(grid: Path) -> None:
    found = Reader(grid).excerpt("SELECT run_id, step FROM step WHERE step < 0", **ANY)
    assert (found.table.column_names, found.table.num_rows, found.cut) == (["run_id", "step"], 0, False)


def test_null_and_nan_stay_apart(grid: Path) -> None:
    values = Reader(grid).excerpt("SELECT unnest([NULL, 'nan', '-inf']::DOUBLE[]) AS x", **ANY).table.column("x")
    none, nan, infinity = values.to_pylist()
    assert none is None
    assert math.isnan(nan)
    assert infinity == -math.inf


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("{'x': 1}", "{'x': 1}"),
        ("MAP {'a': 1}", "[('a', 1)]"),
        ("[[1, 2], NULL]", "[[1, 2], None]"),
        ("'x'::ENUM('x', 'y')", "x"),
        ("union_value(k := 1)", "1"),
        ("'a'::BLOB", "b'a'"),
        ("[1.5, NULL]::DOUBLE[]", [1.5, None]),
        ("NULL", None),
    ],
)
def test_every_type_can_be_shown_and_written_to_a_file(grid: Path, value: str, shown: object) -> None:
    table = Reader(grid).excerpt(f"SELECT {value} AS x, INTERVAL 1 DAY AS span, 1::BIGNUM AS big", **ANY).table
    assert table.column("x").to_pylist() == [shown]
    pq.write_table(table, io.BytesIO())


def test_columns_of_one_name_are_told_apart(grid: Path) -> None:
    found = Reader(grid).excerpt("SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a", **ANY).table
    assert dict(zip(found.column_names, [c[0].as_py() for c in found.columns], strict=True)) == {
        "a": 1, "a_2": 2, "a_2_2": 3, "a_3": 4,
    }  # fmt: skip


def test_a_mistake_is_told_with_its_line(grid: Path) -> None:
    with pytest.raises(InputError, match=r"LINE 2: +ratio_gio"):
        Reader(grid).excerpt("SELECT\n  ratio_gio FROM turn", **ANY)


def test_a_mistake_that_shows_after_the_first_rows_is_a_message(grid: Path) -> None:
    late = "SELECT CASE WHEN range > 5000 THEN ('abc' || range)::INT END FROM range(10000)"
    with pytest.raises(InputError, match="Could not convert string 'abc5001'"):
        Reader(grid).excerpt(late, rows=10_000, size=10**9)


def test_a_question_that_needs_too_much_memory_is_refused(grid: Path) -> None:
    with pytest.raises(InputError, match="Out of Memory"):
        Reader(grid).excerpt("SELECT list(range) FROM range(1000000000)", **ANY)
