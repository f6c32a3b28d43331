"""Conversations: every text of a run that was kept, searched by words and narrowed by what was measured."""

from collections.abc import Sequence
from typing import NamedTuple

import streamlit as st
from markupsafe import Markup

from sorl.app import export, page, theme
from sorl.app.choices import choose_experiment_and_run
from sorl.app.conversation_search import (
    COLUMNS,
    Hits,
    Snippet,
    find_snippets,
    first_rows,
    pattern_of,
    search_conversations,
)
from sorl.app.data import Row
from sorl.app.figures.hits import share_of_hits
from sorl.app.page import anchor, answer, episode_address, look, note, say, screen
from sorl.app.queries import Store
from sorl.app.sentences.conversations import describe_hits, describe_kept
from sorl.app.text import number, percent, table_html, tag, word
from sorl.app.url import choose, search_box

_LISTED = ("reward", "advantage", "success", "n_turns", "n_tokens", "gradient_share", "ended")
_CUT = 160  # characters of a question or an answer in the list


class Asked(NamedTuple):
    """What is searched for, and in which order the conversations stand."""

    words: str
    pattern: str
    conditions: str
    order: str

    @property
    def narrows(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.words or self.conditions)


@screen
def conversations(store: Store) -> None:
    """Show what the policy said, where, and how often."""
    experiment, all_runs, run = choose_experiment_and_run(store)
    asked = _ask()
    hits = search_conversations(store, str(run["run_id"]), asked.pattern, asked.conditions)
    if hits.with_text.empty:
        page.not_recorded("No text of this run", "table transcript (record.transcript_tokens above 0)")
        return
    for remark in hits.remarks:
        say(remark)
    answer(describe_hits(hits, asked.narrows))
    if asked.narrows:
        _draw_shares(hits, run)
    _list(store, experiment, run, hits, asked)
    size = store.records("text_size", run=str(run["run_id"]))[0]["bytes"]
    note(describe_kept(hits, size))
    names = ", ".join(COLUMNS.values())
    note(f"Conditions know: {names}. Other words are looked for in answer, question and ending.")
    page.run_links(all_runs[all_runs["run_id"] == run["run_id"]], experiment)


def _ask() -> Asked:
    """Read what is searched for from the address, and draw its controls."""
    first, second, third, fourth = st.columns([3, 1, 3, 1.2])
    with first:
        words = search_box("words", "Search all texts", "words, in any case")
    with second:
        kinds = {"text": "text", "regex": "regex"}
        is_regex = choose("kind", "Read as", kinds, kind="row") == "regex"
    with third:
        conditions = search_box("fits", "Only those with", "solved = no, turns > 2, tokens < 100")
    with fourth:
        orders = {"step": "step", "gradient_share": "gradient", "n_tokens": "length", "reward": "reward"}
        order = choose("order", "Order by", orders)
    return Asked(words, pattern_of(words, is_regular_expression=is_regex), conditions, order)


def _draw_shares(hits: Hits, run: Row) -> None:
    palette = look()
    colour = theme.colour(str(run["algorithm"]), palette)
    words = f"Share of the conversations that fit, over {hits.with_text['step'].nunique()} steps."
    export.figure(
        share_of_hits(hits.by_step, colour, palette), "conversations", lambda: hits.by_step, describe=words
    )


def _list(store: Store, experiment: str, run: Row, hits: Hits, asked: Asked) -> None:
    """List the conversations that fit, with the first match in each; a number opens the episode."""
    if hits.fitting.empty:
        return
    rows = first_rows(hits.fitting, asked.order)
    snippets = find_snippets(store, str(run["run_id"]), rows, asked.pattern)
    if len(hits.fitting) > len(rows):
        note(f"The first {len(rows)} of {len(hits.fitting):,}.")
    last = "what it says" if asked.pattern else "answer"
    header = ["step", "trajectory", *(COLUMNS[name] for name in _LISTED), last]
    place = {"experiment": experiment, "run": str(run["run_id"])}
    lines = [_line(row, place, snippets.get((row["step"], row["trajectory"]))) for row in rows]
    st.html(table_html(header, lines, "sorl-listing sorl-asked"))


def _line(row: Row, place: dict[str, str], snippet: Snippet | None) -> Sequence[object]:
    where = {**place, "step": str(row["step"]), "trajectory": str(row["trajectory"])}
    share = row["gradient_share"]
    return [
        str(row["step"]),
        anchor(str(row["trajectory"]), episode_address(**where)),
        number(row["reward"]),
        number(row["advantage"]),
        word(row["success"]),
        number(row["n_turns"]),
        number(row["n_tokens"]),
        number(share) if share is None or share != share else percent(share),
        word(row["ended"]),
        _marked(snippet) if snippet else _cut(row["answer"]),
    ]


def _cut(text: str | None) -> str:
    shown = word(text)
    return shown if len(shown) <= _CUT else f"{shown[:_CUT]}…"


def _marked(snippet: Snippet) -> Markup:
    return tag("span", "…", snippet.before, tag("mark", snippet.match, css="sorl-hit"), snippet.behind, "…")
