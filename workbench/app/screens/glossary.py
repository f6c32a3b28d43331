"""Glossary: every diagnostic and every algorithm, with unit, formula, source, alarm and what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from workbench.algorithms import ALGORITHMS, ALIASES, SYMBOLS
from workbench.app import cards
from workbench.app.controls import choose
from workbench.app.diagnostics import dictionary
from workbench.app.entries import Entry, entries, search
from workbench.app.page import note, screen
from workbench.app.search import search_box
from workbench.diagnostics.collapse import collapse_rule
from workbench.diagnostics.declare import SYMBOLS as NOTATION
from workbench.objective import KINDS

if TYPE_CHECKING:
    from workbench.app.data import Store
    from workbench.objective import Algorithm, Slot

_STYLE = Path(__file__).parents[1] / "glossary.css"
_PARTS = {"diagnostics": "Diagnostics", "algorithms": "Algorithms", "slots": "Slots", "collapse": "Collapse rule"}
_KINDS = [(slot, kind()) for slot, kinds in KINDS.items() for kind in kinds.values()]  # with their defaults
_LINE = 1000  # pixels that a line of text takes at most


@screen
def glossary(store: Store) -> None:
    """What a word, a column or an algorithm means, and where that comes from."""
    st.html(_STYLE)
    known = entries(dictionary(store).rows.values())
    words, parts = st.columns([2, 3], vertical_alignment="bottom")
    with words:
        asked = search_box("find", "Search", "grad_norm, KL, arXiv 2511.20718, nats, ...")
    found: dict[str, list[Any]] = {
        "diagnostics": search(known, asked, lambda e: e.name, lambda e: e.text),
        "algorithms": search(list(ALGORITHMS.values()), asked, lambda a: a.name, _about),
        "slots": search(_KINDS, asked, lambda k: k[1].kind, _told),
    }
    with parts:
        part = choose("part", "Part", list(_PARTS), kind="row", words=lambda p: _label(p, found, asked))
    if part in found and not found[part]:
        note(f"Nothing here holds '{asked}'.")
        return
    draw: dict[str, Callable[[list[Any]], None]] = {
        "diagnostics": _diagnostics, "algorithms": _algorithms, "slots": _slots, "collapse": _collapse,
    }  # fmt: skip
    draw[part](found.get(part, []))


def _label(part: str, found: dict[str, list[Any]], asked: str) -> str:
    """The name of a part, with how many of its entries hold what is searched for."""
    return f"{_PARTS[part]} {len(found[part])}" if asked and part in found else _PARTS[part]


def _about(one: Algorithm) -> str:
    """The text of an algorithm that the search looks through."""
    slots = (" ".join([slot, getattr(one, slot).kind, *getattr(one, slot).options()]) for slot in KINDS)
    aliases = [alias for alias, name in ALIASES.items() if name == one.name]
    return " ".join([one.title, one.summary, *aliases, one.paper, *slots])


def _told(kind: tuple[str, Slot]) -> str:
    """The text of a kind of a slot that the search looks through."""
    return " ".join([kind[0], kind[1].kind, *kind[1].options(), cards.definition(kind[1])])


def _diagnostics(found: list[Entry]) -> None:
    wide, narrow = st.columns([5, 3], gap="large")
    with wide:
        note("Each diagnostic with its unit and the tables that hold it as a column of its name.")
        st.html("".join(map(cards.diagnostic, found)))
    with narrow, st.container(key="notation"):
        st.html(f'<p class="sorl-term"><b>Notation</b></p>{cards.notation(NOTATION)}')
        note("A column that was not measured is NULL, never 0; NaN and Inf are stored as themselves.")


def _algorithms(found: list[Algorithm]) -> None:
    for one in found:
        left, right = st.columns([6, 5], gap="large")
        with left:
            st.html(cards.about(one))
            st.latex(one.formula)
        with right:
            st.html(cards.algorithm(one))
    note(SYMBOLS)


def _slots(found: list[tuple[str, Slot]]) -> None:
    note(
        "An algorithm is a choice for each slot. Any slot can be set in a grid file: "
        'algorithm = { base = "ppo", ratio = { level = "turn" } }.'
    )
    for slot in dict.fromkeys(slot for slot, _ in found):
        st.html(cards.kinds(slot, [kind for of, kind in found if of == slot]))


def _collapse(_: list[Any]) -> None:
    st.markdown(collapse_rule(), width=_LINE)
