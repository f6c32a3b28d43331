"""The stability region: a heat map an arm over the searched setting and the conditions, all on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.app.figures.panes import Trace, heading, heatmap, scatter
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import Palette, Style, contrast, mixed, scale, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

MEASURES = {"collapsed": "share of runs that collapsed", "final": "mean final success"}
_TOLD = {
    "collapsed": "share of the runs at a point that collapsed; in the cell: collapsed / runs",
    "final": "mean success over the last steps of the runs at a point",
}
_EDGE = "dot and bar: half of the runs collapse there, 95 % interval; ▷ ◁ beyond what was tried"
ACROSS, ROW, GAP, HEAD, BOTTOM = 3, 48, 62, 88, 52  # panels in a row; pixels
_ABOVE, _BELOW = 0.2, -0.24  # of a row: where a cell has its words and where the boundary has its point


def region(
    points: pd.DataFrame, columns: pd.DataFrame, lattice: Sequence[float], styles: Mapping[str, Style],
    palette: Palette, along: str, across: str, measure: str = "collapsed",
) -> go.Figure:  # fmt: skip
    """The figure; `points` and `columns` as the tables of verdict.region give them, of one slice.

    A cell carries its number, a point where nothing was run is pale; a dot is the boundary with its interval, a
    triangle where it lies beyond what was tried.
    """
    from plotly.subplots import make_subplots

    arms = list(dict.fromkeys(points["series"]))
    conditions = sorted(points["y"].unique())
    rows = math.ceil(len(arms) / ACROSS)
    inner = rows * ROW * len(conditions) + (rows - 1) * GAP
    figure = make_subplots(
        rows, min(ACROSS, len(arms)), shared_xaxes="all", shared_yaxes="all", horizontal_spacing=0.035,
        vertical_spacing=GAP / inner if rows > 1 else 0,
    )  # fmt: skip
    for number, arm in enumerate(arms):
        at = (number // ACROSS + 1, number % ACROSS + 1)
        mine = points[points["series"] == arm]
        traces = [_ground(conditions, lattice, palette), *_map(mine, conditions, lattice, palette, measure)]
        for trace in traces + _line(columns[columns["series"] == arm], conditions, palette):
            figure.add_trace(trace, *at)
        _name(figure, arm, styles[arm], *at)
        if number + ACROSS >= len(arms):
            title = figure_text(f"{along} (log scale)")
            figure.update_xaxes(title_text=title, showticklabels=True, row=at[0], col=at[1])
    _axes(figure, conditions, lattice, across)
    figure.update_layout(
        template=template(palette), height=HEAD + inner + BOTTOM, showlegend=False,
        margin={"t": HEAD, "b": BOTTOM, "l": 8, "r": 8},
        coloraxis={
            "cmin": 0, "cmax": 1, "colorscale": scale(palette.sequential[1:]),
            "colorbar": {
                "thickness": 12, "tickformat": ".1f", "lenmode": "pixels", "len": max(min(inner, 220), 110), "y": 1,
                "yanchor": "top", "x": 1.005,
                "title": {"text": "fraction", "side": "right", "font": {"color": palette.muted, "size": 13}},
            },
        },
    )  # fmt: skip
    told = f"{_TOLD[measure]}; {_EDGE}"
    figure.add_annotation(heading(measure, wrapped(told, 150), palette, yshift=34))
    return figure


def _axes(figure: go.Figure, conditions: Sequence[float], lattice: Sequence[float], across: str) -> None:
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


def _ground(conditions: Sequence[float], lattice: Sequence[float], palette: Palette) -> Trace:
    """The searched points, pale, under those that were run."""
    return heatmap(
        x=[math.log2(x) for x in lattice], y=list(range(len(conditions))), z=[[0] * len(lattice)] * len(conditions),
        colorscale=[[0, palette.surface], [1, palette.surface]], showscale=False, hoverinfo="skip", xgap=2, ygap=2,
    )  # fmt: skip


def _map(
    points: pd.DataFrame, conditions: Sequence[float], lattice: Sequence[float], palette: Palette, measure: str
) -> list[Any]:
    """The cells of an arm, and their numbers in an ink that can be read on them."""
    values: list[list[float | None]] = [[None] * len(lattice) for _ in conditions]
    about = [[""] * len(lattice) for _ in conditions]
    words: list[tuple[float, float, str, str]] = []
    for row in points.to_dict(orient="records"):
        i = conditions.index(row["y"])
        j = min(range(len(lattice)), key=lambda k, x=row["x"]: abs(math.log2(lattice[k] / x)))  # type: ignore[misc]
        final = None if row["final"] != row["final"] else float(row["final"])
        value = row["collapsed"] / row["runs"] if measure == "collapsed" else final
        values[i][j] = value
        shown = f"{row['collapsed']:.0f}/{row['runs']:.0f}"
        told = "not measured" if final is None else f"{final:.3f}"
        about[i][j] = f"{row['x']:g} at {row['y']:g}<br>{shown} runs collapsed<br>mean final success {told}"
        if value is not None:
            word = shown if measure == "collapsed" else f"{value:.2f}".removeprefix("0")
            words.append((math.log2(lattice[j]), i + _ABOVE, word, _ink(value, palette)))
    places = {"x": [math.log2(x) for x in lattice], "y": list(range(len(conditions)))}
    return [
        heatmap(
            **places, z=values, customdata=about, hovertemplate="%{customdata}<extra></extra>", coloraxis="coloraxis",
            xgap=2, ygap=2, hoverongaps=False,
        ),
        scatter(
            x=[x for x, *_ in words], y=[y for _, y, *_ in words], text=[word for *_, word, _ in words], mode="text",
            textfont={"size": 11, "color": [ink for *_, ink in words]}, hoverinfo="skip", cliponaxis=False,
        ),
    ]  # fmt: skip


def _ink(value: float, palette: Palette) -> str:
    """Of the text and the background of the page, that which is read better on the colour of `value`."""
    colours = palette.sequential[1:]
    at = min(max(value, 0.0), 1.0) * (len(colours) - 1)
    low = min(int(at), len(colours) - 2)
    ground = mixed(colours[low], colours[low + 1], at - low)
    return max((palette.text, palette.background), key=lambda ink: contrast(ink, ground))


def _line(columns: pd.DataFrame, conditions: Sequence[float], palette: Palette) -> list[Any]:
    """The boundary over the conditions, with its interval."""
    known = columns.sort_values("y").to_dict(orient="records")
    if not known:
        return []
    x = [math.log2(row["boundary"]) for row in known]
    error = [[0.0 if _missing(row[f"boundary_{side}"]) else abs(math.log2(row[f"boundary_{side}"]) - at)
              for row, at in zip(known, x, strict=True)] for side in ("high", "low")]  # fmt: skip
    symbols = {"above": "triangle-right", "below": "triangle-left"}
    colour = palette.outcomes["mild"]  # to be seen on the light and on the dark end of the scale
    return [
        scatter(
            x=x, y=[conditions.index(row["y"]) + _BELOW for row in known], mode="markers", hoverinfo="skip",
            marker={"color": colour, "size": 10, "symbol": [symbols.get(row["beyond"], "circle") for row in known],
                    "line": {"color": palette.background, "width": 1}},
            error_x={"type": "data", "array": error[0], "arrayminus": error[1], "color": colour, "thickness": 2,
                     "width": 4},
        )
    ]  # fmt: skip


def _name(figure: go.Figure, arm: str, style: Style, row: int, column: int) -> None:
    """Name of the arm above its map."""
    x_axis, y_axis = next(figure.select_xaxes(row=row, col=column)), next(figure.select_yaxes(row=row, col=column))
    figure.add_annotation(
        text=f"<span style='color:{style.colour}'>■</span> {figure_text(arm)}", x=x_axis.domain[0], y=y_axis.domain[1],
        xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=6, align="left", showarrow=False,
    )  # fmt: skip


def _missing(value: Any) -> bool:
    return value is None or value != value
