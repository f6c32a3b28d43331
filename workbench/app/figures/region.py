"""The stability region: a heat map an arm over setting and condition; and effects with their intervals, as a forest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.app.figures import common
from workbench.app.figures.common import Trace, heading, note, scatter
from workbench.app.text import wrapped
from workbench.app.theme import Palette, Style, contrast, mixed, scale

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

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
    colours = palette.sequential[1:]
    layout: dict[str, Any] = {
        "coloraxis": common.colour_axis("fraction", min(inner, 220), palette, cmin=0, cmax=1,
                                        colorscale=scale(colours), bar={"tickformat": ".1f"}),
    }  # fmt: skip
    annotations = [heading(measure, wrapped(f"{_MEANINGS[measure]}; {_EDGE}", 150), palette, yshift=34)]
    traces: list[Trace] = []
    for pane, arm in zip(common.panes(len(arms), min(_ACROSS, len(arms)), 0.035, _GAP / inner), arms, strict=True):
        x_axis = common.axis(
            f"{along} (log scale)" if pane.is_last else "", tickvals=ticks[::2], showgrid=False,
            ticktext=[f"{x:g}" for x in lattice[::2]], range=[ticks[0] - half, ticks[-1] + half],
            showticklabels=pane.is_last, matches="x" if pane.number else None,
        )  # fmt: skip
        y_axis = common.axis(
            "" if pane.column else across, tickvals=list(range(len(conditions))), showgrid=False,
            ticktext=[f"{y:g}" for y in conditions], range=[-0.5, len(conditions) - 0.5],
            showticklabels=pane.column == 0, matches="y" if pane.number else None,
        )  # fmt: skip
        layout |= pane.placed(x_axis, y_axis)
        annotations.append(common.arm_label(arm, styles[arm].colour, pane))
        mine = _map(points[points["series"] == arm], conditions, lattice, palette, measure)
        edge = _boundary(columns[columns["series"] == arm].sort_values("y"), conditions, palette)
        traces += [trace | pane.axes for trace in (*mine, *edge)]
    return common.figure(traces, palette, height=88 + inner + 52, top=88, bottom=52, annotations=annotations, **layout)


def _map(
    points: pd.DataFrame, conditions: Sequence[float], lattice: Sequence[float], palette: Palette, measure: str
) -> list[Trace]:
    """Return the searched points, pale; the cells that were run; and their numbers in an ink that can be read there."""
    colours = palette.sequential[1:]
    grid = {"type": "heatmap", "x": [math.log2(x) for x in lattice], "y": list(range(len(conditions))), "xgap": 2,
            "ygap": 2}  # fmt: skip
    values: list[list[float | None]] = [[None] * len(lattice) for _ in conditions]
    about = [[""] * len(lattice) for _ in conditions]
    words: list[tuple[float, float, str, str]] = []
    for row in points.to_dict("records"):
        i = conditions.index(row["y"])
        distances = [abs(math.log2(x / row["x"])) for x in lattice]
        j = distances.index(min(distances))
        final = None if math.isnan(row["final"]) else float(row["final"])
        value = row["collapsed"] / row["runs"] if measure == "collapsed" else final
        shown = f"{row['collapsed']:.0f}/{row['runs']:.0f}"
        success = "not measured" if final is None else f"{final:.3f}"
        values[i][j] = value
        about[i][j] = f"{row['x']:g} at {row['y']:g}<br>{shown} runs collapsed<br>mean final success {success}"
        if value is not None:
            place = min(max(value, 0.0), 1.0) * (len(colours) - 1)
            low = min(int(place), len(colours) - 2)
            ground = mixed(colours[low], colours[low + 1], place - low)
            ink = max((palette.text, palette.background), key=lambda ink: contrast(ink, ground))
            word = shown if measure == "collapsed" else f"{value:.2f}".removeprefix("0")
            words.append((math.log2(lattice[j]), i + _ABOVE, word, ink))
    return [
        grid | {"z": [[0] * len(lattice)] * len(conditions), "showscale": False, "hoverinfo": "skip",
                "colorscale": [[0, palette.surface], [1, palette.surface]]},
        grid | {"z": values, "customdata": about, "hovertemplate": "%{customdata}<extra></extra>",
                "coloraxis": "coloraxis", "hoverongaps": False},
        scatter(
            x=[x for x, *_ in words], y=[y for _, y, *_ in words], text=[word for *_, word, _ in words], mode="text",
            textfont={"size": 11, "color": [ink for *_, ink in words]}, hoverinfo="skip", cliponaxis=False,
        ),
    ]  # fmt: skip


def _boundary(columns: pd.DataFrame, conditions: Sequence[float], palette: Palette) -> list[Trace]:
    """Return the boundary over the conditions with its interval, if it is known anywhere."""
    import numpy as np

    if columns.empty:
        return []
    x, low, high = (np.log2(columns[name].astype(float)) for name in ("boundary", "boundary_low", "boundary_high"))
    symbols = {"above": "triangle-right", "below": "triangle-left"}
    colour = palette.outcomes["mild"]  # to be seen on the light and on the dark end of the scale
    return [
        scatter(
            x=x.tolist(), y=[conditions.index(y) + _BELOW for y in columns["y"]], mode="markers", hoverinfo="skip",
            marker={"color": colour, "size": 10, "symbol": [symbols.get(word, "circle") for word in columns["beyond"]],
                    "line": {"color": palette.background, "width": 1}},
            error_x={"type": "data", "array": np.abs(np.nan_to_num(high - x)).tolist(), "color": colour, "thickness": 2,
                     "arrayminus": np.abs(np.nan_to_num(low - x)).tolist(), "width": 4},
        )
    ]  # fmt: skip


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
        lines = [wrapped(self.label, _LABEL).count("<br>"), wrapped(self.finding, _FINDING).count("<br>")]
        return 17 * (max(lines) + 1) + 15


def forest(effects: Sequence[Effect], palette: Palette) -> go.Figure:
    """Draw at least one effect with its interval: differences of shares above, factors below, coloured by verdict."""
    kinds = [kind for kind in (SHARE, FACTOR) if any(e.kind == kind for e in effects)]
    head, bottom, between = 30, 52, 66  # pixels
    inner = sum(e.height for e in effects) + between * (len(kinds) - 1)
    top = inner  # of the panel, from below
    layout: dict[str, Any] = {}
    annotations: list[Trace] = []
    traces: list[Trace] = []
    for number, kind in enumerate(kinds):
        part = [e for e in effects if e.kind == kind]
        tall = sum(e.height for e in part)
        pane = common.Pane(number, 0, True, (0, 0.62), (max(0, top - tall) / inner, top / inner))
        top -= tall + between
        muted = {"color": palette.muted, "size": 12}
        head_words = f"{'difference' if kind == SHARE else 'factor'}, 95 % interval, found, seeds, verdict"
        annotations.append(note(head_words, 0.64, pane.y[1], xanchor="left", yanchor="bottom", yshift=4, font=muted))
        none = 0.0 if kind == SHARE else 1.0
        dotted = {"color": palette.muted, "width": 1, "dash": common.DOTTED}
        traces.append(pane.axes | scatter(x=[none, none], y=[0, tall], mode="lines", hoverinfo="skip", line=dotted))
        places, above = [], 0.0
        for effect in part:
            places.append(y := above + effect.height / 2)
            above += effect.height
            colour = palette.outcomes.get(effect.tone, palette.muted)
            traces.append(pane.axes | scatter(
                x=[effect.low, effect.high], y=[y, y], mode="lines", hoverinfo="skip",
                line={"color": colour, "width": 2.4},
            ))  # fmt: skip
            traces.append(pane.axes | scatter(
                x=[effect.value], y=[y], mode="markers", marker={"color": colour, "size": 10, "symbol": "diamond"},
                hovertemplate=f"<b>{wrapped(effect.label, 60)}</b><br>%{{x:.3~g}}, 95 % interval {effect.low:.3g} to "
                f"{effect.high:.3g}<br>{wrapped(effect.finding, 60)}<extra></extra>",
            ))  # fmt: skip
            annotations.append(note(
                wrapped(effect.finding, _FINDING), 0.64, y, yref=pane.axes["yaxis"], xanchor="left", yanchor="middle",
                align="left", font={"size": 12, "color": palette.text},
            ))  # fmt: skip
        if kind == SHARE:
            x_axis = common.axis(_TITLES[kind], range=[-1.05, 1.05], tickformat="+.1~f")
        else:
            ends = [math.log10(max(value, 1e-9)) for e in part for value in (e.low, e.high, 1.0)]
            pad = 0.06 * (max(ends) - min(ends)) + 0.02
            x_axis = common.axis(_TITLES[kind], type="log", exponentformat="none", nticks=8,
                                 range=[min(ends) - pad, max(ends) + pad])  # fmt: skip
        y_axis = common.axis(
            range=[tall, 0], tickmode="array", tickvals=places, ticktext=[wrapped(e.label, _LABEL) for e in part],
            showgrid=False, tickfont={"color": palette.text, "size": 12},
        )  # fmt: skip
        layout |= pane.placed(x_axis, y_axis)
    return common.figure(
        traces, palette, height=head + inner + bottom, top=head, bottom=bottom, annotations=annotations, **layout
    )
