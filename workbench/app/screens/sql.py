"""SQL: any question to the tables, read-only, with the columns' definitions, a chart of the answer and files
of it.
"""

import re
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import streamlit as st
from pyarrow import types

from sorl.app import export
from sorl.app.figures import curves
from sorl.app.page import Empty, look, note, screen
from sorl.app.queries import LEVELS, State, Store, dictionary
from sorl.app.text import few, markdown_text, tag
from sorl.app.url import choose, count_as_typed, forget, keep_in_address, read_widget, write_to_address
from sorl.diagnosis.standing import counted
from sorl.spec import InputError
from sorl.store.connect import Busy
from sorl.store.reader import Cancel, Excerpt, Reader, saved
from sorl.store.text import as_csv

Words = Mapping[str, tuple[str, str]]  # column -> its unit and its definition

FIRST = "ratio_by_turn"  # what the screen opens with: quick on a database of any size
# of a table on the screen, in bytes: what a browser takes without a pause
ROWS = 10_000
SIZE = 16 * 2**20
# characters of a text and elements of a list in a cell of the screen
_TEXT = 2_000
_LIST = 1_000
# of a file
FILE_ROWS = 1_000_000
_FILE_SIZE = 256 * 2**20
_AT_ONCE = 1.0  # seconds that a question may take without a clock and a button that cancels it
_EVERY = "all"  # instead of a table
_TABLES = {name: place for place, name in enumerate(("run", *LEVELS))}  # that stand first
_QUICK = 1.0  # seconds: a question that took no longer is asked again by itself when new rows arrive
_ASKED = "sorl asked"
_ASKING = "sorl asking"
_LATE = "sorl late"
_CHART = ("chart_x", "chart_y", "chart_colour", "chart_mark")
_NONE = "-"  # no colour


@screen
def sql(store: Store) -> None:
    """Ask the ledger anything."""
    if store.query("experiments").empty:
        raise Empty
    columns = store.query("columns")
    left, right = st.columns([3, 2], gap="large")
    with left:
        text = _editor()
    with right:
        _tables(store.query("tables"), columns)
    if not text:
        note("Write a SELECT, or take a saved question.")
        return
    asked = ask(store, text)
    if isinstance(asked, Asking):
        keep_in_address(*_CHART, "scale")
        _wait(asked, store.reader.seconds)
        return
    if st.session_state.pop(_LATE, False):  # the screen was drawn without the answer before
        count_as_typed(*_CHART, "scale")
    if asked.state != store.state():
        note(
            f"Rows have arrived since; this query took {asked.seconds:.1f} s, so it does not rerun by itself."
        )
        if st.button("Ask again"):
            ask(store, text, again=True)
            st.rerun()
    if asked.answer is None:
        st.html(tag("pre", f"{hint(asked.mistake, columns)}\n{asked.mistake}".strip(), css="sorl-mistake"))
        return
    known = dictionary(store)  # of columns with one name, that of the coarsest table
    words = {
        row["name"]: known.words(f"{row['table_name']}.{row['name']}") for row in reversed(known.by_level())
    }
    _answer(store, asked, asked.answer, words)
    _chart(drawable(asked.answer.table), words)


def _tables(tables: pd.DataFrame, columns: pd.DataFrame) -> None:
    names = {
        str(t): f"{t} (view)" if kind == "view" else str(t) for t, kind in tables[["name", "kind"]].to_numpy()
    }
    name = choose("table", "Tables and views", {_EVERY: "all at a glance"} | names)
    of = columns[["table", "name", "type", "description"]].itertuples(index=False, name=None)
    if name == _EVERY:
        mine = columns.groupby("table")["name"].agg(", ".join)
        first = sorted(
            tables[["name", "grain"]].to_numpy(), key=lambda row: _TABLES.get(row[0], len(_TABLES))
        )
        rows = [(names[t], "", grain, mine.get(t, "")) for t, grain in first]
    else:
        note(str(tables.set_index("name").loc[name, "grain"]))
        rows = [
            (column, kind.lower(), *described(words)) for table, column, kind, words in of if table == name
        ]
    with st.container(height=290, border=False):
        parts = (
            tag(
                "div",
                tag("b", first),
                " ",
                tag("span", kind),
                tag("div", words),
                tag("div", more, css="sorl-note"),
            )
            for first, kind, words, more in rows
        )
        st.html(tag("div", *parts, css="sorl-columns"))


def described(words: str) -> tuple[str, str]:
    """Part the description of a column from its unit and formula: `Mean ratio. [ratio] = <r>_m`."""
    parts = re.fullmatch(r"(.*?) ?\[([^\[\]]+)\](?: = (.*))?", words, re.DOTALL)
    return (parts[1], " = ".join(filter(None, [f"in {parts[2]}", parts[3]]))) if parts else (words, "")


def _editor() -> str:
    """Return the question that was sent last, kept in URL parameter `sql`: of the address, a saved one, or
    typed.
    """
    known = {query.name: query for query in saved()}
    read_widget("sql", lambda given: unpacked(given, known[FIRST].sql), lambda value: isinstance(value, str))
    text = st.session_state["sql"].strip()
    st.session_state["saved"] = next((name for name, query in known.items() if query.sql == text), None)

    def take() -> None:
        if st.session_state["saved"]:
            st.session_state["sql"] = known[st.session_state["saved"]].sql
        for name in _CHART:
            forget(name)

    st.selectbox(
        "Saved questions",
        list(known),
        key="saved",
        on_change=take,
        placeholder="your own",
        format_func=lambda name: known[name].title,
    )
    with st.form("question", border=False):
        st.text_area("SQL, one SELECT", key="sql", height=250, max_chars=LONGEST)
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            pressed = st.form_submit_button("Run", type="primary")
            note("or Ctrl+Enter in the editor", width="content")
    if pressed and (last := st.session_state.get(_ASKED)) and last.answer is None:
        del st.session_state[_ASKED]  # what was cancelled or stopped is asked once more
    text = st.session_state["sql"].strip()
    address = packed(text)
    write_to_address("sql", [address] if address else [])
    if address is None:
        note("This query is too long for an address, so a link to this page leaves it out.")
    return text


# A question as a parameter of the address: readable while it is short, packed when it is long.

LONGEST = 20_000  # characters of a question
_READABLE = 1_500  # characters of an address: what programs that pass links on do not break
_PACKED = 6_000  # a server refuses the headers of a request beyond 16 KiB
_MARK = "packed:"  # no question begins so


def packed(text: str) -> str | None:
    """Return `text` as a parameter of the address; None where it is too long for any."""
    if len(quote(text, errors="replace")) <= _READABLE and not text.startswith(_MARK):
        return text
    code = _MARK + urlsafe_b64encode(zlib.compress(text.encode(errors="replace"), 9)).decode().rstrip("=")
    return code if len(code) <= _PACKED else None


def unpacked(given: Sequence[str], default: str) -> tuple[str, list[str]]:
    """Return the question of a parameter (`default` where there is none), and a note where it
    cannot be read.
    """
    if not given:
        return default, []
    text = given[0]
    if text.startswith(_MARK):
        code = text.removeprefix(_MARK)
        text = ""
        opened = zlib.decompressobj()
        with suppress(ValueError, zlib.error):  # it never unpacks more than a question may have
            text = opened.decompress(
                urlsafe_b64decode(code + "=" * (-len(code) % 4)), 4 * LONGEST + 1
            ).decode()
        text = text if opened.eof else ""
    return (text, []) if 0 < len(text) <= LONGEST else (default, ["sql, which is cut off or too long"])


@dataclass
class Asked:
    """A question, the state of the database it was put to, and the answer or the mistake in it."""

    text: str
    state: State
    seconds: float = 0.0
    answer: Excerpt | None = None  # as the screen shows it: cut to what a browser takes
    mistake: str = ""
    shortened: bool = False  # cells of the answer are cut


class Asking:
    """A question that a thread of its own puts to the database; `cancel` stops it."""

    def __init__(self, store: Store, text: str) -> None:
        self.text = text
        self.began = time.monotonic()
        self.cancel = Cancel()
        self.found = Future[Asked]()
        self.thread = Thread(
            target=self._work, args=(store.reader, store.state()), name="sorl sql", daemon=True
        )
        self.thread.start()

    def _work(self, reader: Reader, state: State) -> None:
        asked = Asked(self.text, state)
        try:
            whole = reader.excerpt(self.text, rows=ROWS, size=SIZE, cancel=self.cancel)
            table, asked.shortened = cut_for_browser(whole.table)
            asked.answer = Excerpt(table, whole.cut or table.num_rows < whole.table.num_rows)
        except BaseException as error:  # noqa: BLE001  for the thread that draws the screen
            if not isinstance(error, InputError) or isinstance(error, Busy):
                self.found.set_exception(error)
                return
            asked.mistake = str(error)
        asked.seconds = time.monotonic() - self.began
        self.found.set_result(asked)


def ask(store: Store, text: str, *, again: bool = False) -> Asked | Asking:
    """Return the answer, the last one while nothing has changed or asking takes long, or the asking that goes
    on.
    """
    session = st.session_state
    last: Asked | None = session.get(_ASKED)
    if last and last.text == text and not again and (last.state == store.state() or last.seconds > _QUICK):
        return last
    asking: Asking | None = session.get(_ASKING)
    if asking is not None and asking.text != text:
        asking.cancel()
        asking = None
    wait = 0.0 if asking else _AT_ONCE
    asking = session[_ASKING] = asking or Asking(store, text)
    try:
        with st.spinner("Asking ..."):
            session[_ASKED] = asked = asking.found.result(wait)
    except TimeoutError:
        session[_LATE] = True
        return asking
    except Exception:  # not where the browser wants another view meanwhile: the question goes on
        del session[_ASKING]
        raise
    del session[_ASKING]
    return asked


@st.fragment(run_every=0.5)
def _wait(asking: Asking, most: float) -> None:
    if not asking.thread.is_alive():
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if st.button("Cancel"):
            asking.cancel()
        passed = time.monotonic() - asking.began
        note(f"Asking for {passed:.0f} s; it is stopped after {most:.0f} s.", width="content")


def cut_for_browser(table: pa.Table) -> tuple[pa.Table, bool]:
    """Return what a browser takes of a table, and whether cells are cut: texts and lists first, then rows."""
    is_cut = False

    def cut(value: Any) -> Any:
        nonlocal is_cut
        if isinstance(value, list):
            is_cut |= len(value) > _LIST
            return [cut(element) for element in value[:_LIST]]
        if isinstance(value, str) and len(value) > _TEXT:
            value = f"{value[:_TEXT]}…"
            is_cut = True
        return value

    columns = []
    for column in table.columns:
        if types.is_list(column.type) or types.is_string(column.type):
            column = pa.chunked_array([pa.array(list(map(cut, column.to_pylist())), column.type)])
        columns.append(column)
    return within(pa.Table.from_arrays(columns, names=table.column_names), SIZE), is_cut


def within(table: pa.Table, size: int) -> pa.Table:
    """Return the first rows that fit into `size` bytes, one at least."""
    while table.nbytes > size and table.num_rows > 1:
        table = table.slice(0, max(1, min(table.num_rows - 1, table.num_rows * size // table.nbytes)))
    return table


def whole(store: Store, asked: Asked) -> pa.Table:
    """Return the answer for a file: asked again where the screen shows a part. Raises as the reader does."""
    if asked.answer is None or asked.answer.cut or asked.shortened:
        return within(store.reader.excerpt(asked.text, rows=FILE_ROWS, size=_FILE_SIZE).table, _FILE_SIZE)
    return asked.answer.table


# The last is what DuckDB says of step.x in table step, whose column of that name it takes for a struct.
_UNKNOWN = re.compile(r"""(?:Referenced column|a column named|extract field) ["']([^"']+)["']""")


def hint(mistake: str, columns: pd.DataFrame) -> str:
    """Say which tables have the column that a question missed, or which columns are called nearly so."""
    if (missed := _UNKNOWN.search(mistake)) is None:
        return ""
    # a roll-up has the columns of its table once more
    columns = columns[~columns["type"].str.startswith("STRUCT")]
    tables = {str(name): few(list(part), 4) for name, part in columns.groupby("name")["table"]}
    if missed[1] in tables:
        return f"{missed[1]} is a column of {tables[missed[1]]}."
    near = [
        f"{name} ({tables[name]})" for name in get_close_matches(missed[1], sorted(tables), n=2, cutoff=0.8)
    ]
    return f"No table has a column {missed[1]}: {' or '.join(near)}?" if near else ""


def _answer(store: Store, asked: Asked, answer: Excerpt, words: Words) -> None:
    table = answer.table
    note(_size_sentence(asked, answer))
    config = {
        name: _column_config(values, *words.get(name, ("", "")))
        for name, values in zip(table.column_names, table.columns, strict=True)
    }
    pixels = min(420, 35 * (max(table.num_rows, 1) + 1) + 3)
    st.dataframe(table, placeholder="NULL", height=pixels, column_config=config)
    with st.container(horizontal=True, horizontal_alignment="right", gap="small"):
        export.button("CSV", lambda: csv_of(whole(store, asked)), "sorl-answer.csv", "text/csv")
        binary = "application/octet-stream"
        export.button("Parquet", lambda: parquet_of(whole(store, asked)), "sorl-answer.parquet", binary)


def _size_sentence(asked: Asked, answer: Excerpt) -> str:
    """Say how many rows are shown, how long they took, and what is cut."""
    rows = answer.table.num_rows
    many = f"The first {counted(rows, 'row')}" if answer.cut else counted(rows, "row")
    cells = f", cells cut to {_TEXT:,} characters and lists to {_LIST:,}" if asked.shortened else ""
    most = f"up to {FILE_ROWS:,} rows of {_FILE_SIZE // 2**20} MB" if answer.cut else "all of them"
    more = f"; the files hold {most}" if answer.cut or cells else ""
    return f"{many} in {asked.seconds:.2f} s{cells}{more}. This link reruns the query."


def _column_config(values: pa.ChunkedArray, unit: str, definition: str) -> Any:
    """How the grid shows a column, with its definition as a tip."""
    tip = markdown_text(" ".join(filter(None, [definition, unit and f"[{unit}]"]))) or None
    if types.is_floating(values.type):
        return st.column_config.NumberColumn(help=tip, format=figures(values))
    return st.column_config.Column(help=tip)


def figures(values: pa.ChunkedArray) -> str:
    """Say how the grid writes the numbers of a column: in six figures, or in all if one has more before the
    point.
    """
    largest = pc.max(pc.abs(pc.filter(values, pc.is_finite(values)))).as_py()
    # its own four decimals hide small ones
    return "%.15g" if largest is not None and largest >= 1e6 else "%.6g"


def csv_of(table: pa.Table) -> bytes:
    """Write the table as CSV: NULL is empty, NaN is nan, lists are JSON."""
    rows = chain.from_iterable(_rows_of(batch) for batch in table.to_batches())
    return as_csv(table.column_names, rows).encode()


def parquet_of(table: pa.Table) -> bytes:
    """Write the table as a Parquet file."""
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    return out.getvalue().to_pybytes()


# The chart: plain columns of the answer, a first choice of axes, and the marks that fit.

# Columns that say where a value stands rather than what was measured, the likeliest x-axis first.
INDEX = (
    "step",
    "steps_after_collapse",
    "percent_of_run",
    "staleness",
    "update",
    "epoch",
    "turn_index",
    "written_at",
    "seed",
    "generation",
    "attempt",
    "trajectory",
    "prompt_group",
    "rollout_step",
)
GROUPS = ("arm", "algorithm", "run_id", "experiment", "status", "outcome")
_MOST = 12  # values of a column that can stand for groups


def _chart(frame: pd.DataFrame, words: Words) -> None:
    x, y, colour = first_choice(frame)
    if not y:
        return
    with st.container(horizontal=True, gap="medium", vertical_alignment="top"):
        x = choose("chart_x", "X", list(frame.columns), x, width=180)
        y = choose("chart_y", "Y", numbers(frame), y, width=180)
        colours = {_NONE: "none"} | {str(column): str(column) for column in frame.columns}
        colour = choose("chart_colour", "Colour", colours, colour or _NONE, width=180)
        colour = "" if colour == _NONE else colour
        mark = choose("chart_mark", "Chart type", fitting_marks(frame, x, colour), kind="row")
        scale = choose("scale", "Scale", ["auto", "linear", "log"], kind="row")
    data = complete(frame, [c for c in (x, y, colour) if c])
    if data.empty:
        note("No row has a value in each of these columns.")
        return
    figure = curves.chart(data, x, y, colour, mark, words, look(), axis=scale)
    export.figure(figure, "chart", data, describe=f"{y} over {x} of {len(data)} rows.")
    if len(data) < len(frame):
        note(f"Not drawn because of NULL, NaN or Inf: {len(frame) - len(data):,} of {len(frame):,} rows.")
    if colour and data[colour].nunique() > curves.GROUPS and data[colour].dtype.kind == "O":
        note(f"{colour} has {data[colour].nunique()} values, too many for a legend.")


def drawable(table: pa.Table) -> pd.DataFrame:
    """Return the columns of numbers, times and texts; a truth value is a text, a decimal number a float."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if not (types.is_list(kind) or types.is_null(kind) or types.is_time(kind)):
            columns[name] = column.cast(_drawable_type(kind))
    return pd.DataFrame(pa.table(columns).to_pandas(date_as_object=False))


def _drawable_type(kind: pa.DataType) -> pa.DataType:
    if types.is_decimal(kind):
        return pa.float64()
    return pa.string() if types.is_boolean(kind) else kind


def numbers(frame: pd.DataFrame) -> list[str]:
    """List the columns of numbers."""
    return [name for name in frame.columns if frame[name].dtype.kind in "iuf"]


class Axes(NamedTuple):
    """The columns of a chart."""

    x: str
    y: str  # empty where there is nothing to draw
    colour: str  # empty for none


def first_choice(frame: pd.DataFrame) -> Axes:
    """Choose the x, y and colour that such an answer is mostly about."""
    known = numbers(frame)
    places = [name for name in INDEX if name in known] + [
        c for c in frame.columns if frame[c].dtype.kind == "M"
    ]
    measured = [name for name in known if name not in places] or known[-1:]
    groups = [
        name
        for name in (*GROUPS, *frame.columns)
        if name in frame and frame[name].dtype.kind == "O" and 1 < frame[name].nunique() <= _MOST
    ]
    x = next(
        (name for name in places if name not in measured), next(iter(groups), next(iter(frame.columns), ""))
    )
    y = next((name for name in measured if name != x), "")
    return Axes(x, y, next((name for name in groups if name != x), ""))


def fitting_marks(frame: pd.DataFrame, x: str, colour: str) -> list[str]:
    """List the marks that show every row apart, the best first: no bar and no line where rows share an x."""
    if frame.duplicated(list(dict.fromkeys([x, colour] if colour else [x]))).any():
        return ["points"]
    return ["bars", "points"] if frame[x].dtype.kind == "O" else ["line", "points", "bars"]


def complete(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows that a chart of `columns` can show: no NULL, NaN or Inf in any of them."""
    return frame.loc[frame[list(dict.fromkeys(columns))].replace([np.inf, -np.inf], np.nan).dropna().index]


def _rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The rows of a batch as Python values."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
