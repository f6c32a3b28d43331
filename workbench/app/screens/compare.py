"""Compare: any diagnostics of any arms, side by side on one x-axis, with bands over seeds or seed by seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from workbench.app import export, falls, openings, regions, theme
from workbench.app.experiments import choose_experiment, differences, runs
from workbench.app.figures.curves import curves
from workbench.app.links import run_links
from workbench.app.page import look, note, screen, table
from workbench.app.panels import Chosen, drawn, onsets, panel
from workbench.app.precursors import precursors
from workbench.app.series import AXES, CLOCKS, Window, origins
from workbench.app.store import Diagnostics, dictionary
from workbench.app.text import html_text
from workbench.app.url import choose, choose_many, choose_range, zoom

if TYPE_CHECKING:
    import pandas as pd

    from workbench.app.store import Store

_FIRST = ("step.success", "step.grad_norm_max", "step.ess_frac_min", "step.entropy")
_PANELS = 12
_SMOOTHING = {"1": "off", "2": "2 steps", "5": "5 steps", "10": "10 steps", "20": "20 steps", "50": "50 steps"}
_AXIS = {"step": "step", "updates": "updates", "tokens": "tokens", "onset": "before collapse"}


@screen
def compare(store: Store) -> None:
    """Why did this arm die and that one not: the signals of both, aligned."""
    left, right = st.columns([1, 3])
    with left:
        experiment = choose_experiment(store, collapsed=True)
    each = runs(store, experiment)
    with right:
        regions.point_to(store, experiment)
        names = choose_many("arm", "Arms", list(each["arm"].unique()), openings.arms(each))
    known = dictionary(store)
    picked = each[each["arm"].isin(names)].sort_values("arm", key=lambda a: a.map(names.index), kind="stable")
    alarms = precursors(falls.first_alarms(store, picked)[0], known)
    first = openings.metrics(alarms, known.charted, _FIRST)
    metrics = choose_many("metric", "Diagnostics", known.charted, first, words=known.label, most=_PANELS)
    if not names or not metrics:
        note("Choose at least one arm and one diagnostic.")
        return
    chosen, mode, scale = _how(store, picked, names, known)
    st.html(f'<p class="sorl-answer">{html_text(openings.seen(picked, alarms))}</p>')
    panels = [panel(store, chosen, known, metric, bands=mode == "band") for metric in metrics]
    palette = look()
    pairs = list(each[["arm", "algorithm"]].drop_duplicates().itertuples(index=False, name=None))
    styles = theme.styles(pairs, palette, drawn=names)
    wide, narrow = st.columns([4, 1], gap="medium")
    with wide:
        figure = curves(
            panels, {arm: styles[arm] for arm in names}, palette, AXES[chosen.axis], onsets=onsets(chosen), scale=scale
        )
        words = f"{', '.join(p.name for p in panels)} of {', '.join(names)} over {AXES[chosen.axis]}."
        if chosen.axis in CLOCKS:  # a range is in steps
            export.figure(figure, "curves", lambda: drawn(panels), describe=words)
        else:
            zoom("range", export.zoomable(figure, "curves", lambda: drawn(panels), describe=words))
        note(" ".join(chosen.notes(bands=mode == "band")))
        run_links(chosen.runs, experiment)
    with narrow:
        _settings(each, names)


def _how(store: Store, picked: pd.DataFrame, names: list[str], known: Diagnostics) -> tuple[Chosen, str, str]:
    """The axis, the seeds, the scale, the smoothing and the range; and the runs with their window."""
    axes = [a for a in AXES if a not in CLOCKS or f"step.{CLOCKS[a]}" in known.charted]
    with st.container(horizontal=True, gap="large", vertical_alignment="top"):
        axis = choose("x", "Align on", axes, "step", kind="row", words=lambda a: _AXIS[a])
        mode = choose("seeds", "Seeds", ["band", "single"], "band", kind="row")
        scale = choose("scale", "Scale", ["auto", "linear", "log"], "auto", kind="row")
        smooth = choose("smooth", "Smoothing", list(_SMOOTHING), "1", words=lambda s: _SMOOTHING[s], width=130)
    starts = origins(picked, axis)
    extent = store.query("extent", runs=list(picked["run_id"]), origins=starts).fillna(0)
    low, high = int(extent["first"].iloc[0]), int(extent["last"].iloc[0])
    first, last = choose_range("range", "Steps", low, high)
    lines = len(names) if mode == "band" else len(picked)
    return Chosen(picked, axis, starts, Window.over(first, last, lines, int(smooth))), mode, scale


def _settings(each: pd.DataFrame, names: list[str]) -> None:
    """In what the chosen arms differ, setting by setting."""
    configs = {arm: each.loc[each["arm"] == arm, "config"].iloc[0] for arm in names}
    rows = differences(configs)
    st.html("<b>What differs</b>")
    if len(names) == 1:
        note("Choose a second arm to see in which settings they differ.")
    elif not rows:
        note("The recorded settings of these arms are equal.")
    for key, values in rows:
        groups: dict[str, list[str]] = {}
        for arm, value in zip(names, values, strict=True):
            groups.setdefault(value, []).append(arm)
        most = max(groups, key=lambda value: len(groups[value]))
        others = len(groups[most]) > 1 and len(groups) > 1
        table(
            (key,),
            [
                (value or "not set", "the others" if others and value == most else ", ".join(arms))
                for value, arms in sorted(groups.items(), key=lambda item: item[0] == most)
            ],
        )
