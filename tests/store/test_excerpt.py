from __future__ import annotations

import io
import math
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from workbench.spec import InputError
from workbench.store.reader import Reader

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


def test_an_excerpt_that_takes_too_long_is_stopped(grid: Path) -> None:
    began = time.monotonic()
    with pytest.raises(InputError, match=r"stopped after 0\.3 s"):
        Reader(grid, seconds=0.3).excerpt("SELECT count(*) FROM range(1000000000) a, range(1000000) b", **ANY)
    assert time.monotonic() - began < 60


def test_a_question_that_needs_too_much_memory_is_refused(grid: Path) -> None:
    with pytest.raises(InputError, match="Out of Memory"):
        Reader(grid).excerpt("SELECT list(range) FROM range(1000000000)", **ANY)
