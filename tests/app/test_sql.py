import io
import math
import random
import re
import string
import time
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit import runtime
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

from sorl.app import export
from sorl.app.page import store_of
from sorl.app.queries import Store
from sorl.app.screens import sql
from sorl.app.text import html_text
from sorl.measures import CATALOGUE
from sorl.spec import TABLES
from sorl.store.reader import saved, saved_query
from sorl.store.schema import views
from sorl.store.sync import sync
from tests.app.conftest import HOSTILE, SMALL, Open, Patch, Read, Visit, assert_literal, press
from tests.store.contents import contents
from tests.store.fixture import write_run
from tests.store.test_reader import ESCAPES


def mistakes(app: Visit) -> str:
    return "".join(element.proto.body for element in app.get("html") if "<pre" in element.proto.body)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: Patch) -> None:
    """Wait for every answer, also on a busy machine."""
    monkeypatch.setattr(sql, "_AT_ONCE", 60.0)


@pytest.fixture
def put(open_screen: Open) -> Visit:
    """The screen as it opens."""
    return open_screen("sql")


def ask(app: Visit, question: str) -> Visit:
    app.text_area(key="sql").set_value(question)
    return press(app, "Run")


def test_it_opens_with_an_answer_its_definitions_and_a_chart(put: Visit) -> None:
    text = put.text_area(key="sql").value
    assert text == saved_query("ratio_by_turn").sql
    assert max(map(len, text.splitlines())) <= 62, "the editor breaks longer lines in a window of 1280 pixels"
    assert (put.selectbox(key="saved").value, len(put.dataframe[0].value)) == ("ratio_by_turn", 16)
    layout = put.figures[0]["layout"]
    assert layout["yaxis"]["title"]["text"] == "ratio_geo (ratio)"
    assert layout["xaxis"]["dtick"] == 1, "no turn lies between two turns"
    assert "exp(mean delta of the turn)" in layout["annotations"][0]["text"]
    assert "One row per run and training iteration." in put.source


def test_every_saved_question_has_an_answer_and_is_readable_in_the_address(put: Visit) -> None:
    for query in saved():
        app = put.selectbox(key="saved").set_value(query.name).run()
        assert (mistakes(app), app.text_area(key="sql").value, app.value("sql")) == ("", query.sql, query.sql)


def test_a_question_its_chart_and_its_table_are_taken_from_the_address(open_screen: Open) -> None:
    address = {
        "sql": "SELECT arm, seed, final_success, steps FROM run WHERE status = 'finished'",
        "table": "culprit",
        "chart_x": "arm",
        "chart_y": "final_success",
        "chart_colour": "-",
        "chart_mark": "points",
        "scale": "linear",
    }
    app = open_screen("sql", **address)
    assert {name: app.value(name) for name in address} == address
    assert len(app.dataframe[0].value) == 6
    trace = app.figures[0]["data"][0]
    assert (trace["type"], trace["mode"]) == ("scatter", "markers")
    assert "its rank in the step by ratio mass" in app.source


def test_a_link_carries_a_long_query_and_one_too_long_or_broken_is_told(
    open_screen: Open, monkeypatch: Patch
) -> None:
    text = " UNION ALL ".join(f"SELECT {i} AS n, 'a long question' AS words" for i in range(100))
    app = open_screen("sql", sql=sql.packed(text))
    assert (app.text_area(key="sql").value, app.value("sql")) == (text, sql.packed(text))
    assert len(app.dataframe[0].value) == 100
    monkeypatch.setattr(sql, "_READABLE", 10)
    monkeypatch.setattr(sql, "_PACKED", 10)
    app = ask(app, "SELECT 'long' AS word")
    assert len(app.dataframe[0].value) == 1, "it is asked all the same"
    assert "sql" not in app.query_params
    assert "too long for an address" in app.source
    app = open_screen("sql", sql="packed:!!")
    assert "Ignored in the address: sql" in app.source
    assert "Write a SELECT" in ask(app, "  ").source


def test_the_screen_can_only_look_at_the_tables_which_stay_what_they_were(
    tmp_path: Path, open_screen: Open
) -> None:
    runs = tmp_path / "runs"
    secret = tmp_path / "secret"
    write_run(runs, "demo", "a", shape=SMALL)
    sync(runs)
    secret.write_text("password\n")
    before = contents(runs)
    app = open_screen("sql", runs)
    for attempt in ESCAPES:
        app = ask(app, attempt.format(file=tmp_path / "written", secret=secret, folder=tmp_path))
        told = Read(mistakes(app)).text
        assert (len(app.dataframe), bool(told)) == (0, bool(attempt)), attempt
        assert not [words for words in ("password", "Traceback") if words in told], attempt
    assert contents(runs) == before
    assert [sorted(p.name for p in folder.iterdir()) for folder in (tmp_path, runs)] == [
        ["runs", "secret"],
        ["demo", "sorl.duckdb"],
    ]


@pytest.mark.parametrize(
    ("question", "says", "not_said"),
    [
        ("SELECT ratio_gio\nFROM turn", ['"ratio_geo"', "LINE 1: SELECT ratio_gio", "^^^"], []),
        ("SELECT grad_norm FROM step", ["grad_norm is a column of minibatch."], []),
        ("SELECT step.grad_norm FROM step", ["grad_norm is a column of minibatch."], []),
        ("SELECT s.grad_norm FROM step s", ["grad_norm is a column of minibatch."], []),
        (
            "SELECT ratio_gio FROM run",
            ["No table has a column ratio_gio: ratio_geo (", "Referenced column"],
            [],
        ),
        (
            "SELECT sucess AS arn FROM step -- entrpy\nWHERE arn > 'entrpy'",
            ["No table has a column sucess: success (", "Referenced column"],
            ["entrpy:", "arn:"],
        ),
        ("SELECT arm, seed FROM step", [], ["No table has"]),
    ],
)
def test_a_mistake_is_told_with_its_line_and_first_where_a_column_is_or_how_it_is_spelled(
    put: Visit, question: str, says: list[str], not_said: list[str]
) -> None:
    told = Read(mistakes(ask(put, question))).text
    places = [told.index(words) for words in says]
    assert places == sorted(places)
    assert not [words for words in not_said if words in told]


def test_a_description_is_parted_from_its_unit_and_formula() -> None:
    assert sql.described("Mean ratio. [ratio] = <r>_m") == ("Mean ratio.", "in ratio = <r>_m")
    assert sql.described("Largest norm. [norm]") == ("Largest norm.", "in norm")
    for words in ("When it was written (UTC).", "[a] is read here", ""):
        assert sql.described(words) == (words, "")


LONG = "SELECT i, repeat('ä', 200_000) AS long, list_value(repeat('x', 9000), NULL) AS texts, NULL AS none "


def test_long_cells_are_cut_on_the_screen_and_whole_in_the_files(put: Visit, grid: Path) -> None:
    app = ask(put, f"{LONG}FROM range(100) t(i)")
    assert "cells cut to 2,000 characters and lists to 1,000; the files hold all of them" in app.source
    shown = app.dataframe[0].value
    assert (len(shown), set(shown["long"])) == (100, {"ä" * 2000 + "…"})
    assert list(shown["texts"][0]) == ["x" * 2000 + "…", None]
    whole = sql.whole(Store(grid), app.session_state["sorl asked"])
    assert {len(text) for text in whole["long"].to_pylist()} == {200_000}
    short = ask(app, "SELECT ['a', NULL] AS texts, NULL::INTEGER[] AS none")
    assert "cut" not in short.source.split("sorl-columns")[-1]


@given(
    st.lists(st.none() | st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)))
)
def test_only_what_is_too_long_is_cut(rows: list[list[str | None] | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql, "_TEXT", 5)
        patch.setattr(sql, "_LIST", 3)
        table, cut = sql.cut_for_browser(pa.table({"l": pa.array(rows, pa.list_(pa.string()))}))
        assert table["l"].to_pylist() == [
            row and [text if text is None or len(text) <= 5 else f"{text[:5]}…" for text in row[:3]]
            for row in rows
        ]
        assert cut == (table["l"].to_pylist() != rows)


def test_rows_are_cut_to_the_bytes_that_a_browser_takes() -> None:
    assert [sql.within(pa.table({"n": range(1000)}), size).num_rows for size in (800, 8000, 1)] == [
        100,
        1000,
        1,
    ]


def test_a_slow_question_shows_a_clock_and_can_be_cancelled_or_stopped_and_the_address_stays(
    grid: Path, open_screen: Open, monkeypatch: Patch
) -> None:
    slow = "SELECT count(*) AS n FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
    app = open_screen("sql", sql="SELECT 1 AS a, 2 AS b", chart_x="b", chart_y="a")
    monkeypatch.setattr(sql, "_AT_ONCE", 0.1)
    app = ask(app, slow)
    assert re.search(r"Asking for \d+ s; it is stopped after 30 s", app.source)
    assert (app.value("sql"), app.value("chart_x"), len(app.dataframe)) == (slow, "b", 0)
    began = time.monotonic()
    app = press(app, "Cancel")
    app.session_state["sorl asking"].thread.join(20)
    assert "cancelled" in mistakes(app.run())
    assert time.monotonic() - began < 20
    assert "Asking for" in press(app, "Run").source, "it is asked once more"
    app.session_state["sorl asking"].cancel()
    monkeypatch.setattr(sql, "_AT_ONCE", 60.0)
    assert len(ask(app, "SELECT 3 AS c").dataframe[0].value) == 1
    monkeypatch.setattr(store_of(str(grid))[0].reader, "seconds", 0.3)
    assert "stopped after 0.3 s" in mistakes(ask(app, slow))


def test_every_table_view_and_column_is_listed_with_its_definition(grid: Path) -> None:
    tables = Store(grid).query("tables").set_index("name")
    assert set(tables.index) == {t.name for t in TABLES} | set(views())
    assert (
        tables.loc["turn", "grain"] == "One row per run, step, epoch, trajectory and turn: the turn ledger."
    )
    columns = Store(grid).query("columns").set_index(["table", "name"])
    for d in CATALOGUE:
        assert d.description in columns.loc[(d.table, d.name), "description"]
    assert "exp(mean delta" in columns.loc[("culprit", "ratio_geo"), "description"]


def test_a_large_answer_is_cut_and_its_files_hold_all(put: Visit, grid: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sql, "ROWS", 50)
    app = ask(put, "SELECT range AS n FROM range(3000)")
    assert len(app.dataframe[0].value) == 50
    assert "The first 50 rows" in app.source
    assert [b.label for b in app.get("download_button")][:2] == ["CSV", "Parquet"]
    assert sql.whole(store_of(str(grid))[0], put.session_state["sorl asked"]).num_rows == 3000


def test_files_keep_null_nan_lists_and_quotes(grid: Path) -> None:
    text = "SELECT unnest([NULL, 'nan'::DOUBLE, 1.5]) AS x, [1, NULL] AS l, 'a,\"b\"' AS t"
    asked: Any = SimpleNamespace(text=text, answer=None)
    table = sql.whole(Store(grid), asked)
    assert sql.csv_of(table).decode().splitlines() == [
        "x,l,t",
        ',"[1, null]","a,""b"""',
        'nan,"[1, null]","a,""b"""',
        '1.5,"[1, null]","a,""b"""',
    ]
    assert str(pq.read_table(io.BytesIO(sql.parquet_of(table))).to_pylist()) == str(table.to_pylist())


def test_new_rows_show_at_once_if_a_query_is_quick_else_on_demand(
    tmp_path: Path, open_screen: Open, monkeypatch: Patch
):
    def rows() -> list[int]:
        return app.dataframe[0].value["n"].tolist()

    write_run(tmp_path, "demo", "a", shape=SMALL)
    app = open_screen("sql", tmp_path, sql="SELECT count(*) AS n FROM step")
    assert rows() == [12]
    for run, quick, shown in (("b", 9.0, [24]), ("c", -1.0, [24])):
        monkeypatch.setattr(sql, "_QUICK", quick)
        write_run(tmp_path, "demo", run, shape=SMALL)
        sync(tmp_path)
        app.run()
        assert rows() == shown
    assert "it does not rerun by itself" in app.source
    press(app, "Ask again")
    assert rows() == [36]


def test_hostile_names_and_values_stay_text(put: Visit) -> None:
    for text in HOSTILE:
        name = text.replace('"', '""')
        quoted = text.replace("'", "''")
        app = ask(
            put,
            f"SELECT '{quoted}' AS \"{name}\", 1.5 AS \"{name} n\", 2 AS seed UNION ALL SELECT 'b', 2.5, 3",
        )
        assert_literal(app)
        assert app.dataframe[0].value.iloc[0, 0] == text
        told = mistakes(ask(put, f'SELECT "{name}" FROM run'))
        assert set(Read(told).tags) == {"pre"}
        assert html_text(text) in told or "LINE" in told


def test_numbers_are_shown_in_few_figures_unless_that_falsifies_them() -> None:
    for values, shown in (((0.1234567, None, math.nan, math.inf), "%.6g"), ((123456789.123, 1e-3), "%.15g")):
        assert sql.figures(pa.chunked_array([pa.array(values, pa.float64())])) == shown


def test_a_file_outlives_its_run_and_session_but_is_not_held_for_ever(monkeypatch: Patch) -> None:
    manager = MediaFileManager(MemoryMediaFileStorage("/media"))
    monkeypatch.setattr(runtime, "get_instance", lambda: SimpleNamespace(media_file_mgr=manager))
    timers: list[SimpleNamespace] = []

    def timer(seconds: float, call: Callable[..., None], words: list[object]) -> SimpleNamespace:
        timers.append(
            SimpleNamespace(seconds=seconds, release=lambda: call(*words), daemon=False, start=lambda: None)
        )
        return timers[-1]

    monkeypatch.setattr(export, "Timer", timer)
    drawing: Any = SimpleNamespace(session_id="a browser", pages_manager=None)

    def pressed(number: int) -> str:
        """Press a button, in a thread of its own: the name of the file that the browser is told to fetch."""

        def make() -> bytes:
            export.hold(bytes([number]), "a.csv", "text/csv", drawing)
            return bytes([number])

        wanted = manager.add_deferred(make, "text/csv", str(number), "a.csv")
        with ThreadPoolExecutor() as others:
            return others.submit(manager.execute_deferred, wanted).result().rsplit("/", 1)[-1].split(".")[0]

    names = [pressed(number) for number in range(4)]
    manager.clear_session_refs("a browser")
    for released, kept in ((0, [0, 1, 2, 3]), (3, [3])):
        for one in timers[:released]:
            one.release()
        for _ in range(5):  # so many runs end
            manager.remove_orphaned_files()
        assert [file.content[0] for name in names if (file := manager.read_file(name))] == kept
    assert all(one.daemon and one.seconds >= 30 for one in timers), "none holds up the end of the app"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400))
def test_any_question_survives_the_way_through_an_address(text: str) -> None:
    for question in (text, f"packed:{text}"):
        assert sql.unpacked([sql.packed(question) or ""], "SELECT 1") == (question, [])
    assert sql.unpacked([], "SELECT 1") == ("SELECT 1", [])
    text = "".join(random.Random(0).choices(string.printable, k=sql.LONGEST))
    assert sql.packed(text) is None, "too long for any address"


def zipped(data: bytes, end: int | None = None) -> str:
    return "packed:" + urlsafe_b64encode(zlib.compress(data)[:end]).decode()


@pytest.mark.parametrize(
    "given",
    [
        "packed:",
        "packed:!!!",
        "packed:AAAA",
        "packed:eJw",
        "packed:\ud800",
        "x" * (sql.LONGEST + 1),
        zipped(b"x" * 10**8),
        zipped(b"\xff\xfe"),
        zipped(b"SELECT 1", -3),
    ],
    ids=range(9),
)
def test_what_cannot_be_read_is_the_default_and_a_note(given: str) -> None:
    assert sql.unpacked([given], "SELECT 1") == ("SELECT 1", ["sql, which is cut off or too long"])


def test_decimals_are_numbers_truth_values_are_texts_and_lists_are_left_out() -> None:
    columns = {
        "n": [Decimal(3), None],
        "ok": [True, None],
        "l": [[1], [2]],
        "none": pa.nulls(2),
        "t": ["a", "b"],
    }
    frame = sql.drawable(pa.table(columns))
    assert (list(frame.columns), sql.numbers(frame)) == (["n", "ok", "t"], ["n"])
    assert frame["ok"].tolist() == ["true", None]


@pytest.mark.parametrize(
    ("columns", "choice"),
    [
        (
            {"arm": ["a", "b"], "turn_index": [1, 2], "ratio_geo": [0.1, 0.2], "clip_frac": [0.1, 0.2]},
            ("turn_index", "ratio_geo", "arm"),
        ),
        ({"arm": ["a", "b"], "turn_index": [1, 2], "step": [1, 2], "kl": [1.0, 2.0]}, ("step", "kl", "arm")),
        (
            {"question": [f"q{i}" for i in range(40)], "step": range(40), "reward": [0.5] * 40},
            ("step", "reward", ""),
        ),
        ({"arm": ["a", "b"], "seconds": [1.0, 2.0]}, ("arm", "seconds", "")),
        ({"step": [1, 2], "arm": ["a", "b"]}, ("arm", "step", "")),
        ({"a": [1], "b": [3]}, ("a", "b", "")),
        ({"text": ["x", "y"]}, ("text", "", "")),
        ({"n": [1, 2]}, ("n", "", "")),
        ({}, ("", "", "")),
    ],
)
def test_the_first_axes_are_what_the_answer_is_about(
    columns: dict[str, Any], choice: tuple[str, str, str]
) -> None:
    assert sql.first_choice(pd.DataFrame(columns)) == choice


def test_rows_that_share_an_x_are_points_and_a_row_is_drawn_where_all_its_values_are_finite() -> None:
    frame = pd.DataFrame({"step": [1, 1, 2, 2], "arm": ["a", "b", "a", "b"], "kl": [1.0, 2.0, 3.0, 4.0]})
    assert sql.fitting_marks(frame, "step", "arm") == ["line", "points", "bars"]
    assert sql.fitting_marks(frame, "step", "") == sql.fitting_marks(frame, "arm", "") == ["points"]
    assert sql.fitting_marks(frame.head(2), "arm", "arm") == ["bars", "points"]
    frame = pd.DataFrame(
        {"x": [1, 2, 3, 4], "y": [1.0, math.nan, math.inf, 2.0], "arm": ["a", "a", "a", None]}
    )
    assert sql.complete(frame, ["x", "y", "arm"])["x"].tolist() == [1]
    assert sql.complete(frame, ["x", "y"])["x"].tolist() == [1, 4]
