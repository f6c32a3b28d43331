"""Search the conversations of a run: by what they say, and by reward, length, outcome, turns or step."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from sorl.app.data import Row
from sorl.app.queries import Store
from sorl.app.run_search import find_runs
from sorl.spec import InputError

SHOWN = 50  # conversations in the list
_AROUND = 70  # characters before and behind a match that are shown
# Column of query `rollouts` -> what it is called in a condition and in the list.
COLUMNS = {
    "step": "step",
    "trajectory": "trajectory",
    "reward": "reward",
    "advantage": "advantage",
    "success": "solved",
    "n_turns": "turns",
    "n_searches": "searches",
    "n_tokens": "tokens",
    "gradient_share": "gradient",
    "ended": "ended",
    "answer": "answer",
    "question": "question",
}
_PLACE = ["step", "trajectory"]


class Hits(NamedTuple):
    """What a search found: the conversations with text, those that fit, and sentences on what was not
    understood.
    """

    rollouts: pd.DataFrame  # all of the run
    with_text: pd.DataFrame
    fitting: pd.DataFrame
    remarks: list[str]

    @property
    def by_step(self) -> pd.DataFrame:
        """Of each step with text: how many conversations there are, how many of them fit, and the share."""
        count = self.with_text.groupby("step").size().rename("conversations")
        found = self.fitting.groupby("step").size().rename("found")
        steps = pd.concat([count, found], axis=1).fillna(0).astype(int).reset_index()
        return steps.assign(share=steps["found"] / steps["conversations"])


def pattern_of(words: str, *, is_regular_expression: bool) -> str:
    """Return the expression (RE2) that finds `words` in any case; empty for no words."""
    if not words:
        return ""
    return f"(?i){words if is_regular_expression else _escaped(words)}"


def _escaped(words: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", words)


def search_conversations(store: Store, run: str, pattern: str, conditions: str) -> Hits:
    """Return the conversations of a run that match a pattern and fulfil all conditions.

    Raises InputError where the pattern is no regular expression.
    """
    rollouts = store.query("rollouts", run=run)
    table = rollouts[list(COLUMNS)].rename(columns=COLUMNS)
    table = table.assign(solved=table["solved"].map({True: "yes", False: "no"}))
    found = find_runs(table, conditions)
    with_text = rollouts[rollouts["has_text"]]
    fitting = with_text[with_text.index.isin(found.runs.index)]
    if pattern:
        hits = _matching(store, run, pattern)
        fitting = fitting[pd.MultiIndex.from_frame(fitting[_PLACE]).isin(hits)]
    return Hits(rollouts, with_text, fitting, found.remarks)


def _matching(store: Store, run: str, pattern: str) -> pd.MultiIndex:
    """Return step and trajectory of the conversations of a run that match a pattern."""
    try:
        return pd.MultiIndex.from_frame(store.query("text_hits", run=run, pattern=pattern)[_PLACE])
    except InputError as error:
        expression = pattern.removeprefix("(?i)")
        why = str(error).strip().splitlines()[0]
        raise InputError(f"'{expression}' is no regular expression: {why}") from None


def first_rows(fitting: pd.DataFrame, order: str) -> list[Row]:
    """Return the first SHOWN conversations by step, or those with most of column `order`."""
    by = list(dict.fromkeys([order, *_PLACE]))
    ordered = fitting.sort_values(by, ascending=[name in _PLACE for name in by]).head(SHOWN)
    rows: list[Row] = [*ordered.astype(object).where(ordered.notna(), None).to_dict("records")]
    return rows


class Snippet(NamedTuple):
    """A match and what stands around it."""

    before: str
    match: str
    behind: str


def find_snippets(
    store: Store, run: str, rows: Sequence[Row], pattern: str
) -> dict[tuple[int, int], Snippet]:
    """Return the first match in each conversation of `rows`, by step and trajectory."""
    if not pattern or not rows:
        return {}
    around = f"(?s).{{0,{_AROUND}}}(?:{pattern}).{{0,{_AROUND}}}"
    steps = [int(row["step"]) for row in rows]
    trajectories = [int(row["trajectory"]) for row in rows]
    places = {"steps": steps, "trajectories": trajectories}
    found = store.records("snippets", run=run, pattern=pattern, around=around, **places)
    return {(row["step"], row["trajectory"]): _snippet(row["around"], row["match"]) for row in found}


def _snippet(around: str, match: str) -> Snippet:
    """Split a text at the match that it holds; the one nearest to its middle, where it holds several."""
    starts = [found.start() for found in re.finditer(re.escape(match), around)] if match else []
    middle = (len(around) - len(match)) / 2
    start = min(starts, key=lambda place: abs(place - middle), default=0)
    return Snippet(around[:start], match, around[start + len(match) :])
