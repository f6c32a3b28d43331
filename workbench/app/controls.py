"""Widgets whose value is in the address: a link opens the same view, and the back button takes a choice back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

import streamlit as st

from workbench.app import selection
from workbench.app.address import arrive, leave, taken
from workbench.app.page import note
from workbench.app.picks import picked
from workbench.app.safe import markdown_text, visible

Words = Callable[[str], str]


def choose(
    name: str, label: str, options: Sequence[str], default: str | None = None, *, kind: Literal["list", "row"] = "list",
    words: Words = str, help: str | None = None, width: int | Literal["stretch"] = "stretch",
) -> str:  # fmt: skip
    """One of `options` (of at least one), kept in URL parameter `name`; drawn as a list, or as a row of words."""
    first = default if default is not None and default in options else options[0]
    _say(arrive(name, lambda given: selection.one(name, given, options, first), lambda value: value in options))
    chosen: str | None
    if kind == "list":
        chosen = st.selectbox(label, options, key=name, format_func=lambda o: visible(words(o)), help=help, width=width)
    else:
        chosen = st.segmented_control(
            label, options, key=name, format_func=lambda o: markdown_text(words(o)), help=help, required=True
        )
    value = str(chosen or first)
    leave(name, [value])
    return value


def choose_many(
    name: str, label: str, options: Sequence[str], default: Sequence[str], *, words: Words = str,
    help: str | None = None, most: int | None = None,
) -> list[str]:  # fmt: skip
    """Several of `options`, in the order they were chosen, kept in URL parameter `name`; may be empty."""

    def read(given: Sequence[str]) -> tuple[list[str], list[str]]:
        fits, ignored = selection.many(name, given, options, default)
        return fits[:most], ignored

    _say(arrive(name, read, lambda value: set(value) <= set(options)))
    chosen = st.multiselect(
        label, options, key=name, format_func=lambda o: visible(words(o)), help=help, max_selections=most, wrap=True
    )
    leave(name, chosen)
    return chosen


def choose_range(name: str, label: str, low: int, high: int, *, help: str | None = None) -> tuple[int, int]:
    """A range inside [low, high], kept in URL parameter `name`; the whole range stays out of the address.

    `picks.follow` sets it, too. A range that reaches the present end of a live run goes on reaching it.
    """
    pick = picked(name)
    if low >= high:
        leave(name, [])
        return low, high
    ends = f"{name} ends"
    before = st.session_state.get(ends)
    if before not in (None, (low, high)) and name in st.session_state:
        first, last = st.session_state[name]
        first, last = low if first == before[0] else first, high if last == before[1] else last
        inside = low <= first <= last <= high
        st.session_state[name] = (first, last) if inside else (low, high)
    st.session_state[ends] = (low, high)
    if pick is not None:
        st.session_state[name], _ = selection.between(name, pick, low, high)
        taken(name)
    _say(arrive(name, lambda given: selection.between(name, given, low, high), lambda v: low <= v[0] <= v[1] <= high))
    first, last = cast("tuple[int, int]", st.slider(label, low, high, key=name, help=help))
    leave(name, [] if (first, last) == (low, high) else [selection.written(first, last)])
    return first, last


def _say(ignored: Sequence[str]) -> None:
    for words in ignored:
        note(f"Ignored in the address: {words}.")
