"""The screens of the menu, and the links between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from urllib.parse import urlencode

import pandas as pd
import streamlit as st
from markupsafe import Markup
from streamlit.navigation.page import Page

from workbench.app import url
from workbench.app.text import table_html, tag

# Module, function and address of a screen have its name. The app opens at the first, whose address needs no name.
SCREENS = ("overview", "compare", "region", "turns", "collapse", "episode", "replay", "run", "sql", "glossary")
TITLES = {"sql": "SQL"}
_INSIDE = re.compile(rf"(\./|{'|'.join(SCREENS)})(\?.*)?", re.DOTALL)
_SEEDS = 10  # of an arm that a line of links names


def page(name: str, path: str | None = None, *, shown: bool = True) -> Page:
    """Make a screen a page of the app, at `path`; by default that is its name, and the root for the first screen."""
    drawn = getattr(import_module(f"workbench.app.screens.{name}"), name)
    # A page at the root reserves a name all the same: one that is no screen's.
    first = path is None and name == SCREENS[0]
    return st.Page(
        drawn, title=TITLES.get(name, name.capitalize()), url_path=path or ("start" if first else name), default=first,
        visibility="visible" if shown else "hidden",
    )  # fmt: skip


def open_screen(name: str, **choices: str | list[str]) -> None:
    """Go to another screen with these choices, from the address that the browser shows: one step of its history."""
    st.switch_page(page(name), query_params=url.ask(choices))


def address(screen: str, **choices: str | Sequence[str]) -> str:
    """Return the address of a screen with these choices, relative to any other. Raises ValueError for no screen."""
    if screen not in SCREENS:
        raise ValueError(f"'{screen}' is no screen of this app")
    return ("./" if screen == SCREENS[0] else screen) + "?" + urlencode(choices, doseq=True)


def episode_address(**place: str) -> str:
    """Return the address of an episode at its worst epoch: experiment, run, step and, if known, trajectory."""
    return address("episode", **place, rank="gradient", epoch="worst")


def anchor(words: str, where: str) -> Markup:
    """Make a link to an address of this app. Raises ValueError for an address that leaves the app."""
    if not _INSIDE.fullmatch(where):
        raise ValueError(f"'{where}' is no screen of this app")
    return tag("a", words, href=where)


def link_line(*parts: Sequence[object]) -> None:
    """Show a line of links and words; each part stays together where the line breaks."""
    st.html(tag("p", *(tag("span", *part) for part in parts), css="sorl-note sorl-links"))


def run_links(runs: pd.DataFrame, experiment: str) -> None:
    """Show a line that opens each of `runs` (arm, seed, run_id) in screen Run."""
    lines = []
    for arm, part in runs.groupby("arm", sort=False):
        first = part.head(_SEEDS)[["seed", "run_id"]].itertuples(index=False, name=None)
        seeds = [anchor(str(seed), address("run", experiment=experiment, run=run)) for seed, run in first]
        more = f" and {len(part) - _SEEDS} more" if len(part) > _SEEDS else ""
        lines.append((arm, ": seed ", Markup(", ").join(seeds), more))
    link_line(["Open a run:"], *lines)


def linked_table(header: Sequence[tuple[str, str]], rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Show a table of rows (address, cells); the first cell is a link. `header` has (name, definition) of a column."""
    st.html(table_html(header, [(anchor(cells[0], where), *cells[1:]) for where, cells in rows], "sorl-listing"))
