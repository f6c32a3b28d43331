"""The address of the screen: written once a drawing, so that every view is a link and the back button works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

_NOW, _BEFORE, _SCREEN = "sorl address", "sorl address before", "sorl screen"


def begin(screen: str) -> None:
    """Start to collect what the screen's controls say."""
    st.session_state[_NOW] = {}
    if st.session_state.get(_SCREEN) != screen:
        st.session_state[_SCREEN] = screen
        st.session_state[_BEFORE] = None


def arrive(name: str, read: Callable[[Sequence[str]], tuple[Any, list[str]]], fits: Callable[[Any], bool]) -> list[str]:
    """Give control `name` the value of the address, when that came from outside: a link, the back button, the menu.

    An address without the parameter keeps what was chosen before, on this screen or another. Returns what was ignored.
    """
    given, left = st.query_params.get_all(name), st.session_state.get(f"{name} left", [])
    # A control of the screen before may still have its value here, though the one of this screen does not get it: where
    # the look for new rows was asked for together with this screen.
    mine = name in st.session_state and st.session_state.get(f"{name} on") == st.session_state[_SCREEN]
    if mine and given in (left, []) and fits(st.session_state[name]):
        return []
    value, ignored = read(given or left)
    st.session_state[name] = value
    return ignored if given else []


def leave(name: str, values: Sequence[str]) -> None:
    """What control `name` says in the address; nothing where it stands at what needs no saying."""
    st.session_state[f"{name} left"] = list(values)
    st.session_state[f"{name} on"] = st.session_state[_SCREEN]
    st.session_state[_NOW][name] = list(values)


def finish() -> None:
    """Write the whole address, if a choice has changed or the screen was just opened.

    One write is one step back. After a step back to an incomplete address nothing is written, or there would be no way
    further back.
    """
    wanted = {name: values for name, values in st.session_state[_NOW].items() if values}
    changed = wanted != st.session_state[_BEFORE]
    st.session_state[_BEFORE] = wanted
    if changed and {name: st.query_params.get_all(name) for name in st.query_params} != wanted:
        st.query_params.from_dict(wanted)
