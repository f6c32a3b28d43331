"""Every run of an experiment as a row: found by words and conditions, picked, compared, and annotated."""

import json
import operator
import re
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from workbench.app.curve_data import stands
from workbench.app.experiments import differing
from workbench.app.page import address, anchor, heading, links, note, run_links, say, table
from workbench.app.store import Store
from workbench.app.text import duration
from workbench.app.url import choose_many, follow, keep, search_box
from workbench.spec import InputError
from workbench.store import notes
from workbench.store.notes import Notes

_USUAL = ("arm", "seed", "outcome", "onset", "peak", "final", "steps", "duration", "tags", "note", "hidden")
_CONDITION = re.compile(r"(.+?)\s*(<=|>=|!=|<|>|=)\s*(.+)")
_HOLDS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "=": operator.eq, "!=": operator.ne}
_HOW = "words, and conditions such as  staleness > 4, outcome = collapsed"


def rows(each: pd.DataFrame, settings: pd.DataFrame, kept: Mapping[str, Notes]) -> pd.DataFrame:
    """Return one row per run, by run_id: what it came to, its notes, and the `settings` in which the runs differ."""
    mine = [kept.get(run, Notes()) for run in each["run_id"]]
    found = pd.DataFrame({
        "arm": each["arm"], "seed": each["seed"], "outcome": [stands(run) for run in each.to_dict("records")],
        "onset": each[["collapse_step", "onset_low"]].bfill(axis=1).iloc[:, 0], "peak": each["peak_success"],
        "final": each["final_success"], "steps": each["steps"], "duration": each["seconds"],
        "tags": [", ".join(one.tags) for one in mine], "note": [one.note for one in mine],
        "hidden": ["yes" if one.hidden else "no" for one in mine],
    }).set_axis(each["run_id"])  # fmt: skip
    return found.join(settings.drop(columns=["seed"], errors="ignore").replace("", "–"))


def matching(frame: pd.DataFrame, asked: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows that fulfil all of `asked`, parts between commas, and what no column is called.

    A condition names a column, or the end of its dotted name; what is no number is compared as text. Any other part is
    looked for in all cells.
    """
    unknown = []
    for part in filter(None, map(str.strip, asked.split(","))):
        if not (condition := _CONDITION.fullmatch(part)):
            hit = frame.astype(str).apply(lambda cells, word=part: cells.str.contains(word, case=False, regex=False))
            frame = frame[hit.any(axis=1)]
            continue
        name, sign, value = condition.groups()
        columns = [c for c in frame if f".{c}".lower().endswith(f".{name.lower()}")]
        if not columns:
            unknown.append(name)
            continue
        numbers, wanted = pd.to_numeric(frame[columns[0]], errors="coerce"), pd.to_numeric(value, errors="coerce")
        if pd.isna(wanted):
            frame = frame[_HOLDS[sign](frame[columns[0]].astype(str).str.lower(), value.lower())]
        else:
            frame = frame[_HOLDS[sign](numbers, wanted) & numbers.notna()]
    return frame, unknown


def show(store: Store, experiment: str, each: pd.DataFrame, kept: Mapping[str, Notes]) -> None:
    """Show the runs with their notes as a table; those picked in it are compared and can be given notes."""
    frame = rows(each, differing(store, experiment, each), kept)
    left, right = st.columns(2)
    with left:
        asked = search_box("find", "Find runs", _HOW)
    with right:
        columns = choose_many("column", "Columns", list(map(str, frame)), _USUAL, implied=True)
    found, unknown = matching(frame, asked)
    if unknown:
        say(f"No column is called {', '.join(map(repr, unknown))}; there is: {', '.join(map(str, frame))}.")
    picked = keep("picked", experiment, lambda given: [run for run in given if run in frame.index], list[str])
    if found.empty:
        note(f"None of {len(frame)} runs fits.")
    else:
        _pick(found, columns or list(_USUAL), picked)
    mine = each[each["run_id"].isin(picked)].drop_duplicates("run_id")
    if len(mine):
        _picked(store, experiment, mine, kept)


def _pick(found: pd.DataFrame, columns: Sequence[str], picked: Sequence[str]) -> None:
    """Draw the table; a change of its selection is a step in the address, which it follows in turn."""
    ids, here = [str(run) for run in found.index], st.session_state
    if here.get("runs picked") not in (None, list(picked)):  # another selection than the widget's: make a new one
        here["runs drawn"] = here.get("runs drawn", 0) + 1
    here["runs picked"] = list(picked)
    at = [ids.index(run) for run in picked if run in ids]
    shown = found.assign(duration=found["duration"].map(duration))[list(columns)]
    event = st.dataframe(
        shown, hide_index=True, key=f"runs {here.get('runs drawn', 0)} {hash(tuple(ids))}", on_select="rerun",
        selection_mode="multi-row", selection_default={"selection": {"rows": at}}, placeholder="–",
        alt="The runs of this experiment, a row a run: arrow keys move, Space picks a row.",
        column_config={name: st.column_config.NumberColumn(format="%.2f") for name in ("peak", "final")},
    )  # fmt: skip
    rows = [row for row in event["selection"]["rows"] if row < len(ids)]
    if sorted(rows) != sorted(at):
        chosen = [run for run in picked if run not in ids] + [ids[row] for row in rows]
        here["runs picked"] = chosen
        follow("picked", chosen)


def _picked(store: Store, experiment: str, mine: pd.DataFrame, kept: Mapping[str, Notes]) -> None:
    arms, ids = list(mine["arm"].astype(str).unique()), list(mine["run_id"].astype(str))
    where = address("compare", experiment=experiment, arm=arms, runs=ids, seeds="single")
    links([anchor("Compare the curves of these runs", where)])
    run_links(mine, experiment)
    if len(ids) > 1:
        heading("What differs between them")
        settings = differing(store, experiment, mine).drop(columns="seed", errors="ignore").replace("", "–")
        named = [f"{run.arm}, seed {run.seed}" for run in mine.itertuples()]
        if settings.empty:
            note("Nothing but the seed.")
        else:
            table(settings.set_axis(named).T.rename_axis("setting").reset_index(), "")
    first, under = kept.get(ids[0], Notes()), json.dumps(ids)
    # A form of its own for each selection: what is typed for one run never lands on another.
    with st.form(f"notes {under}", border=False):
        text = st.text_area("Note", first.note, max_chars=notes.LONGEST, key=f"note {under}", height=80)
        tags = st.text_input("Tags, separated by commas", ", ".join(first.tags), key=f"tags {under}", max_chars=400)
        hidden = st.checkbox("Hide from Overview, Compare, Turns and Collapse", first.hidden, key=f"hide {under}")
        saved = st.form_submit_button(f"Save for {len(ids)} runs" if len(ids) > 1 else "Save", key=f"save {under}")
    if saved:
        words = tuple(dict.fromkeys(filter(None, map(str.strip, tags.split(",")))))[: notes.TAGS]
        try:
            for run in ids:
                notes.write(store.runs, experiment, run, Notes(text.strip(), words, hidden))
        except InputError as error:
            say(str(error))
        else:
            st.rerun()
