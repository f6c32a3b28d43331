"""A button that makes a file when it is pressed, and holds it until the browser has fetched it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from itertools import count
from threading import Thread, Timer
from typing import TYPE_CHECKING

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import add_script_run_ctx, get_script_run_ctx

if TYPE_CHECKING:
    from streamlit.runtime.scriptrunner import ScriptRunContext

_HELD = 60.0  # seconds: a browser fetches the file as soon as it is told where it is
_MOST = 8  # files that are held at the same time, the last ones
_next = count()


def button(label: str, make: Callable[[], bytes], file: str, kind: str, key: str) -> None:
    """A button `label` that saves what `make` returns as `file`, of media type `kind`."""
    drawing = get_script_run_ctx()

    def made() -> bytes:
        data = make()
        if drawing is not None:
            hold(data, file, kind, drawing)
        return data

    st.download_button(label, made, file, kind, key=key, type="tertiary", on_click="ignore")


def hold(data: bytes, file: str, kind: str, drawing: ScriptRunContext) -> None:
    """Have the running app serve `data` as `file` from now on, for a minute; `drawing` drew the button.

    Of its own accord Streamlit drops a file that was made on demand as soon as two runs of a script have ended, in any
    session; the look for new rows is such a run, twice a second, and a large file came too late. What a session holds
    stays until that session ends or draws anew. So each file gets a session to itself, which draws nothing: Streamlit
    takes it from the context of the thread, and a button is pressed in a thread that has none.
    """
    manager = runtime.get_instance().media_file_mgr
    number = next(_next)
    owner = copy(drawing)
    owner.session_id = _owner(number)
    holding = Thread(target=manager.add, args=(data, kind, "file", file, True), name=owner.session_id)
    add_script_run_ctx(holding, owner)
    holding.start()
    holding.join()
    manager.clear_session_refs(_owner(number - _MOST))
    timer = Timer(_HELD, manager.clear_session_refs, [owner.session_id])
    timer.daemon = True
    timer.start()


def _owner(number: int) -> str:
    return f"sorl download {number}"
