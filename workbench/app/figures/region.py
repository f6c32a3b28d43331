"""The stability region: a heat map an arm over setting and condition; and effects with their intervals, as a forest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.app.figures import common
from workbench.app.figures.common import Trace, heading, note, trace
from workbench.app.text import wrapped
from workbench.app.theme import Palette, Style, between, contrast

MEASURES = {"collapsed": "share of runs that collapsed", "final": "mean final success"}
_MEANINGS = {
    "collapsed": "share of the runs at a point that collapsed; in the cell: collapsed / runs",
    "final": "mean success over the last steps of the runs at a point",
}
_EDGE = "dot and bar: half of the runs collapse there, 95 % interval; ▷ ◁ beyond what was tried"
_ACROSS, _ROW, _GAP = 3, 48, 62  # panels in a row; pixels
_ABOVE, _BELOW = 0.2, -0.24  # of a row: where a cell has its words and where the boundary has its point


def region(
    points: pd.DataFrame, columns: pd.DataFrame, lattice: Sequence[float], styles: Mapping[str, Style],
    palette: Palette, along: str, across: str, measure: str = "collapsed",
) -> go.Figure:  # fmt: skip
    """Draw `points` and `columns` as the tables of analysis.region give them, of one slice.

    A cell carries its number, a point where nothing was run is pale; a dot is the boundary with its interval, a
    triangle where it lies beyond what was tried.
    """
    arms = list(dict.fromkeys(points["series"]))
    conditions = sorted(points["y"].unique())
    ticks = [math.log2(x) for x in lattice]
    half = (ticks[1] - ticks[0]) / 2
    rows = math.ceil(len(arms) / _ACROSS)
    inner = rows * _ROW * len(conditions) + (rows - 1) * _GAP
    x_axis = common.axis(f"{along} (log scale)", range=[ticks[0] - half, ticks[-1] + half], tickvals=ticks[::2],
                         ticktext=[f"{x:g}" for x in lattice[::2]])  # fmt: skip
    y_axis = common.axis(across, range=[-0.5, len(conditions) - 0.5], tickvals=list(range(len(conditions))),
                         ticktext=[f"{y:g}" for y in conditions])  # fmt: skip
    layout: dict[str, Any] = {}
    annotations = [heading(measure, wrapped(f"{_MEANINGS[measure]}; {_EDGE}", 150), palette, yshift=34)]
    traces: list[Trace] = []
    for pane, arm in zip(common.panes(len(arms), min(_ACROSS, len(arms)), 0.035, _GAP / inner), arms, strict=True):
        layout |= pane.shared(x_axis, y_axis)
        annotations.append(common.arm_label(arm, styles[arm].colour, pane))
        drawn = _map(points[points["series"] == arm], conditions, ticks, palette, measure)
        drawn += _boundary(columns[columns["series"] == arm].sort_values("y"), conditions, palette)
        traces += [one | pane.axes for one in drawn]
    colours = common.colour_axis("fraction", min(inner, 220), palette, palette.sequential[1:], (0, 1), tickformat=".1f")
    return common.figure(
        traces, palette, inner=inner, top=88, bottom=52, annotations=annotations, coloraxis=colours, **layout
    )


def _map(
    points: pd.DataFrame, conditions: Sequence[float], ticks: Sequence[float], palette: Palette, measure: str
) -> list[Trace]:
    colours = palette.sequential[1:]
    grid: Trace = {"type": "heatmap", "x": list(ticks), "y": list(range(len(conditions))), "xgap": 2, "ygap": 2}
    values: list[list[float | None]] = [[None] * len(ticks) for _ in conditions]
    about = [[""] * len(ticks) for _ in conditions]
    words = []  # x, y, text and ink of each cell
    for row in points.to_dict("records"):
        i = conditions.index(row["y"])
        distances = [abs(tick - math.log2(row["x"])) for tick in ticks]
        j = distances.index(min(distances))
        final = None if math.isnan(row["final"]) else float(row["final"])
        value = row["collapsed"] / row["runs"] if measure == "collapsed" else final
        shown = f"{row['collapsed']:.0f}/{row['runs']:.0f}"
        success = "not measured" if final is None else f"{final:.3f}"
        values[i][j] = value
        about[i][j] = f"{row['x']:g} at {row['y']:g}<br>{shown} runs collapsed<br>mean final success {success}"
        if value is not None:
            ground = between(colours, min(max(value, 0.0), 1.0))
            ink = max((palette.text, palette.background), key=lambda ink: contrast(ink, ground))
            word = shown if measure == "collapsed" else f"{value:.2f}".removeprefix("0")
            words.append((ticks[j], i + _ABOVE, word, ink))
    x, y, text, inks = map(list, zip(*words, strict=True)) if words else ([], [], [], [])
    return [
        trace(**grid, z=[[0] * len(ticks)] * len(conditions), showscale=False,
              colorscale=[[0, palette.surface], [1, palette.surface]]),
        trace("%{customdata}", **grid, z=values, customdata=about, coloraxis="coloraxis", hoverongaps=False),
        trace(x=x, y=y, text=text, mode="text", textfont={"size": 11, "color": inks}, cliponaxis=False),
    ]  # fmt: skip


def _boundary(columns: pd.DataFrame, conditions: Sequence[float], palette: Palette) -> list[Trace]:
    if columns.empty:
        return []
    x, low, high = (np.log2(columns[name].astype(float)) for name in ("boundary", "boundary_low", "boundary_high"))
    symbols = {"above": "triangle-right", "below": "triangle-left"}
    colour = palette.outcomes["mild"]  # to be seen on the light and on the dark end of the scale
    marker = {"symbol": [symbols.get(word, "circle") for word in columns["beyond"]], "color": colour, "size": 10,
              "line": {"color": palette.background, "width": 1}}  # fmt: skip
    bar = {"type": "data", "color": colour, "thickness": 2, "width": 4, "array": np.abs(np.nan_to_num(high - x)),
           "arrayminus": np.abs(np.nan_to_num(low - x))}  # fmt: skip
    y = [conditions.index(y) + _BELOW for y in columns["y"]]
    return [trace(x=x.tolist(), y=y, mode="markers", marker=marker, error_x=bar)]


SHARE, FACTOR = "share", "factor"
_LABEL, _FINDING = 48, 42  # characters of a line
_TITLES = {
    SHARE: "difference of the shares of runs that collapse (fraction; above 0: as the claim says)",
    FACTOR: "factor (ratio, log scale; above 1: as the claim says)",
}


@dataclass(frozen=True)
class Effect:
    """One line of a forest: `kind` is share or factor, `finding` the words to its right, `tone` an outcome's colour."""

    label: str
    kind: str
    value: float
    low: float
    high: float
    finding: str
    tone: str = ""

    @property
    def height(self) -> int:
        """Pixels of the line."""
        lines = wrapped(self.label, _LABEL).count("<br>"), wrapped(self.finding, _FINDING).count("<br>")
        return 17 * (max(lines) + 1) + 15


def forest(effects: Sequence[Effect], palette: Palette) -> go.Figure:
    """Draw at least one effect with its interval: differences of shares above, factors below, coloured by verdict."""
    panels = [part for kind in (SHARE, FACTOR) if (part := [e for e in effects if e.kind == kind])]
    gap = 66  # pixels
    inner = top = sum(e.height for e in effects) + gap * (len(panels) - 1)  # `top` of a panel, from below
    layout: dict[str, Any] = {}
    annotations, traces = list[Trace](), list[Trace]()
    for number, part in enumerate(panels):
        kind, tall = part[0].kind, sum(e.height for e in part)
        pane = common.Pane(number, 0, True, (0, 0.62), (max(0, top - tall) / inner, top / inner))
        top -= tall + gap
        muted = {"color": palette.muted, "size": 12}
        head = f"{'difference' if kind == SHARE else 'factor'}, 95 % interval, found, seeds, verdict"
        annotations.append(note(head, 0.64, pane.y[1], xanchor="left", yanchor="bottom", yshift=4, font=muted))
        none = 0.0 if kind == SHARE else 1.0
        dotted = {"color": palette.muted, "width": 1, "dash": common.DOTTED}
        drawn = [trace(x=[none, none], y=[0, tall], mode="lines", line=dotted)]
        bottoms = np.cumsum([e.height for e in part])
        places = [float(bottom - e.height / 2) for e, bottom in zip(part, bottoms, strict=True)]
        for effect, y in zip(part, places, strict=True):
            colour = palette.outcomes.get(effect.tone, palette.muted)
            drawn += [
                trace(x=[effect.low, effect.high], y=[y, y], mode="lines", line={"color": colour, "width": 2.4}),
                trace(f"<b>{wrapped(effect.label, 60)}</b><br>%{{x:.3~g}}, 95 % interval {effect.low:.3g} to "
                      f"{effect.high:.3g}<br>{wrapped(effect.finding, 60)}", x=[effect.value], y=[y], mode="markers",
                      marker={"color": colour, "size": 10, "symbol": "diamond"}),
            ]  # fmt: skip
            annotations.append(note(
                wrapped(effect.finding, _FINDING), 0.64, y, yref=pane.axes["yaxis"], xanchor="left", yanchor="middle",
                align="left", font={"size": 12, "color": palette.text},
            ))  # fmt: skip
        traces += [one | pane.axes for one in drawn]
        if kind == SHARE:
            x_axis = common.axis(_TITLES[kind], range=[-1.05, 1.05], tickformat="+.1~f")
        else:
            ends = [math.log10(max(value, 1e-9)) for e in part for value in (e.low, e.high, 1.0)]
            pad = 0.06 * (max(ends) - min(ends)) + 0.02
            limits = [min(ends) - pad, max(ends) + pad]
            x_axis = common.axis(_TITLES[kind], type="log", exponentformat="none", nticks=8, range=limits)
        layout |= pane.placed(x_axis, common.axis(
            range=[tall, 0], tickmode="array", tickvals=places, ticktext=[wrapped(e.label, _LABEL) for e in part],
            showgrid=False, tickfont={"color": palette.text, "size": 12},
        ))  # fmt: skip
    return common.figure(traces, palette, inner=inner, top=30, bottom=52, annotations=annotations, **layout)
