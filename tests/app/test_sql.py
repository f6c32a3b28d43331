from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from tests.app.conftest import HOSTILE, Open, figures, html
from tests.app.test_safe import read
from tests.store.contents import contents
from tests.store.fixture import Shape, write_run
from tests.store.test_reader import ESCAPES
from workbench.app import answer, asked
from workbench.app.answer import csv_of, parquet_of
from workbench.app.page import store_of
from workbench.app.question import written
from workbench.app.safe import html_text
from workbench.store.reader import saved, saved_query
from workbench.store.sync import sync

SMALL = Shape(steps=12, trajectories=2, turns=2, epochs=1, steps_per_segment=12)


def mistakes(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html") if "<pre" in element.proto.body)


@pytest.fixture
def put(grid: Path, open_screen: Open) -> AppTest:
    """The screen; `app.query_params["sql"] = ...; app.run()` asks."""
    return open_screen("sql", grid)


def ask(app: AppTest, question: str) -> AppTest:
    app.text_area(key="sql").set_value(question)
    return next(b for b in app.button if b.label == "Run").click().run()


def test_it_opens_with_an_answer_its_definitions_and_a_chart(put: AppTest) -> None:
    assert put.text_area(key="sql").value == saved_query("ratio_by_turn").sql
    assert put.selectbox(key="saved").value == "ratio_by_turn"
    assert len(put.dataframe[0].value) == 16
    figure = json.loads(figures(put)[0])
    assert figure["layout"]["yaxis"]["title"]["text"] == "ratio_geo (ratio)"
    assert "exp(mean delta of the turn)" in figure["layout"]["annotations"][0]["text"]
    assert "One row per run and training iteration." in html(put)


@pytest.mark.parametrize("query", saved(), ids=lambda q: q.name)
def test_every_saved_question_has_an_answer(put: AppTest, query: object) -> None:
    name = query.name  # type: ignore[attr-defined]
    app = put.selectbox(key="saved").set_value(name).run()
    assert not app.exception
    assert mistakes(app) == ""
    assert app.text_area(key="sql").value == saved_query(name).sql
    assert app.query_params["sql"] in (saved_query(name).sql, [saved_query(name).sql])


def test_a_question_its_chart_and_its_table_are_taken_from_the_address(grid: Path, open_screen: Open) -> None:
    text = "SELECT arm, seed, final_success, steps FROM run WHERE status = 'finished'"
    address = {"sql": text, "table": "culprit", "chart_x": "arm", "chart_y": "final_success", "chart_colour": "-",
               "chart_mark": "points", "scale": "linear"}  # fmt: skip
    app = open_screen("sql", grid, **address)
    assert not app.exception
    for name, value in address.items():
        kept = app.query_params[name]
        assert (kept[0] if isinstance(kept, list) else kept) == value
    assert len(app.dataframe[0].value) == 6
    trace = json.loads(figures(app)[0])["data"][0]
    assert (trace["type"], trace["mode"]) == ("scatter", "markers")
    assert "its rank in the step by ratio mass" in html(app)


def test_a_link_carries_a_long_question(grid: Path, open_screen: Open) -> None:
    text = " UNION ALL ".join(f"SELECT {i} AS n, 'a long question' AS words" for i in range(100))
    address = written(text)
    assert address is not None
    assert address.startswith("packed:")
    app = open_screen("sql", grid, sql=address)
    assert app.text_area(key="sql").value == text
    assert len(app.dataframe[0].value) == 100
    assert app.query_params["sql"] in (address, [address])


def test_a_question_too_long_for_a_link_is_asked_all_the_same(put: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.app.question._READABLE", 10)
    monkeypatch.setattr("workbench.app.question._PACKED", 10)
    app = ask(put, "SELECT 'long' AS word")
    assert len(app.dataframe[0].value) == 1
    assert "sql" not in app.query_params
    assert "too long for an address" in html(app)


def test_a_broken_link_is_told_and_the_screen_opens(grid: Path, open_screen: Open) -> None:
    app = open_screen("sql", grid, sql="packed:!!")
    assert not app.exception
    assert "Ignored in the address: sql" in html(app)


def test_nothing_in_the_editor_asks_for_a_select(put: AppTest) -> None:
    app = ask(put, "  ")
    assert not app.exception
    assert "Write a SELECT" in html(app)


@pytest.mark.parametrize("attempt", ESCAPES.values(), ids=ESCAPES)
def test_the_screen_can_only_look_at_the_tables(put: AppTest, grid: Path, tmp_path: Path, attempt: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password\n")
    app = ask(put, attempt.format(file=tmp_path / "written", secret=secret, folder=tmp_path))
    assert not app.exception
    assert not app.dataframe
    if attempt:
        told = read(mistakes(app)).text
        assert told
        assert "password" not in told
        assert "Traceback" not in told
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_after_all_attempts_the_tables_are_what_they_were(tmp_path: Path, open_screen: Open) -> None:
    write_run(tmp_path, "demo", "a", shape=SMALL)
    sync(tmp_path)
    before = contents(tmp_path)
    app = open_screen("sql", tmp_path)
    for attempt in ESCAPES.values():
        ask(app, attempt.format(file=tmp_path / "demo" / "x", secret=tmp_path / "none", folder=tmp_path / "demo"))
    assert contents(tmp_path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo", "sorl.duckdb"]


def test_a_mistake_is_told_with_the_line_and_the_nearest_columns(put: AppTest) -> None:
    told = read(mistakes(ask(put, "SELECT ratio_gio\nFROM turn"))).text
    assert '"ratio_geo"' in told
    assert "LINE 1: SELECT ratio_gio" in told
    assert "^^^" in told
    told = read(mistakes(ask(put, "SELECT grad_norm FROM step"))).text
    assert "grad_norm is a column of minibatch." in told


def test_a_question_that_runs_too_long_is_stopped_and_told(
    put: AppTest, grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_of(str(grid))[0].reader, "seconds", 0.3)
    began = time.monotonic()
    app = ask(put, "SELECT count(*) FROM range(1000000000) a, range(1000000) b")
    assert "stopped after 0.3 s" in mistakes(app)
    assert time.monotonic() - began < 60


def test_a_large_answer_is_cut_and_its_files_hold_more(put: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "ROWS", 50)
    app = ask(put, "SELECT range AS n FROM range(3000)")
    assert len(app.dataframe[0].value) == 50
    assert "The first 50 rows" in html(app)
    assert [b.label for b in app.get("download_button")][:2] == ["CSV", "Parquet"]


def test_the_files_of_an_answer_keep_null_nan_and_lists(put: AppTest, grid: Path) -> None:
    text = "SELECT unnest([NULL, 'nan'::DOUBLE, 1.5]) AS x, [1, NULL] AS l, 'a,\"b\"' AS t"
    ask(put, text)
    table = asked.whole(store_of(str(grid))[0], put.session_state["sorl asked"])
    assert csv_of(table).decode().splitlines() == [
        "x,l,t", ',"[1, null]","a,""b"""', 'nan,"[1, null]","a,""b"""', '1.5,"[1, null]","a,""b"""',
    ]  # fmt: skip
    assert str(pq.read_table(io.BytesIO(parquet_of(table))).to_pylist()) == str(table.to_pylist())


def test_a_cut_answer_is_asked_again_for_its_file(put: AppTest, grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "ROWS", 50)
    ask(put, "SELECT range AS n FROM range(3000)")
    assert asked.whole(store_of(str(grid))[0], put.session_state["sorl asked"]).num_rows == 3000


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
    monkeypatch.setattr(asked, "_QUICK", -1.0)
    write_run(tmp_path, "demo", "c", shape=SMALL, seed=2)
    sync(tmp_path)
    app.run()
    assert app.dataframe[0].value["n"].tolist() == [24]
    assert "it waits for you" in html(app)
    again = next(b for b in app.button if b.label == "Ask again").click().run()
    assert again.dataframe[0].value["n"].tolist() == [36]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_and_values_stay_text(put: AppTest, text: str) -> None:
    name = text.replace('"', '""').replace("\0", "")
    value = text.replace("'", "''")
    app = ask(put, f"SELECT '{value}' AS \"{name}\", 1.5 AS \"{name} n\", 2 AS seed UNION ALL SELECT 'b', 2.5, 3")
    assert not app.exception
    assert app.dataframe[0].value.iloc[0, 0] == text
    for element in app.get("html"):
        parsed = read(element.proto.body)
        assert "img" not in parsed.tags
        assert "alert(1)" not in element.proto.body or "<script>" not in element.proto.body
    told = mistakes(ask(app, f'SELECT "{name}" FROM run'))
    assert set(read(told).tags) == {"pre"}
    assert html_text(text) in told or "LINE" in told


def test_numbers_are_shown_in_few_figures_unless_that_falsifies_them() -> None:
    def figures_of(*values: float | None) -> str:
        return answer.figures(pa.chunked_array([pa.array(values, pa.float64())]))

    assert figures_of(0.1234567, None, float("nan"), float("inf")) == "%.6g"
    assert figures_of(123456789.123, 1e-3) == "%.15g"
    assert figures_of(None) == "%.6g"


def test_the_question_that_it_opens_with_fits_a_small_window(put: AppTest) -> None:
    longest = max(put.text_area(key="sql").value.splitlines(), key=len)
    assert len(longest) <= 62, "the editor breaks longer lines in a window of 1280 pixels"


def test_no_turn_lies_between_two_turns(put: AppTest) -> None:
    assert json.loads(figures(put)[0])["layout"]["xaxis"]["dtick"] == 1
