"""What was asked in SQL and what came of it, kept for the session so that a slow question is asked once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import streamlit as st

from workbench.spec import InputError
from workbench.store.connect import Busy

if TYPE_CHECKING:
    import pyarrow as pa

    from workbench.app.data import State, Store
    from workbench.store.reader import Excerpt

ROWS, SIZE = 10_000, 16 * 2**20  # of a table on the screen, in bytes: what a browser takes without a pause
FILE_ROWS, _FILE_SIZE = 1_000_000, 256 * 2**20  # of a file
_QUICK = 1.0  # seconds: a question that took no longer is asked again by itself when new rows arrive
_KEPT = "sorl asked"


@dataclass(frozen=True)
class Asked:
    """A question, the state of the database it was put to, and the answer or the mistake in it."""

    text: str
    state: State
    seconds: float
    answer: Excerpt | None = None
    mistake: str = ""


def asked(store: Store, text: str, *, again: bool = False) -> Asked:
    """The answer to `text`: the last one while nothing has changed, or while asking anew would take long.

    Raises Busy while somebody else holds the database.
    """
    last: Asked | None = st.session_state.get(_KEPT)
    state = store.state()
    if last and last.text == text and not again and (last.state == state or last.seconds > _QUICK):
        return last
    began = time.monotonic()
    try:
        with st.spinner("Asking ..."):
            found = Asked(text, state, 0.0, answer=store.reader.excerpt(text, rows=ROWS, size=SIZE))
    except Busy:
        raise
    except InputError as error:
        found = Asked(text, state, 0.0, mistake=str(error))
    found = Asked(text, state, time.monotonic() - began, found.answer, found.mistake)
    st.session_state[_KEPT] = found
    return found


def whole(store: Store, question: Asked) -> pa.Table:
    """The answer for a file: asked anew where the screen shows only its beginning. Raises as the reader does."""
    answer = question.answer
    if answer is None or answer.cut:
        return store.reader.excerpt(question.text, rows=FILE_ROWS, size=_FILE_SIZE).table
    return answer.table
