"""The screens in the order of the menu, and the way from one to another."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlit.navigation.page import Page

# One module a screen; module, function and address have the screen's name. The first is where the app opens.
SCREENS = ("overview", "compare", "region", "turns", "collapse", "episode", "replay", "run", "sql", "glossary")
TITLES = {"sql": "SQL"}


def screens() -> list[str]:
    """The screens that this installation has."""
    return [name for name in SCREENS if find_spec(f"workbench.view.screens.{name}")]


def function(name: str) -> Callable[[], None]:
    """The function that draws a screen."""
    drawn: Callable[[], None] = getattr(import_module(f"workbench.view.screens.{name}"), name)
    return drawn


def page(name: str) -> Page:
    """A screen as a page of the app; its address is its name."""
    import streamlit as st

    return st.Page(function(name), title=TITLES.get(name, name.capitalize()), url_path=name, default=name == SCREENS[0])


def open_screen(name: str, **parameters: str | list[str]) -> None:
    """Go to another screen with these choices; where it is not installed, say how the terminal answers instead."""
    import streamlit as st

    if name in screens():
        st.switch_page(page(name), query_params=parameters)
    st.toast(f"There is no screen {name} here; `sorl show RUN` prints a run on the terminal.")
