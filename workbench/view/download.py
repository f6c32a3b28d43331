"""A button that makes a file when it is pressed, and holds it until the browser has fetched it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Timer

import streamlit as st
from streamlit import runtime
from streamlit.runtime.media_file_manager import MediaFileManager

_HELD = 60.0  # seconds: a browser fetches the file as soon as it is told where it is
_PLACES = 8  # files that are held at the same time, the last ones
_next = count()
_latest: dict[str, int] = {}


def button(label: str, make: Callable[[], bytes], file: str, kind: str, key: str) -> None:
    """A button `label` that saves what `make` returns as `file`, of media type `kind`."""
    st.download_button(label, lambda: held(make(), file, kind), file, kind, key=key, type="tertiary", on_click="ignore")


def held(data: bytes, file: str, kind: str) -> bytes:
    """`data`, which the running app serves as `file` from now on, for a minute.

    Of its own accord Streamlit drops a file that was made on demand as soon as two runs of a script have ended, in any
    session; the look for new rows is such a run, twice a second, and a large file came too late.
    """
    if runtime.exists():
        manager = runtime.get_instance().media_file_mgr
        number = next(_next)
        place = f"sorl download {number % _PLACES}"
        _latest[place] = number
        manager.add(data, kind, place, file, is_for_static_download=True)
        timer = Timer(_HELD, _release, [manager, place, number, file, kind])
        timer.daemon = True
        timer.start()
    return data


def _release(manager: MediaFileManager, place: str, number: int, file: str, kind: str) -> None:
    """Hold nothing in `place`, if file `number` is still the one there: it goes with the next runs."""
    if _latest[place] == number:
        manager.add(b"", kind, place, file, is_for_static_download=True)
