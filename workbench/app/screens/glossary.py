"""Glossary: every diagnostic and every algorithm, with unit, formula, source, alarm and what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from workbench.app import cards
from workbench.app.controls import choose
from workbench.app.declared import declared
from workbench.app.diagnostics import dictionary
from workbench.app.entries import Entry, entries, search
from workbench.app.page import Empty, note, screen
from workbench.app.search import search_box

if TYPE_CHECKING:
    from workbench.app.data import Store

_STYLE = Path(__file__).parents[1] / "glossary.css"
_PARTS = {"diagnostics": "Diagnostics", "algorithms": "Algorithms", "slots": "Slots", "collapse": "Collapse rule"}
_LINE = 1000  # pixels that a line of text takes at most


@screen
def glossary(store: Store) -> None:
    """What a word, a column or an algorithm means, and where that comes from."""
    st.html(_STYLE)
    known = entries(dictionary(store).rows.values())
    words, parts = st.columns([2, 3], vertical_alignment="bottom")
    with words:
        asked = search_box("find", "Search", "grad_norm, KL, arXiv 2511.20718, nats, ...")
    found = {
        "diagnostics": search(known, asked, lambda e: e.name, lambda e: e.text),
        "algorithms": search(declared()["algorithm"], asked, lambda a: str(a["name"]), _about),
        "slots": search(declared()["kind"], asked, lambda k: str(k["kind"]), lambda k: " ".join(k.values())),
    }
    with parts:
        part = choose("part", "Part", list(_PARTS), kind="row", words=lambda p: _label(p, found, asked))
    if part == "diagnostics" and not known:
        raise Empty("the dictionary of this database is empty: `sorl run experiments/quickstart.toml`")
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


def _about(algorithm: dict[str, Any]) -> str:
    slots = (f"{s['slot']} {s['kind']} {s['options']}" for s in algorithm["slot"])
    return " ".join([algorithm["title"], algorithm["description"], *algorithm["aliases"], algorithm["paper"], *slots])


def _diagnostics(found: list[Entry]) -> None:
    wide, narrow = st.columns([5, 3], gap="large")
    with wide:
        note("Each diagnostic with its unit and the tables that hold it as a column of its name.")
        st.html("".join(map(cards.diagnostic, found)))
    with narrow, st.container(key="notation"):
        st.html(f'<p class="sorl-term"><b>Notation</b></p>{cards.notation(declared()["notation"])}')
        note("A column that was not measured is NULL, never 0; NaN and Inf are stored as themselves.")


def _algorithms(found: list[dict[str, Any]]) -> None:
    every = {one["name"]: one for one in declared()["algorithm"]}
    for one in found:
        left, right = st.columns([6, 5], gap="large")
        with left:
            st.html(cards.about(one))
            st.latex(one["formula"])
        with right:
            st.html(cards.algorithm(one, every))
    note(declared()["symbols"])


def _slots(found: list[dict[str, Any]]) -> None:
    note(
        "An algorithm is a choice for each slot. Any slot can be set in a grid file: "
        'algorithm = { base = "ppo", ratio = { level = "turn" } }.'
    )
    for slot in dict.fromkeys(kind["slot"] for kind in found):
        st.html(cards.kinds(slot, [kind for kind in found if kind["slot"] == slot]))


def _collapse(_: list[Any]) -> None:
    st.markdown(declared()["collapse_rule"], width=_LINE)
