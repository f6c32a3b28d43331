"""Collapse: what happened when, how long the arms stay up, and which signal moves before the fall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from workbench.analysis import compare
from workbench.analysis.survival import curve, observed
from workbench.app import export, falls, openings, regions, theme
from workbench.app.experiments import choose_experiment, runs
from workbench.app.figures.collapse import leads, survival, timeline
from workbench.app.links import open_screen, run_links
from workbench.app.page import heading, look, note, screen, table
from workbench.app.precursors import precursors
from workbench.app.series import AXES
from workbench.app.store import dictionary
from workbench.app.trajectories import culprit
from workbench.app.url import choose, choose_many

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store

_MOST = 120  # runs that the timeline draws
_AXIS = {"step": "step", "onset": "before collapse"}
Styles = dict[str, theme.Style]


@screen
def collapse(store: Store) -> None:
    """When do runs fall, how many, and what announces it?"""
    left, right = st.columns([1, 3])
    with left:
        experiment = choose_experiment(store, collapsed=True)
    each = runs(store, experiment)
    with right:
        regions.point_to(store, experiment)
        names = choose_many("arm", "Arms", list(each["arm"].unique()), openings.arms(each))
    if not names:
        note("Choose at least one arm.")
        return
    chosen = each[each["arm"].isin(names)].sort_values("arm", key=lambda a: a.map(names.index), kind="stable")
    pairs = list(each[["arm", "algorithm"]].drop_duplicates().itertuples(index=False, name=None))
    styles = theme.styles(pairs, look())
    _timeline(store, chosen, styles, experiment)
    _survival(store, chosen, styles, experiment)
    _leads(store, chosen, styles)


def _timeline(store: Store, chosen: pd.DataFrame, styles: Styles, experiment: str) -> None:
    heading("What happened when")
    axis = choose("x", "Align on", list(_AXIS), kind="row", words=lambda a: _AXIS[a])
    drawn = falls.lives(chosen, axis).head(_MOST)
    events = falls.happened(store, drawn)
    clicked = export.figure(
        timeline(drawn, events, styles, look(), AXES[axis]), "timeline", events, select=True,
        describe=f"Events of {len(drawn)} runs over training, a line a run.",
    )  # fmt: skip
    more = f" These are the first {_MOST} of {len(chosen)} runs." if len(chosen) > _MOST else ""
    note(f"Click a mark to open its step in Episode.{more}")
    run_links(drawn, experiment)
    if clicked:
        place, x = (int(value) for value in clicked[0]["customdata"])
        run = drawn.iloc[place]
        where = culprit(store, str(run["run_id"]), x + int(run["start"]))
        open_screen("episode", experiment=experiment, **where)


def _survival(store: Store, chosen: pd.DataFrame, styles: Styles, experiment: str) -> None:
    heading("How long the arms stay up")
    rows = observed(chosen)
    names = list(dict.fromkeys(rows["arm"]))
    if not names:
        note("None of these runs has trained a step yet.")
        return
    reference = choose("reference", "Compare with", names, width=320)
    frame = falls.comparison(store, chosen[chosen["arm"].isin(names)], experiment, reference)
    test, lines = falls.readings(frame)
    export.figure(
        survival(curve(rows), rows, styles, look(), test), "survival", lambda: curve(rows),
        describe=f"Kaplan-Meier curves of {', '.join(names)}. {test}",
    )  # fmt: skip
    note("A step down is the onset of a collapse, a tick a run that was watched until there and was still up; curves "
         "of the same height are drawn a hair apart.")  # fmt: skip
    for words in (compare.time_to_collapse(frame), compare.against_reference(frame)):
        if len(words):
            table(list(words.columns), words.astype(str).to_numpy().tolist(), figures=True)
    for line in lines:
        note(line)


def _leads(store: Store, chosen: pd.DataFrame, styles: Styles) -> None:
    heading("Which signal moves first")
    found, dots = falls.first_alarms(store, chosen)
    fell = int(chosen["collapse_step"].notna().sum())
    if found.empty or not fell:
        note("None of these runs collapsed." if not fell else "None of these runs raised an alarm.")
        return
    alarms = precursors(found, dictionary(store))
    export.figure(
        leads(alarms, dots, styles, look()), "leads", alarms,
        describe=f"First alarms of {fell} collapsed runs, in steps from the onset of the collapse.",
    )  # fmt: skip
    note(f"A dot is the first such alarm in a run that collapsed ({fell} did); the tick is the median of those before "
         "the onset, the bar their quartiles. ↑ goes off above its threshold, ↓ below. What also goes off in runs that "
         "stay up is no warning, however early it comes.")  # fmt: skip
