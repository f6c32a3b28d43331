"""What every screen has in common: its store, live refresh, what it says when there is nothing to show; small parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path

import streamlit as st

from workbench.app import url
from workbench.app.links import SCREENS
from workbench.app.store import BackgroundSync, State, Store
from workbench.app.text import table_html, tag
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
def store_of(runs: str) -> tuple[Store, BackgroundSync]:
    """Return the answers and the sync of a runs folder, shared by every session of the app."""
    return Store(Path(runs)), BackgroundSync(Path(runs))


def screen(body: Callable[[Store], None]) -> Callable[[], None]:
    """Make a function that draws one screen a page, drawn again when new rows arrive; an InputError is a sentence."""

    @wraps(body)
    def drawn() -> None:
        st.html(_STYLE)
        store, syncing = store_of(os.environ.get("SORL_RUNS") or "runs")
        syncing.look(0.0 if "sorl seen" in st.session_state else _PATIENCE)
        st.session_state["sorl seen"] = True
        state = store.state()
        url.begin(body.__name__)
        try:
            body(store)
            with st.container(key="sorl-address"):
                url.finish(SCREENS)
        except Busy as busy:
            say(f"Waiting for the database: {busy}.")
        except InputError as error:
            if database(store.runs).exists() and not isinstance(error, Empty):
                say(str(error))
            else:
                folder = store.runs.absolute()
                say(f"Nothing to show yet: no run is recorded in {folder}. Train a first grid, or name its folder:")
                commands("sorl run experiments/quickstart.toml", "sorl app --runs OTHER/FOLDER")
        for line in syncing.notes:
            note(line)
        st.session_state[_DRAWN] = True
        _pulse(store, syncing, state)

    return drawn


@st.fragment(run_every=_PULSE)
def _pulse(store: Store, syncing: BackgroundSync, drawn: State) -> None:
    # A new segment is drawn as soon as it is in the database, not at the next pulse. The first check belongs to the
    # drawing of the whole screen, which must not wait.
    syncing.look(0.0 if st.session_state.pop(_DRAWN, False) else _PULSE)
    if not syncing.syncing and store.state() != drawn:
        st.rerun()


def look() -> Palette:
    """Return the colours of the theme that the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def _paragraph(css: str, text: str) -> None:
    st.html(tag("p", text, css=css))


heading = partial(_paragraph, "sorl-question sorl-heading")  # the title of a part of a screen
answer = partial(_paragraph, "sorl-answer")  # the sentence that answers the question of a screen
say = partial(_paragraph, "sorl-warning")  # a sentence in place of what cannot be shown
note = partial(_paragraph, "sorl-note")  # a small remark


def curves_only(missing: str) -> None:
    """Say in a sentence that `missing` is not recorded, and what records it."""
    say(f"{missing} Shipped and exported results hold curves only; a run that is trained here records the rest:")
    commands("sorl run FILE.toml")


def commands(*lines: str) -> None:
    """Show what to type, ready to be copied."""
    st.code("\n".join(lines), language="shell")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, figures: bool = False) -> None:
    """Show a small table that never cuts a cell. With `figures` only cells of the first column break into lines."""
    st.html(table_html(header, rows, "sorl-figures" if figures else ""))
