"""Compare: any diagnostics of any arms, side by side on one x-axis, with bands over seeds or seed by seed."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from workbench.app import export
from workbench.app.curve_data import CLOCKS, Chosen, Window, drawn, extent, first_alarms, onsets, origins, panel
from workbench.app.experiments import Arms, choose_arms, settings_of
from workbench.app.figures.common import AXES
from workbench.app.figures.curves import curves
from workbench.app.page import answer, look, note, run_links, screen, table
from workbench.app.store import Store, dictionary
from workbench.app.text import few
from workbench.app.url import choose, choose_many, choose_range

_FIRST = ("step.success", "step.grad_norm_max", "step.ess_frac_min", "step.entropy")
_MOST = 12  # panels
_NAMED = 8  # arms that a sentence names
_SMOOTHING = {"1": "off", "2": "2 steps", "5": "5 steps", "10": "10 steps", "20": "20 steps", "50": "50 steps"}
_AXIS = {"step": "step", "updates": "updates", "tokens": "tokens", "onset": "before collapse"}


@screen
def compare(store: Store) -> None:
    """Show why one arm collapsed and another did not: the signals of both, aligned."""
    arms = choose_arms(store)
    known = dictionary(store)
    alarms, _ = first_alarms(store, arms.runs, known)
    first = default_metrics(alarms, known.charted, _FIRST)
    metrics = choose_many("metric", "Diagnostics", {m: known.label(m) for m in known.charted}, first, most=_MOST)
    if not arms.names or not metrics:
        note("Choose at least one arm and one diagnostic.")
        return
    with st.container(horizontal=True, gap="large", vertical_alignment="top"):
        axes = {a: words for a, words in _AXIS.items() if a not in CLOCKS or f"step.{CLOCKS[a]}" in known.charted}
        axis = choose("x", "Align on", axes, kind="row")
        bands = choose("seeds", "Seeds", ["band", "single"], kind="row") == "band"
        scale = choose("scale", "Scale", ["auto", "linear", "log"], kind="row")
        smooth = choose("smooth", "Smoothing", _SMOOTHING, width=130)
    starts = origins(arms.runs, axis)
    ends = choose_range("range", "Steps", *extent(store, arms.runs, starts))
    lines = len(arms.names) if bands else len(arms.runs)
    chosen = Chosen(arms.runs, axis, starts, Window.over(*ends, lines, int(smooth)))
    answer(seen(arms.runs, alarms))
    panels = [panel(store, chosen, known, metric, bands=bands) for metric in metrics]
    wide, narrow = st.columns([4, 1], gap="medium")
    with wide:
        export.figure(
            curves(panels, arms.styles, look(), AXES[axis], onsets=onsets(chosen), scale=scale), "curves",
            lambda: drawn(panels), zooms="" if axis in CLOCKS else "range",  # which is in steps
            describe=f"{', '.join(p.name for p in panels)} of {', '.join(arms.names)} over {AXES[axis]}.",
        )  # fmt: skip
        note(" ".join(_notes(chosen, bands)))
        run_links(arms.runs, arms.experiment)
    with narrow:
        _differences(arms)


def default_metrics(alarms: pd.DataFrame, charted: Sequence[str], usual: Sequence[str], most: int = 4) -> list[str]:
    """Return success, the diagnostics whose alarm came before most collapses, and what fits of the `usual` ones."""
    warned = _warned(alarms, ["before", "first"])
    wanted = dict.fromkeys([usual[0], *(f"step.{alarm['alarm']}" for alarm in warned[: most - 1]), *usual])
    return [metric for metric in wanted if metric in charted][:most]


def _warned(alarms: pd.DataFrame, by: list[str]) -> list[dict[Any, Any]]:
    if alarms.empty:
        return []
    return alarms[alarms["before"] > 0].sort_values(by, ascending=False).to_dict("records")


def seen(runs: pd.DataFrame, alarms: pd.DataFrame) -> str:
    """Say which of the chosen runs collapsed, and which alarm came first."""
    collapsed, falling, others = list[str](), list[str](), list[str]()
    for arm, mine in runs.groupby("arm", sort=False):
        onsets, down = mine["collapse_step"].dropna(), int((mine["outcome"] == "falling").sum())
        if len(onsets):
            low, high = int(onsets.min()), int(onsets.max())
            onset = f"onset at step {low:,}" + (f" to {high:,}" if high > low else "")
            collapsed.append(f"{arm} in {len(onsets)} of {len(mine)} ({onset})")
        if down:
            falling.append(f"{arm} in {down} of {len(mine)}")
        if onsets.empty and not down:
            others.append(str(arm))
    fell, fading, up = (few(names, _NAMED, "; ", " arms") for names in (collapsed, falling, others))
    said = f"Collapsed: {fell}." if fell else "None of these runs collapsed."
    said += f" Falling at the end, too late for the collapse rule: {fading}." if fading else ""
    if not fell:
        return said
    said += f" Did not: {up}." if up else ""
    if not (warned := _warned(alarms, ["first", "before", "lead_median"])):
        return f"{said} No alarm went off before an onset."
    best = warned[0]
    if best["steady"] and best["false_alarms"] == best["steady"]:
        every = f"went off in all {best['steady']} runs that did not collapse"
        return f"{said} No alarm told them apart: {best['alarm']} was first, and {every}."
    healthy = f", and in {best['false_alarms']} of {best['steady']} that did not collapse" if best["steady"] else ""
    lead = f"{best['lead_median']:.3g} step{'' if best['lead_median'] == 1 else 's'} before the onset"
    return f"{said} First alarm: {best['alarm']}, {lead} in {best['before']} of {best['collapsed']}{healthy}."


def _notes(chosen: Chosen, bands: bool) -> Iterator[str]:
    yield (
        "Line: interquartile mean over seeds. Darker band: its 95 % bootstrap interval over seeds; paler band: lowest "
        "and highest value of any seed." if bands
        else "Each line is one run; pale: lowest and highest value where several steps share a point."
    )  # fmt: skip
    yield "▼ onset of a collapse, △ an alarm, dotted line its threshold, ✕ NaN or Inf."
    if chosen.axis not in CLOCKS:
        yield "Drag over a part of the curves to zoom."
    if chosen.window.width > 1:
        yield f"A point is the mean of {chosen.window.width} steps."
    onset = chosen.runs["collapse_step"].astype(float)
    healthy = int(onset.isna().sum())
    if chosen.axis == "onset" and healthy == len(onset):
        yield "None of these runs collapsed, so x is the training step."
    elif chosen.axis == "onset" and healthy:
        where = f"step {round(onset.median())}, the median onset of the others"
        yield f"{healthy} of {len(onset)} runs did not collapse: they are aligned at {where}."


def _differences(arms: Arms) -> None:
    config = arms.every.drop_duplicates("arm").set_index("arm")["config"]
    settings = pd.DataFrame([settings_of(config[arm]) for arm in arms.names]).fillna("")
    rows = settings.loc[:, settings.nunique().gt(1) & (settings.columns != "seed")]
    st.html("<b>What differs</b>")
    if len(arms.names) == 1:
        note("Choose a second arm to see in which settings they differ.")
    elif rows.empty:
        note("The recorded settings of these arms are equal.")
    for key, values in rows.items():
        groups = {value: [a for a, v in zip(arms.names, values, strict=True) if v == value] for value in values}
        most = max(groups, key=lambda value: len(groups[value]))
        if len(groups[most]) > 1:  # comes last, without the names of its arms
            groups[most] = ["the others"]
        ordered = sorted(groups.items(), key=lambda item: item[0] == most)
        table([str(key)], [(value or "not set", ", ".join(mine)) for value, mine in ordered])
