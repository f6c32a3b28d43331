"""SQL: any question to the tables, read-only, definitions beside it, a chart of the answer and files of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from workbench.app import answer, drawable, export
from workbench.app.answer import Words
from workbench.app.asked import FILE_ROWS, Asked, asked, whole
from workbench.app.controls import choose
from workbench.app.diagnostics import dictionary
from workbench.app.editor import edit
from workbench.app.entries import entries
from workbench.app.figures.chart import GROUPS, chart
from workbench.app.page import Empty, look, note, screen
from workbench.app.safe import html_text
from workbench.app.schema import columns_html, hint

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.data import Store

_STYLE = Path(__file__).parents[1] / "sql.css"
_NONE = "-"  # no colour


@screen
def sql(store: Store) -> None:
    """Ask the ledger anything."""
    if store.query("experiments").empty:
        raise Empty("no run is recorded here yet: `sorl run experiments/quickstart.toml`")
    st.html(_STYLE)
    columns = store.query("columns")
    left, right = st.columns([3, 2], gap="large")
    with left:
        text = edit()
    with right:
        _schema(store, columns)
    if not text:
        note("Write a SELECT, or take a saved question.")
        return
    question = asked(store, text)
    if question.state != store.state():
        note(f"Rows have arrived since; this question took {question.seconds:.1f} s, so it waits for you.")
        if st.button("Ask again"):
            asked(store, text, again=True)
            st.rerun()
    if question.answer is None:
        told = "\n".join(filter(None, [question.mistake, hint(question.mistake, columns)]))
        st.html(f'<pre class="sorl-mistake">{html_text(told)}</pre>')
        return
    words = _words(store)
    _answer(store, question, words)
    _chart(drawable.drawable(question.answer.table), words)


def _schema(store: Store, columns: pd.DataFrame) -> None:
    """The columns of a table, with their definitions."""
    tables = store.query("tables").set_index("name")
    name = choose("table", "Tables and views", list(tables.index), "step",
                  words=lambda t: t if tables.loc[t, "kind"] == "table" else f"{t} (view)")  # fmt: skip
    note(str(tables.loc[name, "grain"]))
    with st.container(height=290, border=False):
        st.html(columns_html(columns[columns["table"] == name]))


def _words(store: Store) -> Words:
    """Column -> its unit and its definition in the dictionary; where tables differ, that of the coarsest."""
    found = entries(dictionary(store).rows.values())
    rows = {entry.name: (entry.unit, next(iter(entry.formulas.values())) or entry.description) for entry in found[::-1]}
    return lambda column: rows.get(column, ("", ""))


def _answer(store: Store, question: Asked, words: Words) -> None:
    found = question.answer
    assert found is not None
    rows = found.table.num_rows
    many = f"The first {rows:,} rows" if found.cut else f"{rows:,} row{'' if rows == 1 else 's'}"
    more = f"; the files hold up to {FILE_ROWS:,}" if found.cut else ""
    note(f"{many} in {question.seconds:.2f} s{more}. The address of this page asks the same again.")
    answer.show(found.table, words)
    answer.files(lambda: whole(store, question))


def _chart(frame: pd.DataFrame, words: Words) -> None:
    """A chart of the rows that are shown."""
    x, y, colour = drawable.first_choice(frame)
    if not y:
        return
    with st.container(horizontal=True, gap="medium", vertical_alignment="top"):
        x = choose("chart_x", "Across", list(frame.columns), x, width=180)
        y = choose("chart_y", "Up", drawable.numbers(frame), y, width=180)
        colour = choose(
            "chart_colour", "Colour", [_NONE, *frame.columns], colour or _NONE, width=180,
            words=lambda c: "none" if c == _NONE else c,
        )  # fmt: skip
        colour = "" if colour == _NONE else colour
        marks = drawable.fitting_marks(frame, x, colour)
        mark = choose("chart_mark", "Mark", marks, marks[0], kind="row")
        scale = choose("scale", "Scale", ["auto", "linear", "log"], "auto", kind="row")
    data = drawable.complete(frame, [c for c in (x, y, colour) if c])
    if data.empty:
        note("No row has a value in each of these columns.")
        return
    figure = chart(data, x, y, colour, mark, words, look(), axis=scale)
    export.figure(figure, "chart", data, describe=f"{y} over {x} of {len(data)} rows.")
    if len(data) < len(frame):
        note(f"Not drawn, for a NULL, NaN or Inf there: {len(frame) - len(data):,} of {len(frame):,} rows.")
    if colour and data[colour].nunique() > GROUPS and data[colour].dtype.kind == "O":
        note(f"{colour} has {data[colour].nunique()} values, too many for a legend.")
