"""What is picked in a figure or typed as a number: kept in the address like any other choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import streamlit as st

from workbench.app import selection
from workbench.app.address import arrive, leave, left, news, taken
from workbench.app.page import note
from workbench.app.safe import visible

T = TypeVar("T")


def choose_number(name: str, label: str, low: int, high: int, default: int, *, help: str | None = None) -> int:
    """A whole number in [low, high], kept in URL parameter `name`."""

    def read(given: Sequence[str]) -> tuple[int, list[str]]:
        (first, _), ignored = selection.between(name, [f"{value}..{value}" for value in given[:1]], low, high)
        if not given or ignored:
            return default, [f"{name} = {visible(value)[:60]!r}" for value in given[:1]]
        return first, []

    if (pick := picked(name)) is not None:
        st.session_state[name], _ = read(pick)
        taken(name)
    for words in arrive(name, read, lambda value: low <= value <= high):
        note(f"Ignored in the address: {words}.")
    if low >= high:
        leave(name, [str(low)])
        return low
    value = int(st.number_input(label, low, high, key=name, step=1, help=help, width=160))
    leave(name, [str(value)])
    return value


def keep(name: str, under: Hashable, read: Callable[[Sequence[str]], T], written: Callable[[T], Sequence[str]]) -> T:
    """What was picked in a figure, kept in URL parameter `name` as long as the view that it belongs to is the same.

    `under` names that view (a run and its step, say): in another one the pick means nothing, and `read` gets nothing.
    """
    place = f"{name} under"
    same = st.session_state.get(place) == under
    st.session_state[place] = under
    pick, given = picked(name), news(name)
    value = read(pick if pick is not None else given if given is not None else left(name) if same else [])
    leave(name, written(value))
    return value


def follow(name: str, values: Sequence[str]) -> None:
    """Draw the view again with another pick; it is one step in the address."""
    st.session_state[f"{name} picked"] = list(values)
    st.rerun()


def zoom(name: str, ends: tuple[float, float] | None) -> None:
    """Draw the view again with the whole steps between `ends` as the range `name`, three steps at least."""
    if ends is None:
        return
    first, last = math.ceil(ends[0]), math.floor(ends[1])
    middle = round((ends[0] + ends[1]) / 2)
    follow(name, [selection.written(first, last) if last - first > 1 else selection.written(middle - 1, middle + 1)])


def picked(name: str) -> list[str] | None:
    """What `follow` was just called with for parameter `name`; None for nothing."""
    found: list[str] | None = st.session_state.pop(f"{name} picked", None)
    return found
