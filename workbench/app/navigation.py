"""The screens in the order of the menu, and the way from one to another."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from streamlit.navigation.page import Page

# One module a screen; module, function and address have the screen's name. The first is where the app opens: at the
# address without a name.
SCREENS = ("overview", "compare", "region", "turns", "collapse", "episode", "replay", "run", "sql", "glossary")
TITLES = {"sql": "SQL"}
_ROOT = "start"  # no address: a default page is served at the root, and reserves a name all the same


def screens() -> list[str]:
    """The screens that this installation has."""
    return [name for name in SCREENS if find_spec(f"workbench.app.screens.{name}")]


def function(name: str) -> Callable[[], None]:
    """The function that draws a screen."""
    drawn: Callable[[], None] = getattr(import_module(f"workbench.app.screens.{name}"), name)
    return drawn


def page(name: str, *, shown: bool = True) -> Page:
    """A screen as a page of the app; its address is its name, that of the first none."""
    first = name == SCREENS[0]
    return _page(name, _ROOT if first else name, default=first, shown=shown)


def menu(url: str | None) -> list[Page]:
    """Every page of the app, where the browser is at `url`.

    The first screen is two pages, one for each of its addresses, and stands in the menu once: as the one that is open.
    """
    first, *others = screens()
    named = urlsplit(url or "").path.endswith(f"/{first}")
    both = [page(first, shown=not named), _page(first, first, default=False, shown=named)]
    return both + [page(name) for name in others]


def _page(name: str, path: str, *, default: bool, shown: bool) -> Page:
    import streamlit as st

    return st.Page(
        function(name), title=TITLES.get(name, name.capitalize()), url_path=path, default=default,
        visibility="visible" if shown else "hidden",
    )  # fmt: skip


def open_screen(name: str, **parameters: str | list[str]) -> None:
    """Go to another screen with these choices; where it is not installed, say how the terminal answers instead."""
    import streamlit as st

    from workbench.app import address

    if name in screens():
        # At the address that the browser shows: another one would be an entry of its own in the history.
        st.switch_page(page(name), query_params=address.ask(parameters))
    st.toast(f"There is no screen {name} here; `sorl show RUN` prints a run on the terminal.")
