from __future__ import annotations

import io
import json
import math
import random
import string
import time
import zlib
from base64 import urlsafe_b64encode
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from tests.app.conftest import HOSTILE, Open, Read, assert_literal, figures, html, value
from tests.store.contents import contents
from tests.store.fixture import Shape, write_run
from tests.store.test_reader import ESCAPES
from workbench.app.page import store_of
from workbench.app.screens import sql as module
from workbench.app.screens.sql import (
    LONGEST,
    complete,
    csv_of,
    drawable,
    first_choice,
    fitting_marks,
    numbers,
    packed,
    parquet_of,
    unpacked,
    whole,
)
from workbench.app.store import Store
from workbench.app.text import html_text
from workbench.diagnostics import CATALOGUE
from workbench.spec import TABLES
from workbench.store.reader import saved, saved_query
from workbench.store.schema import views
from workbench.store.sync import sync

SMALL = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)


def mistakes(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html") if "<pre" in element.proto.body)


@pytest.fixture
def put(grid: Path, open_screen: Open) -> AppTest:
    """The screen as it opens."""
    return open_screen("sql", grid)


def ask(app: AppTest, question: str) -> AppTest:
    app.text_area(key="sql").set_value(question)
    return next(b for b in app.button if b.label == "Run").click().run()


def test_it_opens_with_an_answer_its_definitions_and_a_chart(put: AppTest) -> None:
    text = put.text_area(key="sql").value
    assert text == saved_query("ratio_by_turn").sql
    assert max(map(len, text.splitlines())) <= 62, "the editor breaks longer lines in a window of 1280 pixels"
    assert put.selectbox(key="saved").value == "ratio_by_turn"
    assert len(put.dataframe[0].value) == 16
    layout = json.loads(figures(put)[0])["layout"]
    assert layout["yaxis"]["title"]["text"] == "ratio_geo (ratio)"
    assert layout["xaxis"]["dtick"] == 1, "no turn lies between two turns"
    assert "exp(mean delta of the turn)" in layout["annotations"][0]["text"]
    assert "One row per run and training iteration." in html(put)


def test_every_saved_question_has_an_answer_and_is_readable_in_the_address(put: AppTest) -> None:
    app = put
    for query in saved():
        app = app.selectbox(key="saved").set_value(query.name).run()
        assert not app.exception, query.name
        assert mistakes(app) == "", query.name
        assert app.text_area(key="sql").value == value(app, "sql") == query.sql


def test_a_question_its_chart_and_its_table_are_taken_from_the_address(grid: Path, open_screen: Open) -> None:
    text = "SELECT arm, seed, final_success, steps FROM run WHERE status = 'finished'"
    address = {"sql": text, "table": "culprit", "chart_x": "arm", "chart_y": "final_success", "chart_colour": "-",
               "chart_mark": "points", "scale": "linear"}  # fmt: skip
    app = open_screen("sql", grid, **address)
    assert not app.exception
    assert {name: value(app, name) for name in address} == address
    assert len(app.dataframe[0].value) == 6
    trace = json.loads(figures(app)[0])["data"][0]
    assert (trace["type"], trace["mode"]) == ("scatter", "markers")
    assert "its rank in the step by ratio mass" in html(app)


def test_a_link_carries_a_long_question_and_one_too_long_for_it_is_asked_all_the_same(
    grid: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " UNION ALL ".join(f"SELECT {i} AS n, 'a long question' AS words" for i in range(100))
    address = packed(text)
    assert address is not None
    app = open_screen("sql", grid, sql=address)
    assert app.text_area(key="sql").value == text
    assert len(app.dataframe[0].value) == 100
    assert value(app, "sql") == address
    monkeypatch.setattr(module, "_READABLE", 10)
    monkeypatch.setattr(module, "_PACKED", 10)
    app = ask(app, "SELECT 'long' AS word")
    assert len(app.dataframe[0].value) == 1
    assert "sql" not in app.query_params
    assert "too long for an address" in html(app)


def test_a_broken_link_is_told_and_nothing_in_the_editor_asks_for_a_select(grid: Path, open_screen: Open) -> None:
    app = open_screen("sql", grid, sql="packed:!!")
    assert not app.exception
    assert "Ignored in the address: sql" in html(app)
    assert "Write a SELECT" in html(ask(app, "  "))


def test_the_screen_can_only_look_at_the_tables_which_stay_what_they_were(tmp_path: Path, open_screen: Open) -> None:
    runs, secret = tmp_path / "runs", tmp_path / "secret"
    write_run(runs, "demo", "a", shape=SMALL)
    sync(runs)
    secret.write_text("password\n")
    before, app = contents(runs), open_screen("sql", runs)
    for attempt in ESCAPES:
        app = ask(app, attempt.format(file=tmp_path / "written", secret=secret, folder=tmp_path))
        assert not app.exception, attempt
        assert not app.dataframe, attempt
        told = Read(mistakes(app)).text
        assert bool(told) == bool(attempt), attempt
        assert not [words for words in ("password", "Traceback") if words in told], attempt
    assert contents(runs) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs", "secret"]
    assert sorted(p.name for p in runs.iterdir()) == ["demo", "sorl.duckdb"]


def test_a_mistake_is_told_with_the_line_and_the_nearest_columns_or_their_tables(put: AppTest, grid: Path) -> None:
    told = Read(mistakes(ask(put, "SELECT ratio_gio\nFROM turn"))).text
    for words in ('"ratio_geo"', "LINE 1: SELECT ratio_gio", "^^^"):
        assert words in told
    for question in ("SELECT grad_norm FROM step", "SELECT step.grad_norm FROM step", "SELECT s.grad_norm FROM step s"):
        assert "grad_norm is a column of minibatch." in Read(mistakes(ask(put, question))).text
    assert "There is ratio_geo (" in Read(mistakes(ask(put, "SELECT ratio_gio FROM run"))).text


def test_every_table_view_and_column_is_listed_with_its_definition(grid: Path) -> None:
    tables = Store(grid).query("tables").set_index("name")
    assert set(tables.index) == {t.name for t in TABLES} | set(views())
    assert tables.loc["turn", "grain"] == "One row per run, step, epoch, trajectory and turn: the turn ledger."
    columns = Store(grid).query("columns").set_index(["table", "name"])
    for d in CATALOGUE:
        assert d.description in columns.loc[(d.table, d.name), "description"]
    assert "exp(mean delta" in columns.loc[("culprit", "ratio_geo"), "description"]


def test_a_question_too_long_is_stopped_and_told(put: AppTest, grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_of(str(grid))[0].reader, "seconds", 0.3)
    began = time.monotonic()
    app = ask(put, "SELECT count(*) FROM range(1000000000) a, range(1000000) b")
    assert "stopped after 0.3 s" in mistakes(app)
    assert time.monotonic() - began < 60


def test_a_large_answer_is_cut_its_files_hold_more_and_keep_null_nan_and_lists(
    put: AppTest, grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", 50)
    app = ask(put, "SELECT range AS n FROM range(3000)")
    assert len(app.dataframe[0].value) == 50
    assert "The first 50 rows" in html(app)
    assert [b.label for b in app.get("download_button")][:2] == ["CSV", "Parquet"]
    assert whole(store_of(str(grid))[0], put.session_state["sorl asked"]).num_rows == 3000
    ask(put, "SELECT unnest([NULL, 'nan'::DOUBLE, 1.5]) AS x, [1, NULL] AS l, 'a,\"b\"' AS t")
    table = whole(store_of(str(grid))[0], put.session_state["sorl asked"])
    assert csv_of(table).decode().splitlines() == [
        "x,l,t", ',"[1, null]","a,""b"""', 'nan,"[1, null]","a,""b"""', '1.5,"[1, null]","a,""b"""',
    ]  # fmt: skip
    assert str(pq.read_table(io.BytesIO(parquet_of(table))).to_pylist()) == str(table.to_pylist())


def test_new_rows_are_shown_at_once_where_the_question_is_quick_and_on_demand_where_it_is_not(
    tmp_path: Path, open_screen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.app.page._PATIENCE", 30.0)
    write_run(tmp_path, "demo", "a", shape=SMALL)
    app = open_screen("sql", tmp_path, sql="SELECT count(*) AS n FROM step")
    assert app.dataframe[0].value["n"].tolist() == [12]
    write_run(tmp_path, "demo", "b", shape=SMALL, seed=1)
    sync(tmp_path)
    assert app.run().dataframe[0].value["n"].tolist() == [24]
    monkeypatch.setattr(module, "_QUICK", -1.0)
    write_run(tmp_path, "demo", "c", shape=SMALL, seed=2)
    sync(tmp_path)
    app.run()
    assert app.dataframe[0].value["n"].tolist() == [24]
    assert "it does not rerun by itself" in html(app)
    again = next(b for b in app.button if b.label == "Ask again").click().run()
    assert again.dataframe[0].value["n"].tolist() == [36]


def test_hostile_names_and_values_stay_text(put: AppTest) -> None:
    app = put
    for text in HOSTILE:
        name, quoted = text.replace('"', '""'), text.replace("'", "''")
        app = ask(app, f"SELECT '{quoted}' AS \"{name}\", 1.5 AS \"{name} n\", 2 AS seed UNION ALL SELECT 'b', 2.5, 3")
        assert_literal(app)
        assert app.dataframe[0].value.iloc[0, 0] == text
        told = mistakes(ask(app, f'SELECT "{name}" FROM run'))
        assert set(Read(told).tags) == {"pre"}
        assert html_text(text) in told or "LINE" in told


def test_numbers_are_shown_in_few_figures_unless_that_falsifies_them() -> None:
    for values, shown in (((0.1234567, None, math.nan, math.inf), "%.6g"), ((123456789.123, 1e-3), "%.15g")):
        assert module.figures(pa.chunked_array([pa.array(values, pa.float64())])) == shown


# A question in the address.

DEFAULT = "SELECT 1"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400))
def test_any_question_survives_the_way_through_an_address(text: str) -> None:
    for question in (text, f"packed:{text}"):
        address = packed(question)
        assert address is not None
        assert unpacked([address], DEFAULT) == (question, [])
    assert unpacked([], DEFAULT) == (DEFAULT, [])
    assert packed("".join(random.Random(0).choices(string.printable, k=LONGEST))) is None, "too long for any address"


@pytest.mark.parametrize(
    "given",
    [
        "packed:", "packed:!!!", "packed:AAAA", "packed:eJw", "packed:\ud800", "x" * (LONGEST + 1),
        "packed:" + urlsafe_b64encode(zlib.compress(b"x" * 10**8)).decode(),  # 100 MB in 100 kB
        "packed:" + urlsafe_b64encode(zlib.compress(b"\xff\xfe")).decode(),
        "packed:" + urlsafe_b64encode(zlib.compress(b"SELECT 1")[:-3]).decode(),
    ],
    ids=["empty", "no base64", "no zlib", "cut", "surrogate", "too long", "bomb", "no text", "without its end"],
)  # fmt: skip
def test_what_cannot_be_read_is_the_default_and_a_note(given: str) -> None:
    assert unpacked([given], DEFAULT) == (DEFAULT, ["sql, which is cut off or too long"])


# The chart.


def test_decimals_are_numbers_truth_values_are_texts_and_lists_are_left_out() -> None:
    table = pa.table(
        {"n": [Decimal(3), None], "ok": [True, None], "l": [[1], [2]], "none": pa.nulls(2), "t": ["a", "b"]}
    )
    frame = drawable(table)
    assert list(frame.columns) == ["n", "ok", "t"]
    assert numbers(frame) == ["n"]
    assert frame["ok"].tolist() == ["true", None]


@pytest.mark.parametrize(
    ("columns", "choice"),
    [
        ({"arm": ["a", "b"], "turn_index": [1, 2], "ratio_geo": [0.1, 0.2], "clip_frac": [0.1, 0.2]},
         ("turn_index", "ratio_geo", "arm")),
        ({"arm": ["a", "b"], "turn_index": [1, 2], "step": [1, 2], "kl": [1.0, 2.0]}, ("step", "kl", "arm")),
        ({"arm": ["a", "b"], "seconds": [1.0, 2.0]}, ("arm", "seconds", "")),
        ({"step": [1, 2], "kl": [1.0, 2.0]}, ("step", "kl", "")),
        ({"step": [1, 2], "arm": ["a", "b"]}, ("arm", "step", "")),
        ({"a": [1, 2], "b": [3, 4]}, ("a", "b", "")),
        ({"text": ["x", "y"]}, ("text", "", "")),
        ({"n": [1, 2]}, ("n", "", "")),
        ({}, ("", "", "")),
        ({"question": [f"q{i}" for i in range(40)], "step": range(40), "reward": [0.5] * 40}, ("step", "reward", "")),
    ],
)  # fmt: skip
def test_the_first_axes_are_what_the_answer_is_about(
    columns: dict[str, list[Any]], choice: tuple[str, str, str]
) -> None:
    assert first_choice(pd.DataFrame(columns)) == choice


def test_rows_that_share_an_x_are_points_and_a_row_is_drawn_where_all_its_values_are_finite() -> None:
    frame = pd.DataFrame({"step": [1, 1, 2, 2], "arm": ["a", "b", "a", "b"], "kl": [1.0, 2.0, 3.0, 4.0]})
    assert fitting_marks(frame, "step", "arm") == ["line", "points", "bars"]
    assert fitting_marks(frame, "step", "") == fitting_marks(frame, "arm", "") == ["points"]
    assert fitting_marks(frame.head(2), "arm", "arm") == ["bars", "points"]
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "y": [1.0, math.nan, math.inf, 2.0], "arm": ["a", "a", "a", None]})
    assert complete(frame, ["x", "y", "arm"])["x"].tolist() == [1]
    assert complete(frame, ["x", "y"])["x"].tolist() == [1, 4]
