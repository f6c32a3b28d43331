"""A run from its first step to its last: success and events, and where its wall time went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.app.figures.collapse import KINDS
from workbench.app.figures.panes import Trace, bar, heading, scatter, unmeasured
from workbench.app.series import AXES
from workbench.app.text import duration, figure_text, percent, visible, wrapped
from workbench.app.theme import Palette, faded, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


CAREER_HEIGHT, CAREER_BOTTOM, LEGEND_ROW = 270, 48, 23  # pixels
_STRIP, _LIFT = 1.09, 0.055  # where the events stand, above a fraction's 1, and how far apart those of one step
_MARKED = 60  # points up to which each is marked
_SHAPES = ("circle", "circle-open", "square", "square-open")


def career(
    points: pd.DataFrame, held_out: pd.DataFrame, events: pd.DataFrame, colour: str, palette: Palette, definition: str
) -> go.Figure:
    """The figure: `points` has x, mean, low and high of success, `held_out` the answer to query `evaluation`.

    `events` has step, kind and message of those that have a step. A mark carries its step.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for trace in (_extremes(points, colour), _success(points, colour)):
        if trace is not None:
            figure.add_trace(trace)
    for place, (name, part) in enumerate(held_out.groupby("data", sort=False)):
        figure.add_trace(_held_out(str(name), part, _SHAPES[place % len(_SHAPES)], palette))
    for step in events.loc[events["kind"] == "onset", "step"]:
        figure.add_vline(x=step, line={"color": palette.outcomes["collapsed"], "width": 1.2, "dash": "2px,3px"})
    marks = _placed(events)
    for kind, (symbol, words, hue) in KINDS.items():
        part = marks[marks["shape"] == kind]
        if len(part):
            figure.add_trace(_marks(part, symbol, words, palette.muted if hue == "muted" else palette.outcomes[hue]))
    _lay_out(figure, points, marks, palette, definition)
    return figure


def _extremes(points: pd.DataFrame, colour: str) -> Any:
    """Lowest and highest value of every bucket, where a bucket holds more than one step."""
    if points.empty or (points["low"] == points["high"]).all():
        return None
    return scatter(
        x=[*points["x"], *points["x"][::-1]], y=[*points["high"], *points["low"][::-1]], fill="toself", mode="lines",
        line={"width": 0}, fillcolor=faded(colour, 0.18), hoverinfo="skip", showlegend=False,
    )  # fmt: skip


def _success(points: pd.DataFrame, colour: str) -> Any:
    if points.empty:
        return None
    return scatter(
        x=points["x"], y=points["mean"], name="in training", line={"color": colour, "width": 2},
        mode="lines+markers" if len(points) <= _MARKED else "lines", marker={"size": 4, "color": colour},
        hovertemplate="in training<br>step %{x:,.6~g}: %{y:.4~g}<extra></extra>",
    )  # fmt: skip


def _held_out(name: str, part: pd.DataFrame, symbol: str, palette: Palette) -> Trace:
    """Success on a held-out set with its interval."""
    first = symbol == _SHAPES[0]
    ink = palette.text if first else palette.muted
    return scatter(
        x=part["step"], y=part["success"], name=figure_text(f"held-out: {name}"), mode="lines+markers",
        line={"color": faded(ink, 0.55), "width": 1, "dash": "1px,3px"},
        marker={"symbol": symbol, "size": 7, "color": ink},
        error_y={"type": "data", "symmetric": False, "array": part["success_high"] - part["success"],
                 "arrayminus": part["success"] - part["success_low"], "color": ink, "thickness": 1.2, "width": 3},
        customdata=part[["success_low", "success_high", "episodes"]].to_numpy(),
        hovertemplate=f"held-out: {figure_text(name)}<br>step %{{x:,}}: %{{y:.4~g}}"
        "<br>95 % interval %{customdata[0]:.3~g} to %{customdata[1]:.3~g}"
        "<br>questions %{customdata[2]:,}<extra></extra>",
    )  # fmt: skip


def _placed(events: pd.DataFrame) -> pd.DataFrame:
    """Events in the strip above the curve, those of one step above each other."""
    shapes = [kind if kind in KINDS else "other" for kind in events["kind"]]
    marks = events.assign(shape=shapes)
    marks = marks.assign(rank=marks["shape"].map(list(KINDS).index)).sort_values(["step", "rank"], kind="stable")
    return marks.assign(y=_STRIP + _LIFT * marks.groupby("step").cumcount())


def _marks(part: pd.DataFrame, symbol: str, words: str, colour: str) -> Trace:
    return scatter(
        x=part["step"], y=part["y"], mode="markers", name=words, customdata=part["step"].astype(int).tolist(),
        marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1.4, "color": colour}},
        text=[_about(event) for event in part.to_dict("records")], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _about(event: Mapping[Any, Any]) -> str:
    kind = figure_text(visible(event["kind"]).replace("_", " "))
    return f"<b>{kind}</b> at step {int(event['step']):,}<br>{wrapped(str(event['message']), 64)}"


def _legend_rows(names: Sequence[str]) -> int:
    """Rows of the legend on a narrow screen: an entry takes its sample, its text and a gap."""
    return max(1, math.ceil(sum(62 + 6.2 * len(name) for name in names) / 1050))


def _lay_out(figure: go.Figure, points: pd.DataFrame, marks: pd.DataFrame, palette: Palette, definition: str) -> None:
    text = wrapped(definition, 150)
    legend = 16 + LEGEND_ROW * _legend_rows([str(t.name) for t in figure.data if t.showlegend is not False])
    head = legend + 34 + 15 * (text.count("<br>") + 1)
    top = max([1.0, *marks["y"]]) + 0.06
    figure.update_layout(
        template=template(palette), height=CAREER_HEIGHT + head + CAREER_BOTTOM, hoverdistance=40, dragmode=False,
        margin={"t": head, "b": CAREER_BOTTOM, "l": 8, "r": 12}, showlegend=True,
        legend={"yref": "container", "y": 1, "yanchor": "top", "itemwidth": 30},
    )  # fmt: skip
    figure.update_xaxes(title_text=AXES["step"], separatethousands=True, fixedrange=True)
    figure.update_yaxes(
        title_text="fraction", range=[-0.03, top], tickvals=[0, 0.25, 0.5, 0.75, 1], fixedrange=True,
    )  # fmt: skip
    figure.add_annotation(heading("success", text, palette))
    if points.empty:
        figure.update_xaxes(showticklabels=not marks.empty)
        figure.add_annotation(unmeasured("this run", palette))


SPENDING_HEIGHT, HEAD, SPENDING_BOTTOM = 300, 72, 48  # pixels
PARTS = {
    "rollout": "sampling rollouts", "update": "updates", "evaluation": "held-out evaluation",
    "record": "measuring and recording", "rest": "the rest",
}  # fmt: skip
_LEAST = 0.002  # share of the whole below which the rest is rounding


def shares(spent: pd.DataFrame) -> dict[str, float]:
    """Part -> its seconds over all steps, of the parts that were measured; `spent` is the answer to query `spent`."""
    sums = {part: float(spent[part].sum()) for part in PARTS if part != "rest" and spent[part].notna().any()}
    inside = sum(seconds for part, seconds in sums.items() if part != "record")  # recording is not in the total
    rest = float(spent["total"].sum()) - inside
    if sums and rest > _LEAST * (sum(sums.values()) + rest):
        sums["rest"] = rest
    return sums


def spending(spent: pd.DataFrame, palette: Palette) -> go.Figure:
    """The figure: stacked bars, a bar a bucket of steps, whose parts add up to the mean wall time of a step."""
    import plotly.graph_objects as go

    sums = shares(spent)
    whole = sum(sums.values())
    each = spent.assign(rest=spent["total"] - spent[["rollout", "update", "evaluation"]].sum(axis=1))
    shades = palette.sequential
    colours = dict(zip(PARTS, (shades[2], shades[4], shades[3], palette.muted, palette.grid), strict=True))
    figure = go.Figure()
    for part, seconds in sums.items():
        figure.add_trace(
            bar(
                x=each["step"] + (each["steps"] - 1) / 2, y=each[part] / each["steps"], width=each["steps"] * 0.86,
                name=f"{PARTS[part]} {duration(seconds)}, {percent(seconds / whole)}" if whole else PARTS[part],
                marker={"color": colours[part], "line": {"width": 0}}, customdata=each["steps"],
                hovertemplate=f"{PARTS[part]}<br>step %{{x:,.6~g}}: %{{y:.4~g}} s<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(
        template=template(palette), height=SPENDING_HEIGHT, barmode="stack", bargap=0, dragmode=False, showlegend=True,
        margin={"t": HEAD, "b": SPENDING_BOTTOM, "l": 8, "r": 12},
        legend={"yref": "container", "y": 1, "yanchor": "top", "itemwidth": 30, "traceorder": "normal"},
    )  # fmt: skip
    figure.update_xaxes(title_text=AXES["step"], separatethousands=True, fixedrange=True)
    figure.update_yaxes(title_text="wall time of a step (s)", rangemode="tozero", fixedrange=True)
    return figure
