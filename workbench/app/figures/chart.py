"""A quick chart of an answer: points, a line or bars over a column, a colour a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from workbench.app.figures.panes import Trace, bar, heading, scatter
from workbench.app.series import is_wide
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import DASHES, Palette, Style, scale, styles, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

Words = Callable[[str], tuple[str, str]]  # column -> its unit and its definition, empty where there is none

HEIGHT, ROW, TITLE = 420, 22, 66  # pixels
GROUPS = 24  # that a legend lists; more are drawn without one
_CONTINUOUS = 12  # values of a column of numbers from which on its colours are a scale
_COUNTS = 8  # whole numbers on an axis up to which each is named
_LABEL = 34  # characters of a name on an axis or in the legend


def chart(
    frame: pd.DataFrame, x: str, y: str, colour: str, mark: str, words: Words, palette: Palette, *, axis: str = "auto"
) -> go.Figure:
    """The figure of a frame whose chosen columns have a value in every row; texts as x stand on the vertical axis.

    `mark` is line, points or bars, `axis` the scale of y: linear, log, or auto (log where a linear axis would hide most
    points or lines; bars begin at 0).
    """
    import plotly.graph_objects as go

    data = frame
    lying = data[x].dtype.kind == "O"
    figure = go.Figure()
    if colour and data[colour].dtype.kind in "iuf" and data[colour].nunique() > _CONTINUOUS:
        figure.add_trace(_scaled(data, x, y, colour, lying, words, palette))
    else:
        for trace in _grouped(data, x, y, colour, mark, lying, palette):
            figure.add_trace(trace)
    names = list(dict.fromkeys(data[x])) if lying else []
    groups = data[colour].nunique() if colour else 1
    height = max(HEIGHT, TITLE + 60 + len(names) * ROW * (groups if mark == "bars" else 1))
    figure.update_layout(
        template=template(palette), height=height, margin={"t": TITLE, "b": 52}, barmode="group", bargap=0.3,
        showlegend=bool(colour) and 1 < groups <= GROUPS,
        legend={"orientation": "v", "x": 1.01, "y": 1, "yanchor": "top",
                "title": {"text": figure_text(colour), "font": {"size": 13}}},
    )  # fmt: skip
    wide = mark != "bars" and axis == "auto" and is_wide([float(v) for v in data[y]])
    _axes(figure, data, x, y, words, wide or axis == "log", lying)
    _title(figure, y, words, palette)
    return figure


def _grouped(data: pd.DataFrame, x: str, y: str, colour: str, mark: str, lying: bool, palette: Palette) -> list[Any]:
    """A trace a group: numbers in their order, others in the order in which they occur."""
    groups = list(dict.fromkeys(data[colour])) if colour else [""]
    if colour and data[colour].dtype.kind in "iufM":
        groups.sort()
    looks = _styles(data, colour, groups, palette)
    parts = [(group, data[data[colour] == group] if colour else data) for group in groups]
    return [_trace(part, x, y, str(group), mark, lying, looks[group]) for group, part in parts]


def _trace(part: pd.DataFrame, x: str, y: str, group: str, mark: str, lying: bool, look: Style) -> Any:
    if mark == "line":
        part = part.sort_values(x)
    across, up = ([figure_text(v) for v in part[x]] if lying else part[x]), part[y]
    place = {"x": up, "y": across, "orientation": "h"} if lying else {"x": across, "y": up}
    at, value = ("y", "x") if lying else ("x", "y")
    shared = {
        "name": figure_text(_short(group)), **place,
        "hovertemplate": (f"<b>{figure_text(group)}</b><br>" if group else "")
        + f"{figure_text(x)} %{{{at}}}<br>{figure_text(y)} %{{{value}:.5~g}}<extra></extra>",
    }  # fmt: skip
    if mark == "bars":
        return bar(**shared, marker={"color": look.colour, "line": {"width": 0}})
    marker = {"color": look.colour, "symbol": look.marker, "size": 5 if mark == "line" else 7,
              "opacity": 1 if mark == "line" else 0.8}  # fmt: skip
    few = len(part) <= 60
    mode = "markers" if mark == "points" else "lines+markers" if few else "lines"
    return scatter(**shared, mode=mode, marker=marker, line={"color": look.colour, "dash": look.dash, "width": 2})


def _scaled(data: pd.DataFrame, x: str, y: str, colour: str, lying: bool, words: Words, palette: Palette) -> Trace:
    """Points whose colour is a number."""
    across = [figure_text(v) for v in data[x]] if lying else data[x]
    place = {"x": data[y], "y": across, "orientation": "h"} if lying else {"x": across, "y": data[y]}
    bar = {"title": {"text": figure_text(_with_unit(colour, words))}, "outlinewidth": 0, "thickness": 10}
    return scatter(
        **place, mode="markers", customdata=data[colour],
        marker={"size": 7, "color": data[colour], "colorscale": scale(palette.sequential[1:]), "colorbar": bar},
        hovertemplate=f"{figure_text(x)} %{{{'y' if lying else 'x'}}}<br>{figure_text(y)} "
        f"%{{{'x' if lying else 'y'}:.5~g}}<br>{figure_text(colour)} %{{customdata:.5~g}}<extra></extra>",
    )  # fmt: skip


def _styles(data: pd.DataFrame, colour: str, groups: Sequence[Any], palette: Palette) -> dict[Any, Style]:
    """Algorithms and arms in the colours that they have everywhere, other groups in turn."""
    known = palette.algorithms
    if colour in ("algorithm", "arm"):
        told = dict(zip(data["arm"], data["algorithm"], strict=True)) if {"arm", "algorithm"} <= set(data) else {}

        def algorithm(group: str) -> str:
            named = (*known, *palette.neighbours)
            begins = [name for name in named if group == name or group.startswith((f"{name},", f"{name} "))]
            return str(told.get(group, max(begins, key=len, default=group)))

        return dict(styles([(str(group), algorithm(str(group))) for group in groups], palette))
    hues = [*known.values(), *palette.others]
    return {
        group: Style(hues[i % len(hues)] if colour else hues[2], DASHES[i // len(hues) % len(DASHES)], "circle")
        for i, group in enumerate(groups)
    }


def _axes(figure: go.Figure, data: pd.DataFrame, x: str, y: str, words: Words, as_log: bool, lying: bool) -> None:
    label = _with_unit(y, words) + (", log scale" if as_log else "")
    measured: dict[str, Any] = {"title": {"text": figure_text(label)}, "type": "log" if as_log else "linear"}
    if as_log:
        measured["exponentformat"] = "power"
    if not lying:
        few_counts = data[x].dtype.kind in "iu" and data[x].max() - data[x].min() < _COUNTS
        figure.update_xaxes(
            title={"text": figure_text(_with_unit(x, words))}, separatethousands=True, dtick=1 if few_counts else None
        )  # there is no turn 1.5
        figure.update_yaxes(**measured)
        return
    names = list(dict.fromkeys(data[x]))
    figure.update_xaxes(**measured)
    figure.update_yaxes(
        type="category", autorange="reversed", tickmode="array", tickvals=[figure_text(n) for n in names],
        ticktext=[wrapped(str(n), _LABEL) for n in names], showgrid=False,
    )  # fmt: skip


def _with_unit(column: str, words: Words) -> str:
    unit = words(column)[0]
    return f"{column} ({unit})" if unit else column


def _title(figure: go.Figure, y: str, words: Words, palette: Palette) -> None:
    definition = wrapped(words(y)[1], 118)
    figure.add_annotation(heading(figure_text(y), definition, palette, yshift=10))


def _short(group: str) -> str:
    return group if len(group) <= _LABEL else group[: _LABEL - 1] + "…"
