"""A quick chart of an answer: points, a line or bars over a column, a colour a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.app.figures import common
from workbench.app.figures.common import Trace, heading, short, trace
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import DASHES, Palette, Style, scale, styles

GROUPS = 24  # that a legend lists; more are drawn without one
_HEIGHT, _ROW, _TITLE = 420, 22, 66  # pixels
_CONTINUOUS = 12  # values of a column of numbers from which on its colours are a scale
_COUNTS = 8  # whole numbers on an axis up to which each is named
_LABEL = 34  # characters of a name on an axis or in the legend


def chart(
    frame: pd.DataFrame, x: str, y: str, colour: str, mark: str, words: Mapping[str, tuple[str, str]], palette: Palette,
    *, axis: str = "auto",
) -> go.Figure:  # fmt: skip
    """Draw a frame whose chosen columns have a value in every row; texts as x stand on the vertical axis.

    `mark` is line, points or bars, `words` maps columns to unit and definition. `axis` is the scale of y: linear, log,
    or auto (log where a linear axis would hide most points or lines; bars begin at 0).
    """
    is_text = frame[x].dtype.kind == "O"
    at, value = ("y", "x") if is_text else ("x", "y")
    groups: list[Any] = list(dict.fromkeys(frame[colour])) if colour else [""]
    scaled = bool(colour) and frame[colour].dtype.kind in "iuf" and len(groups) > _CONTINUOUS
    if colour and frame[colour].dtype.kind in "iufM":
        groups.sort()

    labels = {column: f"{column} ({unit})" for column, (unit, _) in words.items() if unit}

    def drawn(part: pd.DataFrame, head: str, tail: str, **look: Any) -> Trace:
        hover = f"{head}{figure_text(x)} %{{{at}}}<br>{figure_text(y)} %{{{value}:.5~g}}{tail}"
        places = {at: [figure_text(v) for v in part[x]] if is_text else part[x].to_numpy(), value: part[y].to_numpy()}
        return trace(hover, showlegend=True, **places, **({"orientation": "h"} if is_text else {}), **look)

    traces = []
    if scaled:
        bar = {"title": {"text": figure_text(labels.get(colour, colour))}, "outlinewidth": 0, "thickness": 10}
        values, colours = frame[colour], scale(palette.sequential[1:])
        marker = {"size": 7, "color": values.to_numpy(), "colorscale": colours, "colorbar": bar}
        tail = f"<br>{figure_text(colour)} %{{customdata:.5~g}}"
        traces.append(drawn(frame, "", tail, mode="markers", customdata=values.tolist(), marker=marker))
    for group, style in {} if scaled else _styles(frame, colour, groups, palette).items():
        part = frame[frame[colour] == group] if colour else frame
        part = part.sort_values(x) if mark == "line" else part
        if mark == "bars":
            look: dict[str, Any] = {"type": "bar", "marker": {"color": style.colour, "line": {"width": 0}}}
        else:
            size, opacity = (5, 1) if mark == "line" else (7, 0.8)
            look = {
                "mode": "markers" if mark == "points" else "lines+markers" if len(part) <= 60 else "lines",
                "line": {"color": style.colour, "dash": style.dash, "width": 2},
                "marker": {"color": style.colour, "symbol": style.marker, "size": size, "opacity": opacity},
            }
        head = f"<b>{figure_text(group)}</b><br>" if colour else ""
        traces.append(drawn(part, head, "", name=short(str(group), _LABEL), **look))

    as_log = axis == "log" or (mark != "bars" and axis == "auto" and common.is_wide(frame[y].astype(float).to_numpy()))
    label = labels.get(y, y)
    measured = common.log_scale(label) if as_log else {"type": "linear", "title": {"text": figure_text(label)}}
    names = list(dict.fromkeys(frame[x])) if is_text else []
    if is_text:
        other = {
            "type": "category", "autorange": "reversed", "tickmode": "array", "showgrid": False,
            "tickvals": [figure_text(n) for n in names], "ticktext": [wrapped(str(n), _LABEL) for n in names],
        }  # fmt: skip
    else:
        counted = frame[x].dtype.kind in "iu" and frame[x].max() - frame[x].min() < _COUNTS  # there is no turn 1.5
        title = {"text": figure_text(labels.get(x, x))}
        other = {"title": title, "separatethousands": True, "dtick": 1 if counted else None}
    rows = len(names) * (len(groups) if mark == "bars" else 1)
    return common.figure(
        traces, palette, inner=max(_HEIGHT - _TITLE - 52, 8 + rows * _ROW), top=_TITLE, bottom=52, barmode="group",
        bargap=0.3, dragmode="zoom", showlegend=len(traces) > 1 and len(groups) <= GROUPS,
        legend={"orientation": "v", "x": 1.01, "y": 1, "yanchor": "top",
                "title": {"text": figure_text(colour), "font": {"size": 13}}},
        xaxis=measured if is_text else other, yaxis=other if is_text else measured,
        annotations=[heading(y, wrapped(words.get(y, ("", ""))[1], 118), palette, yshift=10)],
    )  # fmt: skip


def _styles(data: pd.DataFrame, colour: str, groups: Sequence[Any], palette: Palette) -> dict[Any, Style]:
    # Algorithms and arms in the colours that they have everywhere, other groups in turn.
    known = palette.algorithms
    if colour in ("algorithm", "arm"):
        named = dict(zip(data["arm"], data["algorithm"], strict=True)) if {"arm", "algorithm"} <= set(data) else {}
        pairs = []
        for group in groups:
            starts = [n for n in (*known, *palette.neighbours) if group == n or group.startswith((f"{n},", f"{n} "))]
            pairs.append((str(group), str(named.get(group, max(starts, key=len, default=group)))))
        found = styles(pairs, palette)
        return {group: found[str(group)] for group in groups}
    colours = [*known.values(), *palette.others] if colour else [list(known.values())[2]]
    return {
        group: Style(colours[i % len(colours)], DASHES[i // len(colours) % len(DASHES)], "circle")
        for i, group in enumerate(groups)
    }
