"""The editor of screen SQL: a question of the address, of a saved query, or typed; and what it is about."""

from __future__ import annotations

import streamlit as st

from workbench.app import question
from workbench.app.address import arrive, leave
from workbench.app.page import note
from workbench.store.reader import Saved, saved, saved_query

FIRST = "ratio_by_turn"  # what the screen opens with: quick on a database of any size
_CHART = ("chart_x", "chart_y", "chart_colour", "chart_mark")


def edit() -> str:
    """The question that was sent last, kept in URL parameter `sql`."""
    known = {query.name: query for query in saved()}
    default = saved_query(FIRST).sql
    for words in arrive("sql", lambda given: question.read(given, default), lambda value: isinstance(value, str)):
        note(f"Ignored in the address: {words}.")
    text = st.session_state["sql"].strip()
    st.session_state["saved"] = next((name for name, query in known.items() if query.sql == text), None)
    st.selectbox(
        "Saved questions", list(known), key="saved", on_change=_take, args=(known,), placeholder="your own",
        format_func=lambda name: known[name].title,
    )  # fmt: skip
    with st.form("question", border=False):
        st.text_area("SQL, one SELECT", key="sql", height=250, max_chars=question.LONGEST)
        st.form_submit_button("Run", type="primary", help="Ctrl+Enter in the editor does the same")
    text = st.session_state["sql"].strip()
    address = question.written(text)
    leave("sql", [address] if address else [])
    if address is None:
        note("This question is too long for an address: a link to this page does not carry it.")
    return text


def _take(known: dict[str, Saved]) -> None:
    """A saved query comes into the editor, and the chart begins anew."""
    if st.session_state["saved"]:
        st.session_state["sql"] = known[st.session_state["saved"]].sql
    for name in _CHART:
        st.session_state.pop(name, None)
        st.session_state.pop(f"{name} left", None)
