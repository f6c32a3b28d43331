"""The stability region: a heat map an arm over the searched setting and the conditions, all on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.view.safe import figure_text
from workbench.view.theme import Palette, Style, scale, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MEASURES = {"collapsed": "share of runs that collapsed", "final": "mean final success"}
ACROSS, ROW, GAP, HEAD, BOTTOM = 3, 40, 64, 84, 52  # panels in a row; pixels
BELOW = 0.36  # of a row: the boundary runs under the counts, not through them


def region(
    points: pd.DataFrame, columns: pd.DataFrame, lattice: Sequence[float], styles: Mapping[str, Style],
    palette: Palette, along: str, across: str, measure: str = "collapsed",
) -> go.Figure:  # fmt: skip
    """The figure; `points` and `columns` as the tables of verdict.region give them, of one slice.

    Cells carry collapsed/runs, points where nothing was run stay empty; the line is the boundary with its interval, a
    triangle where it lies beyond what was tried.
    """
    from plotly.subplots import make_subplots

    arms = list(dict.fromkeys(points["series"]))
    conditions = sorted(points["y"].unique())
    rows = math.ceil(len(arms) / ACROSS)
    tall = ROW * max(2, len(conditions))
    inner = rows * tall + (rows - 1) * GAP
    figure = make_subplots(
        rows, min(ACROSS, len(arms)), shared_xaxes="all", shared_yaxes="all", horizontal_spacing=0.02,
        vertical_spacing=GAP / inner if rows > 1 else 0,
        subplot_titles=[_name(arm, styles[arm]) for arm in arms],
    )  # fmt: skip
    for number, arm in enumerate(arms):
        at = (number // ACROSS + 1, number % ACROSS + 1)
        figure.add_trace(_map(points[points["series"] == arm], conditions, lattice, measure), *at)
        for trace in _line(columns[columns["series"] == arm], conditions, palette):
            figure.add_trace(trace, *at)
        if number + ACROSS >= len(arms):
            title = figure_text(f"{along} (log scale)")
            figure.update_xaxes(title_text=title, showticklabels=True, row=at[0], col=at[1])
    ticks = [math.log2(x) for x in lattice]
    half = (ticks[1] - ticks[0]) / 2
    figure.update_xaxes(
        tickvals=ticks[::2], ticktext=[f"{x:g}" for x in lattice[::2]], range=[ticks[0] - half, ticks[-1] + half],
        showgrid=False, fixedrange=True,
    )  # fmt: skip
    figure.update_yaxes(
        tickvals=list(range(len(conditions))), ticktext=[f"{y:g}" for y in conditions], showgrid=False, fixedrange=True,
        range=[-0.5, len(conditions) - 0.5],
    )  # fmt: skip
    figure.update_yaxes(title_text=figure_text(across), col=1)
    colours = palette.sequential[1:]
    figure.update_layout(
        template=template(palette), height=HEAD + inner + BOTTOM, showlegend=False,
        margin={"t": HEAD, "b": BOTTOM, "l": 8, "r": 8},
        coloraxis={
            "cmin": 0, "cmax": 1, "colorscale": scale(colours),
            "colorbar": {"title": {"text": "collapsed" if measure == "collapsed" else "final", "side": "top"},
                         "thickness": 12, "tickformat": ".1f"},
        },
    )  # fmt: skip
    return figure


def _map(points: pd.DataFrame, conditions: Sequence[float], lattice: Sequence[float], measure: str) -> go.Heatmap:
    import plotly.graph_objects as go

    values: list[list[float | None]] = [[None] * len(lattice) for _ in conditions]
    text = [[""] * len(lattice) for _ in conditions]
    about = [[""] * len(lattice) for _ in conditions]
    for row in points.to_dict(orient="records"):
        i = conditions.index(row["y"])
        j = min(range(len(lattice)), key=lambda k, x=row["x"]: abs(math.log2(lattice[k] / x)))  # type: ignore[misc]
        share = row["collapsed"] / row["runs"]
        final = None if row["final"] != row["final"] else float(row["final"])
        values[i][j] = share if measure == "collapsed" else final
        shown = f"{row['collapsed']:.0f}/{row['runs']:.0f}"
        text[i][j] = shown if measure == "collapsed" else "" if final is None else f"{final:.2f}"
        told = "not measured" if final is None else f"{final:.3f}"
        about[i][j] = f"{row['x']:g} at {row['y']:g}<br>{shown} runs collapsed<br>mean final success {told}"
    return go.Heatmap(
        x=[math.log2(x) for x in lattice], y=list(range(len(conditions))), z=values, text=text, customdata=about,
        texttemplate="%{text}", hovertemplate="%{customdata}<extra></extra>", coloraxis="coloraxis", xgap=1, ygap=1,
        hoverongaps=False,
    )  # fmt: skip


def _line(columns: pd.DataFrame, conditions: Sequence[float], palette: Palette) -> list[Any]:
    """The boundary over the conditions, with its interval."""
    import plotly.graph_objects as go

    known = columns.sort_values("y").to_dict(orient="records")
    if not known:
        return []
    x = [math.log2(row["boundary"]) for row in known]
    error = [[0.0 if _missing(row[f"boundary_{side}"]) else abs(math.log2(row[f"boundary_{side}"]) - at)
              for row, at in zip(known, x, strict=True)] for side in ("high", "low")]  # fmt: skip
    symbols = {"above": "triangle-right", "below": "triangle-left"}
    colour = palette.outcomes["mild"]  # to be seen on the light and on the dark end of the scale
    return [
        go.Scatter(
            x=x, y=[conditions.index(row["y"]) - BELOW for row in known], mode="lines+markers", hoverinfo="skip",
            line={"color": colour, "width": 1},
            marker={"color": colour, "size": 8, "symbol": [symbols.get(row["beyond"], "circle") for row in known],
                    "line": {"color": palette.background, "width": 1}},
            error_x={"type": "data", "array": error[0], "arrayminus": error[1], "color": colour, "thickness": 2,
                     "width": 4},
        )
    ]  # fmt: skip


def _name(arm: str, style: Style) -> str:
    return f"<b><span style='color:{style.colour}'>{figure_text(arm)}</span></b>"


def _missing(value: Any) -> bool:
    return value is None or value != value
