"""Run: everything about one run. How it stands, its curves and events, its settings, its time, and its log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from workbench.app import episodes, export, lifetime, profile, theme, ways
from workbench.app.controls import choose, choose_range
from workbench.app.curve_data import Chosen, Window, drawn, onsets
from workbench.app.diagnostics import Diagnostics, dictionary
from workbench.app.experiments import choose_experiment, runs
from workbench.app.figures.common import AXES
from workbench.app.figures.curves import curves
from workbench.app.figures.run import career, shares, spending
from workbench.app.findings import findings, findings_html
from workbench.app.happenings import happenings
from workbench.app.links import STYLE
from workbench.app.navigation import open_screen
from workbench.app.page import heading, look, note, screen
from workbench.app.picks import zoom
from workbench.app.settings import settings

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.data import Store

_CSS = Path(__file__).parents[1] / "run.css"
_STEPS = "▼ onset of the collapse, △ an alarm, dotted line its threshold, ✕ NaN or Inf. Drag over a part to zoom."


@screen
def run(store: Store) -> None:
    """How does this run stand, what happened to it, and what was it trained with?"""
    st.html(STYLE)
    st.html(_CSS)
    left, right = st.columns([1, 2])
    with left:
        experiment = choose_experiment(store)
    each = runs(store, experiment)
    rows = {row["run_id"]: row for row in each.to_dict("records")}
    with right:
        name = choose("run", "Run", list(rows), episodes.first_run(each), words=lambda r: episodes.run_words(rows[r]))
    known, palette = dictionary(store), look()
    now = lifetime.as_it_is(store, rows[name])
    pairs = list(each[["arm", "algorithm"]].drop_duplicates().itertuples(index=False, name=None))
    styles = theme.styles(pairs, palette, drawn=[now["arm"]])
    st.html(profile.heading(now, styles[now["arm"]].colour, palette))
    st.html(profile.ways(ways.to_screens(now, experiment, each), ways.to_seeds(now, experiment, each)))
    st.html(profile.about(now))
    heading("What stands out")
    st.html(findings_html(list(findings(store, known, now, experiment))))
    chosen = _chosen(store, each[each["run_id"] == name])
    _success(store, chosen, now, known, experiment, styles[now["arm"]].colour)
    _signals(store, chosen, known, styles)
    heading("What happened")
    events = store.records("happened", run=name)
    st.html(happenings(events, lambda step: ways.to_step(now, experiment, known, step)))
    _time(store, chosen)
    _settings(each, now)
    heading("What it wrote")
    st.html(profile.recorded(store.records("recorded", run=name)))
    st.html(profile.log(lifetime.console(store, experiment, name)))


def _chosen(store: Store, row: pd.DataFrame) -> Chosen:
    extent = store.query("extent", runs=list(row["run_id"]), origins=[0]).fillna(0)
    first, last = choose_range("range", "Steps", int(extent["first"].iloc[0]), int(extent["last"].iloc[0]))
    return Chosen(row, "step", [0], Window.over(first, last, 1))


def _success(store: Store, chosen: Chosen, now: dict[str, Any], known: Diagnostics, experiment: str, hue: str) -> None:
    """Success in training and on held-out questions, with the events of these steps."""
    points, held_out, events = lifetime.success(store, chosen)
    told = known.rows["step.success"]["formula"] if "step.success" in known.rows else ""
    clicked = export.figure(
        career(points, held_out, events, hue, look(), told), "career", points, select=True,
        describe=f"Success of {now['run_id']} over training, with {len(events)} events.",
    )  # fmt: skip
    step = next((point["customdata"] for point in clicked if isinstance(point.get("customdata"), int)), None)
    if step is not None:
        place = episodes.culprit(store, now["run_id"], step)
        open_screen("episode", **episodes.choices(known, experiment=experiment, **place))
    if len(events):
        note("Click a mark of an event to open its step in Episode.")


def _signals(store: Store, chosen: Chosen, known: Diagnostics, styles: dict[str, theme.Style]) -> None:
    """The main diagnostics of the run."""
    panels, missing = lifetime.signals(store, chosen, known)
    if panels:
        figure = curves(panels, styles, look(), AXES["step"], onsets=onsets(chosen), columns=3, legend=False)
        zoom(
            "range",
            export.zoomable(figure, "signals", lambda: drawn(panels), describe=", ".join(p.name for p in panels)),
        )
    note(f"{_STEPS} Not measured in this run: {', '.join(missing)}." if missing else _STEPS)


def _time(store: Store, chosen: Chosen) -> None:
    heading("Where the time went")
    spent = lifetime.spent(store, chosen)
    if shares(spent):
        export.figure(spending(spent, look()), "time", spent, describe="Wall time of a step, part by part.")
    else:
        note("This run recorded no wall times.")


def _settings(each: pd.DataFrame, now: dict[str, Any]) -> None:
    heading("Settings")
    others = each[each["arm"] != now["arm"]].drop_duplicates("arm")
    found = settings(now["config"], now["toml"], dict(zip(others["arm"], others["config"], strict=True)))
    st.html(profile.settings_table([one for one in found if one.tells]))
    with st.expander(f"All {len(found)} settings"):
        st.html(profile.settings_table(found))
