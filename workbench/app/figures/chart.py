"""A quick chart of an answer: points, a line or bars over a column, a colour a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.app.figures import common
from workbench.app.figures.common import Trace, heading
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import DASHES, Palette, Style, scale, styles

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Words = Callable[[str], tuple[str, str]]  # column -> its unit and its definition, empty where there is none

GROUPS = 24  # that a legend lists; more are drawn without one
_HEIGHT, _ROW, _TITLE = 420, 22, 66  # pixels
_CONTINUOUS = 12  # values of a column of numbers from which on its colours are a scale
_COUNTS = 8  # whole numbers on an axis up to which each is named
_LABEL = 34  # characters of a name on an axis or in the legend


def chart(
    frame: pd.DataFrame, x: str, y: str, colour: str, mark: str, words: Words, palette: Palette, *, axis: str = "auto"
) -> go.Figure:
    """Draw a frame whose chosen columns have a value in every row; texts as x stand on the vertical axis.

    `mark` is line, points or bars, `axis` the scale of y: linear, log, or auto (log where a linear axis would hide most
    points or lines; bars begin at 0).
    """
    lying = frame[x].dtype.kind == "O"
    groups: list[Any] = list(dict.fromkeys(frame[colour])) if colour else [""]
    scaled = bool(colour) and frame[colour].dtype.kind in "iuf" and len(groups) > _CONTINUOUS
    if colour and frame[colour].dtype.kind in "iufM":
        groups.sort()

    def labelled(column: str) -> str:
        unit = words(column)[0]
        return f"{column} ({unit})" if unit else column

    def place(part: pd.DataFrame, **more: Any) -> Trace:
        across = [figure_text(v) for v in part[x]] if lying else part[x].to_numpy()
        at, value = ("y", "x") if lying else ("x", "y")
        told = f"{figure_text(x)} %{{{at}}}<br>{figure_text(y)} %{{{value}:.5~g}}"
        return {"type": "scatter", at: across, value: part[y].to_numpy(), "hovertemplate": told, "showlegend": True,
                **({"orientation": "h"} if lying else {}), **more}  # fmt: skip

    traces = []
    if scaled:
        bar = {"title": {"text": figure_text(labelled(colour))}, "outlinewidth": 0, "thickness": 10}
        marker = {"size": 7, "color": frame[colour].to_numpy(), "colorscale": scale(palette.sequential[1:]),
                  "colorbar": bar}  # fmt: skip
        trace = place(frame, mode="markers", customdata=frame[colour].tolist(), marker=marker)
        trace["hovertemplate"] += f"<br>{figure_text(colour)} %{{customdata:.5~g}}<extra></extra>"
        traces.append(trace)
    looks = {} if scaled else _styles(frame, colour, groups, palette)
    for group, look in looks.items():
        part = frame[frame[colour] == group] if colour else frame
        part = part.sort_values(x) if mark == "line" else part
        name = str(group) if len(str(group)) <= _LABEL else str(group)[: _LABEL - 1] + "…"
        if mark == "bars":
            trace = place(part, type="bar", marker={"color": look.colour, "line": {"width": 0}})
        else:
            mode = "markers" if mark == "points" else "lines+markers" if len(part) <= 60 else "lines"
            trace = place(part, mode=mode, line={"color": look.colour, "dash": look.dash, "width": 2}, marker={
                "color": look.colour, "symbol": look.marker, "size": 5 if mark == "line" else 7,
                "opacity": 1 if mark == "line" else 0.8,
            })  # fmt: skip
        head = f"<b>{figure_text(group)}</b><br>" if colour else ""
        trace |= {"name": figure_text(name), "hovertemplate": f"{head}{trace['hovertemplate']}<extra></extra>"}
        traces.append(trace)

    as_log = axis == "log" or (mark != "bars" and axis == "auto" and common.is_wide(frame[y].astype(float).to_numpy()))
    label = labelled(y) + (", log scale" if as_log else "")
    measured = {"title": {"text": figure_text(label)}, "type": "log" if as_log else "linear",
                **({"exponentformat": "power"} if as_log else {})}  # fmt: skip
    names = list(dict.fromkeys(frame[x])) if lying else []
    if lying:
        other = {
            "type": "category",
            "autorange": "reversed",
            "tickmode": "array",
            "showgrid": False,
            "tickvals": [figure_text(n) for n in names],
            "ticktext": [wrapped(str(n), _LABEL) for n in names],
        }
    else:
        counted = frame[x].dtype.kind in "iu" and frame[x].max() - frame[x].min() < _COUNTS  # there is no turn 1.5
        other = {
            "title": {"text": figure_text(labelled(x))},
            "separatethousands": True,
            "dtick": 1 if counted else None,
        }
    return common.figure(
        traces, palette, top=_TITLE, bottom=52,
        height=max(_HEIGHT, _TITLE + 60 + len(names) * _ROW * (len(groups) if mark == "bars" else 1)),
        barmode="group", bargap=0.3, dragmode="zoom", showlegend=len(traces) > 1 and len(groups) <= GROUPS,
        legend={"orientation": "v", "x": 1.01, "y": 1, "yanchor": "top",
                "title": {"text": figure_text(colour), "font": {"size": 13}}},
        xaxis=measured if lying else other, yaxis=other if lying else measured,
        annotations=[heading(y, wrapped(words(y)[1], 118), palette, yshift=10)],
    )  # fmt: skip


def _styles(data: pd.DataFrame, colour: str, groups: Sequence[Any], palette: Palette) -> dict[Any, Style]:
    """Algorithms and arms in the colours that they have everywhere, other groups in turn."""
    known = palette.algorithms
    if colour in ("algorithm", "arm"):
        named = dict(zip(data["arm"], data["algorithm"], strict=True)) if {"arm", "algorithm"} <= set(data) else {}
        pairs = []
        for group in groups:
            begins = [
                name
                for name in (*known, *palette.neighbours)
                if group == name or group.startswith((f"{name},", f"{name} "))
            ]
            pairs.append((str(group), str(named.get(group, max(begins, key=len, default=group)))))
        found = styles(pairs, palette)
        return {group: found[str(group)] for group in groups}
    hues = [*known.values(), *palette.others]
    return {
        group: Style(hues[i % len(hues)] if colour else hues[2], DASHES[i // len(hues) % len(DASHES)], "circle")
        for i, group in enumerate(groups)
    }
