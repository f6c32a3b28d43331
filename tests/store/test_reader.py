"""User SQL can look at the tables and nothing else; answers as values, and excerpts of them as
Arrow tables.
"""

import io
import math
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from sorl.spec import InputError
from sorl.store.connect import Busy, writer
from sorl.store.reader import Reader
from sorl.store.sync import sync
from tests.store.contents import contents, one

# Everything that could leave the tables or change them: each must be refused, and change nothing.
ESCAPES = (
    # files
    "COPY run TO '{file}'",
    "COPY (SELECT 1) TO '{file}' (FORMAT parquet)",
    "COPY run FROM '{secret}'",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_csv_auto('{secret}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM read_parquet('{secret}')",
    "SELECT * FROM parquet_metadata('{secret}')",
    "SELECT * FROM parquet_schema('{secret}')",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_json_objects('{secret}')",
    "SELECT * FROM read_ndjson_auto('{secret}')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM '{secret}.csv'",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
    "EXPLAIN ANALYZE COPY run TO '{file}'",
    "EXPORT DATABASE '{folder}/export'",
    "IMPORT DATABASE '{folder}'",
    # the network and other databases
    "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
    "SELECT * FROM 'http://127.0.0.1:9/x.parquet'",
    "SELECT * FROM read_blob('https://127.0.0.1:9/x')",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT * FROM sqlite_scan('{secret}', 't')",
    "SELECT * FROM read_duckdb('{folder}/sorl.duckdb')",
    "SELECT * FROM postgres_scan('host=127.0.0.1', 'public', 't')",
    "ATTACH '{file}' AS other",
    "DETACH sorl",
    # extensions, settings, the process
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{file}'",
    "PRAGMA enable_profiling",
    "PRAGMA version",
    "SET enable_external_access = true",
    "SET threads = 64",
    "RESET enable_external_access",
    "USE memory",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "SELECT * FROM enable_logging()",
    "SELECT getenv('HOME')",
    "SELECT * FROM frame_of_the_caller",
    "CREATE SECRET s (TYPE http)",
    # more than one statement, or none
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE run",
    "SELECT 1 -- \n; DELETE FROM run",
    "",
    "-- SELECT 1",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "SELECT * FROM query('DROP TABLE run')",
    "SELECT * FROM json_execute_serialized_sql('{{}}')",
    # changes
    "INSERT INTO run (run_id) VALUES ('ghost')",
    "UPDATE run SET status = 'finished'",
    "DELETE FROM run",
    "WITH x AS (INSERT INTO run (run_id) VALUES ('ghost') RETURNING run_id) SELECT * FROM x",
    "WITH x AS (DELETE FROM run RETURNING run_id) SELECT * FROM x",
    "EXPLAIN ANALYZE INSERT INTO run (run_id) VALUES ('ghost')",
    "MERGE INTO run USING run r2 ON run.run_id = r2.run_id WHEN MATCHED THEN DELETE",
    "TRUNCATE run",
    "DROP TABLE run",
    "CREATE TABLE mine AS SELECT 1",
    "CREATE TEMP TABLE mine AS SELECT 1",
    "CREATE OR REPLACE VIEW outcome AS SELECT 1",
    "CREATE MACRO f(x) AS x",
    "ALTER TABLE run DROP COLUMN status",
    "COMMENT ON TABLE run IS 'mine'",
    "BEGIN",
    "CHECKPOINT",
    "SELECT * FROM force_checkpoint()",
    "VACUUM",
)
ALL = {"rows": 10_000, "size": 10**9}
BOTH = pytest.mark.parametrize("ask", [Reader.rows, partial(Reader.excerpt, **ALL)], ids=["rows", "excerpt"])


@pytest.fixture(scope="module")
def before(grid: Path) -> dict[str, list[str]]:
    return contents(grid)


@pytest.mark.parametrize("attempt", ESCAPES)
def test_user_sql_can_only_look_at_the_tables(grid, before, tmp_path, attempt):
    secret = tmp_path / "secret"
    secret.write_text("password\n")
    frame_of_the_caller = pd.DataFrame({"a": [1]})
    text = attempt.format(file=tmp_path / "written", secret=secret, folder=tmp_path)
    with pytest.raises(InputError) as refusal:
        Reader(grid).rows(text, limit=10)
    assert not [word for word in ("Traceback", "password") if word in str(refusal.value)]
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]
    assert len(frame_of_the_caller) == 1
    assert one(grid, "SELECT count(*) FROM run") == len(before["run"])


def test_after_all_attempts_the_database_is_what_it_was(grid, before):
    assert contents(grid) == before
    assert Reader(grid).rows("SELECT * FROM duckdb_secrets()").rows == [], "no secret on disk is listed"


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
        "-- a comment\nSELECT 1",
        "SELECT unnest(log_ratio) FROM token LIMIT 3",
        "PIVOT run ON status IN ('finished', 'failed') USING count(*) GROUP BY arm",
        "SELECT config->>'$.learn.staleness' FROM run",
    ],
)
def test_every_way_to_ask_is_allowed(grid, question):
    assert Reader(grid).rows(question).columns


@BOTH
def test_a_question_that_runs_too_long_is_stopped(grid, ask):
    began = time.monotonic()
    with pytest.raises(InputError, match=r"stopped after 0\.3 s"):
        ask(Reader(grid, seconds=0.3), "SELECT count(*) FROM range(1000000000) a, range(1000000) b")
    assert time.monotonic() - began < 60


@BOTH
@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("SELECT * FROM runn", 'Did you mean "run"'),
        ("SELECT\n  ratio_gio FROM turn", r"ratio_geo[\s\S]*LINE 2: +ratio_gio"),
        ("SELECT FROM WHERE", "syntax error"),
        ("SELECT count(*) FROM run WHERE seed = ?", "parameter"),
        ("SELECT 'abc'::INT", "Could not convert"),
        # late
        (
            "SELECT CASE WHEN range > 5000 THEN ('abc' || range)::INT END FROM range(10000)",
            "string 'abc5001'",
        ),
        ("PIVOT run ON status USING count(*)", "a PIVOT needs its values"),
        ("SELECT list(range) FROM range(1000000000)", "Out of Memory"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_the_nearest_name(grid, ask, question, words):
    with pytest.raises(InputError, match=words):
        ask(Reader(grid), question)


def test_without_a_database_it_says_what_builds_one(tmp_path):
    with pytest.raises(InputError, match="`sorl sync` builds it"):
        Reader(tmp_path).rows("SELECT 1")


def test_values_travel_beside_the_question_never_in_it(grid):
    hostile = "' OR 1=1 --"
    assert Reader(grid).rows("SELECT * FROM run WHERE run_id = ?", [hostile]).rows == []
    assert Reader(grid).rows("SELECT $word AS word", {"word": hostile}).rows == [(hostile,)]


def test_a_row_limit_bounds_the_work_and_says_what_it_cut(grid):
    began = time.monotonic()
    reader = Reader(grid)
    endless = "SELECT * FROM range(100000000000) AS t(i)"
    assert reader.rows(endless, limit=5)[1:] == ([(i,) for i in range(5)], True)
    excerpt = reader.excerpt(endless, rows=5000, size=10**9)
    assert (excerpt.table.column("i").to_pylist(), excerpt.cut) == (list(range(5000)), True)
    wide = reader.excerpt("SELECT repeat('x', 1000) FROM range(1000000)", rows=10**6, size=3 * 10**6)
    assert wide.cut
    assert wide.table.nbytes < 10 * 10**6
    assert time.monotonic() - began < 60


def test_an_answer_of_exactly_the_limit_or_none_is_not_cut_and_keeps_its_columns(grid):
    reader = Reader(grid)
    none = "SELECT run_id, step FROM step WHERE step < 0"
    for rows in (5, 2048, 4096):
        answer = reader.rows(f"FROM range({rows})", limit=rows)
        excerpt = reader.excerpt(f"FROM range({rows})", rows=rows, size=10**9)
        assert (len(answer.rows), answer.cut, excerpt.table.num_rows, excerpt.cut) == (
            rows,
            False,
            rows,
            False,
        )
    assert (list(reader.query(none).columns), len(reader.query(none))) == (["run_id", "step"], 0)
    empty = reader.excerpt(none, **ALL)
    assert (empty.table.column_names, empty.table.num_rows, empty.cut) == (["run_id", "step"], 0, False)


def test_null_is_none_and_nan_is_nan_in_values_and_in_excerpts(grid):
    text = "SELECT NULL::DOUBLE AS a, 'nan'::DOUBLE AS b, '-inf'::DOUBLE AS c, [1.0, NULL] AS d"
    (row,) = Reader(grid).rows(text).rows
    (shown,) = Reader(grid).excerpt(text, **ALL).table.to_pylist()
    for none, nan, infinity, values in (row, shown.values()):
        assert (none, infinity, values) == (None, -math.inf, [1.0, None])
        assert math.isnan(nan)


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
def test_every_type_can_be_shown_and_written_to_a_file(grid, value, shown):
    table = (
        Reader(grid).excerpt(f"SELECT {value} AS x, INTERVAL 1 DAY AS span, 1::BIGNUM AS big", **ALL).table
    )
    assert table.column("x").to_pylist() == [shown]
    pq.write_table(table, io.BytesIO())


def test_columns_of_one_name_are_told_apart_and_every_column_of_ours_is_selected_without_quotes(grid):
    (row,) = Reader(grid).excerpt("SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a", **ALL).table.to_pylist()
    assert row == {"a": 1, "a_2": 2, "a_2_2": 3, "a_3": 4}
    columns = Reader(grid).rows("SELECT table_name, column_name FROM information_schema.columns").rows
    assert len(columns) > 100
    for table in {table for table, _ in columns}:
        names = ", ".join(column for name, column in columns if name == table)
        Reader(grid).rows(f"SELECT {names} FROM {table} LIMIT 0")


def test_a_reader_leaves_the_database_free_for_the_next_writer(runs):
    sync(runs)
    reader = Reader(runs)
    reader.rows("SELECT 1")
    with pytest.raises(InputError):
        reader.rows("SELECT nonsense")
    sync(runs, seconds=0.0)
    (runs / "sorl.duckdb").unlink()
    assert sync(runs, seconds=0.0).rows == 0


def test_a_few_questions_share_an_opening_and_then_let_go(grid):
    def is_free():
        try:
            with writer(grid, 0.0):
                return True
        except Busy:
            return False

    reader = Reader(grid)
    free = []
    with reader.together():
        free.append(is_free())
        reader.rows("SELECT 1")
        free.append(is_free())
        with reader.together():
            reader.rows("SELECT 1")
        free.append(is_free())  # the inner block ends no outer one
    assert [*free, is_free()] == [True, False, False, True]
    with pytest.raises(InputError), reader.together():
        reader.rows("SELECT nonsense")
    assert is_free()
