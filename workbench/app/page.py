"""What every screen has in common: the store, live refresh, and what it says when there is nothing to show."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import streamlit as st

from workbench.app import address
from workbench.app.data import State, Store
from workbench.app.keeper import Keeper
from workbench.app.navigation import SCREENS
from workbench.app.safe import html_text
from workbench.app.theme import DARK, LIGHT, Palette
from workbench.spec import InputError
from workbench.store.connect import Busy, database

_PULSE = 0.5  # seconds between two looks at whether the database has changed
_PATIENCE = 0.5  # seconds that a screen waits for the first sync of a session
_DRAWN = "sorl drawn"
_STYLE = Path(__file__).parent / "style.css"


class Empty(InputError):
    """The database has no run yet."""


@st.cache_resource(show_spinner=False)
def store_of(runs: str) -> tuple[Store, Keeper]:
    """The answers and the keeper of a runs folder, shared by every session of the app."""
    return Store(Path(runs)), Keeper(Path(runs))


def screen(body: Callable[[Store], None]) -> Callable[[], None]:
    """A function that draws one screen from a store becomes a page of the app.

    The page follows the database: it is drawn again when a running training wrote rows. Wrong input, a missing, empty
    or busy database are sentences that say what to type.
    """

    @wraps(body)
    def drawn() -> None:
        st.html(_STYLE)
        store, keeper = store_of(os.environ.get("SORL_RUNS") or "runs")
        keeper.look(0.0 if "sorl seen" in st.session_state else _PATIENCE)
        st.session_state["sorl seen"] = True
        state = store.state()
        address.begin(body.__name__)
        try:
            body(store)
            with st.container(key="sorl-address"):
                address.finish(SCREENS)
        except Busy as busy:
            say(f"Waiting for the database: {busy}.")
        except InputError as error:
            _nothing(store, error)
        for line in keeper.notes:
            note(line)
        st.session_state[_DRAWN] = True
        _pulse(store, keeper, state)

    return drawn


@st.fragment(run_every=_PULSE)
def _pulse(store: Store, keeper: Keeper, drawn: State) -> None:
    # A segment that has just come is drawn as soon as it is in the database, and not at the next pulse. The first look
    # belongs to the drawing of the whole screen, which nothing may hold up.
    keeper.look(0.0 if st.session_state.pop(_DRAWN, False) else _PULSE)
    if not keeper.syncing and store.state() != drawn:
        st.rerun()


def _nothing(store: Store, error: InputError) -> None:
    if database(store.runs).exists() and not isinstance(error, Empty):
        say(str(error))
        return
    say(f"Nothing to show yet: no run is recorded in {store.runs.absolute()}. Train a first grid, or name its folder:")
    commands("sorl run experiments/quickstart.toml", "sorl app --runs OTHER/FOLDER")


def look() -> Palette:
    """The colours of the theme that the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def heading(text: str) -> None:
    """The title of a part of a screen; the text is shown literally."""
    st.html(f'<p class="sorl-question sorl-heading">{html_text(text)}</p>')


def say(text: str) -> None:
    """A sentence that stands in for what cannot be shown."""
    st.html(f'<p class="sorl-warning">{html_text(text)}</p>')


def curves_only(missing: str) -> None:
    """Say in a sentence that `missing` is not recorded, and what records it."""
    say(f"{missing} Shipped and exported results hold curves only; a run that is trained here records the rest:")
    commands("sorl run FILE.toml")


def note(text: str) -> None:
    """A small remark; the text is shown literally."""
    st.html(f'<p class="sorl-note">{html_text(text)}</p>')


def commands(*lines: str) -> None:
    """What to type, ready to be copied."""
    st.code("\n".join(lines), language="shell")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, figures: bool = False) -> None:
    """A small table of literal texts that never cuts a cell; a header of one cell stands over all columns.

    With `figures` only the cells of the first column are broken into lines.
    """
    span = f' colspan="{len(rows[0])}"' if rows and len(header) == 1 else ""
    head = "".join(f"<th{span}>{html_text(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{html_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = "sorl-table sorl-figures" if figures else "sorl-table"
    st.html(f'<div class="sorl-scroll"><table class="{kind}"><tr>{head}</tr>{body}</table></div>')
