"""Notes on a run and its parts: shown where they belong, written below."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from sorl.app.data import Row
from sorl.app.page import anchor, episode_address, note, say
from sorl.app.queries import Store
from sorl.app.text import tag, word
from sorl.spec import InputError
from sorl.store.notes import LONGEST
from sorl.store.part_notes import LONGEST_TAG, PartNote, append_note, withdraw_note

_MOST = 100  # notes that are listed


def notes_of(store: Store, run_id: str) -> Sequence[Row]:
    """Return the notes on a run and its parts that nobody took back."""
    return store.records("notes", run=run_id)


def token_notes(notes: Sequence[Row], step: int, trajectory: int) -> dict[int, str]:
    """Return what is noted of tokens of a trajectory, by token; notes on the same one in lines."""
    lines: dict[int, list[str]] = {}
    for row in notes:
        is_here = (row["step"], row["trajectory"]) == (step, trajectory)
        if is_here and row["first_token"] is not None:
            for token in range(row["first_token"], row["last_token"] + 1):
                lines.setdefault(token, []).append(_words(row))
    return {token: "\n".join(words) for token, words in lines.items()}


def place_in_words(row: Row) -> str:
    """Name the part of a run that a note is about."""
    if row["step"] is None:
        return "the run"
    place = f"step {row['step']:,}"
    if row["trajectory"] is not None:
        place += f", trajectory {row['trajectory']:,}"
    if row["first_token"] is not None:
        first = row["first_token"]
        last = row["last_token"]
        place += f", token {first:,}" if first == last else f", tokens {first:,} to {last:,}"
    return place


def note_events(notes: Sequence[Row]) -> pd.DataFrame:
    """Return the notes that are about a step as events of a curve, of kind `note`."""
    rows = [
        {
            "step": row["step"],
            "kind": "note",
            "severity": "info",
            "message": f"{place_in_words(row)}: {_words(row)}",
            "episode": row["trajectory"] is not None,
        }
        for row in notes
        if row["step"] is not None
    ]
    return pd.DataFrame(rows, columns=["step", "kind", "severity", "message", "episode"])


def show_notes(store: Store, experiment: str, run_id: str, notes: Sequence[Row]) -> None:
    """List notes, each with a link to its part and a button that takes it back."""
    for row in notes[:_MOST]:
        words, button = st.columns([10, 2], vertical_alignment="center")
        with words:
            st.html(_paragraph(experiment, run_id, row))
        with button:
            if st.button("Take back", key=f"withdraw {row['note']}", width="stretch"):
                _try(partial(withdraw_note, store.runs, experiment, run_id, row["note"]))
    if len(notes) > _MOST:
        note(f"The first {_MOST} of {len(notes):,} notes. All: view current_note.")


def write_note(store: Store, experiment: str, run_id: str, places: dict[str, PartNote]) -> None:
    """Show a form for a note on one of some places: their names, and notes that have only a place."""
    with st.form(f"new note {run_id} {'/'.join(places)}", border=False, clear_on_submit=True):
        where, words, name = st.columns([1, 3, 1])
        with where:
            place = st.selectbox("Note on", list(places))
        with words:
            text = st.text_input("Text", max_chars=LONGEST)
        with name:
            label = st.text_input("Tag", max_chars=LONGEST_TAG)
        is_sent = st.form_submit_button("Add the note")
    if is_sent:
        written = replace(places[place], text=text, tag=label)
        _try(partial(append_note, store.runs, experiment, run_id, written))


def _try(write: Callable[[], Any]) -> None:
    """Write, and say what is wrong where that fails. The row shows when the store has read it."""
    try:
        write()
    except InputError as error:
        say(f"{error}.")


def _words(row: Row) -> str:
    return f"{row['tag']}: {row['text']}" if row["tag"] else str(row["text"])


def _paragraph(experiment: str, run_id: str, row: Row) -> Any:
    where = {name: str(row[name]) for name in ("step", "trajectory") if row[name] is not None}
    place: Any = tag("b", place_in_words(row))
    if where:
        place = anchor(place_in_words(row), episode_address(experiment=experiment, run=run_id, **where))
    label = tag("span", row["tag"], css="sorl-pill") if row["tag"] else ""
    when = tag("span", f" {row['written_at']:%Y-%m-%d %H:%M} UTC", css="sorl-unit")
    return tag("p", place, " ", label, " ", word(row["text"]), when, css="sorl-finding sorl-info")
