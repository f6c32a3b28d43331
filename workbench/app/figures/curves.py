"""Curves of diagnostics over training, a panel a diagnostic, as bands or single seeds; a quick chart of any answer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.app.figures import common
from workbench.app.figures.common import LEGEND_ROW, Trace, area, heading, short, trace
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import DASHES, Palette, Style, faded, scale, styles

PANEL, BOTTOM = 190, 52  # pixels
_WEBGL = 15_000  # points of a panel above which the graphics processor draws it
_FILLED = 3  # arms up to which the band of the extremes is filled
_MARKED = 60  # points of a line up to which each is marked
_NUMBERS = ("run", "seed", "x", "mean", "middle", "lower", "upper", "low", "high", "n")  # columns of the points


class Panel(NamedTuple):
    """One diagnostic: its words from the dictionary, its points (`banded` or `Chosen.points`) and marks."""

    name: str
    unit: str
    definition: str
    data: pd.DataFrame
    thresholds: Sequence[tuple[str | None, float]] = ()  # of an arm, or (None) of all
    alarms: pd.DataFrame | None = None  # arm, x, value, message
    broken: pd.DataFrame | None = None  # arm, run_id, x of every point with NaN or Inf


def curves(
    panels: Sequence[Panel], styles: Mapping[str, Style], palette: Palette, x_title: str, *,
    onsets: pd.DataFrame | None = None, scale: str = "auto", columns: int | None = None, legend: bool = True,
) -> go.Figure:  # fmt: skip
    """Draw the panels; `styles` in the order of the legend, `onsets` (arm, x, run_id) of collapses, `scale` of y."""
    across = columns or (1 if len(panels) <= 3 else 2)
    rows = math.ceil(len(panels) / across)
    words = [wrapped(panel.definition, 118 // across) for panel in panels]
    gap = 44 + 15 * max((text.count("<br>") + 1 for text in words), default=1)
    above = 16 + LEGEND_ROW * common.legend_rows(list(styles), 700) if legend else 0
    inner = rows * PANEL + (rows - 1) * gap
    # The entries of the legend have no points, and switch the traces of their arm in all panels.
    traces: list[Trace] = [
        _line(arm, style, 2.2, marked=True, x=[None], y=[None], name=figure_text(arm))
        | {"showlegend": True, "marker": {"symbol": style.marker, "size": 6, "color": style.colour}}
        for arm, style in styles.items()
    ]
    layout, annotations = dict[str, Any](), list[Trace]()
    for panel, pane, text in zip(panels, common.panes(len(panels), across, 0.075, gap / inner), words, strict=True):
        edges = f"y{len(panels) + pane.number + 1}"  # from 0 at the lower to 1 at the upper edge of the panel
        drawn = _bands(panel, styles) if "middle" in panel.data else _runs(panel, styles)
        traces += [one | pane.axes for one in (*drawn, *_alarms(panel, styles, palette))]
        traces += [one | pane.axes | {"yaxis": edges} for one in _on_edges(panel, onsets, styles)]
        x_axis = {
            "matches": "x", "title": {"text": x_title if pane.is_last else ""}, "showticklabels": pane.is_last,
            "separatethousands": True, "showspikes": True, "spikesnap": "cursor",
        }  # fmt: skip
        layout |= pane.placed(x_axis, _y_axis(panel, scale))
        layout[edges.replace("y", "yaxis")] = {
            "overlaying": pane.axes["yaxis"], "anchor": pane.axes["xaxis"], "side": "right", "range": [0, 1],
            "visible": False, "fixedrange": True,
        }  # fmt: skip
        annotations.append(heading(panel.name, text, palette, x=pane.x[0], y=pane.y[1]))
        if panel.data.empty:
            annotations.append(pane.in_middle("not measured in these runs", font={"color": palette.muted}))
    layout |= common.legend_on_top(groupclick="togglegroup") | {"showlegend": legend, "dragmode": "zoom"}
    top = above + gap - 8
    return common.figure(traces, palette, inner=inner + 8, top=top, bottom=BOTTOM, annotations=annotations, **layout)


def _y_axis(panel: Panel, scale: str) -> dict[str, Any]:
    # A `scale` of auto is log where a linear axis would hide most values.
    names = ["low", "high"] if "high" in panel.data else ["mean"]
    known = panel.data[names].to_numpy(dtype=float).ravel()
    known = known[~np.isnan(known)]
    bare = {"showticklabels": False, "showgrid": False} if panel.data.empty else {}
    if scale == "linear" or (scale == "auto" and not common.is_wide(known)):
        return {"title": {"text": figure_text(panel.unit)}, **bare}
    decades = math.log10(known.max() / known.min()) if len(known) and known.min() > 0 else 1
    ticks = {"dtick": max(1, math.ceil(decades / 5))} if decades > 1.5 else {}
    return common.log_scale(panel.unit) | ticks | bare


def _line(arm: str, style: Style, width: float, *, marked: bool, hover: str = "", **more: Any) -> Trace:
    """Return a line of an arm, which its entry of the legend switches."""
    circle = style.marker == "circle"
    marker = {"symbol": style.marker, "size": 3.5 if circle else 6, "color": style.colour, "maxdisplayed": 30}
    return trace(
        hover, legendgroup=figure_text(arm), showlegend=False, marker=marker,
        mode="lines+markers" if marked or not circle else "lines",
        line={"color": style.colour, "dash": style.dash, "width": width}, **more,
    )  # fmt: skip


def _parts(panel: Panel, styles: Mapping[str, Style]) -> Iterator[tuple[str, Style, dict[str, np.ndarray]]]:
    """Yield the points of each arm as arrays, in the order of `styles`."""
    rows = panel.data.groupby("arm", sort=False).indices
    values = {name: panel.data[name].to_numpy(dtype=float) for name in _NUMBERS if name in panel.data}
    for arm, style in styles.items():
        if arm in rows:
            yield arm, style, {name: column[rows[arm]] for name, column in values.items()}


def _bands(panel: Panel, styles: Mapping[str, Style]) -> list[Trace]:
    """Return the middle of every arm over its interval over its extremes: no band covers a line."""
    few = len(styles) <= _FILLED
    wide, narrow, lines = list[Trace](), list[Trace](), list[Trace]()
    for arm, style, part in _parts(panel, styles):
        # Where many arms would hide each other, a band of extremes is only its two edges.
        for bands, ends, opacity, filled in (
            (wide, ("low", "high"), 0.09 if few else 0, few), (narrow, ("lower", "upper"), 0.2 if few else 0.11, True),
        ):  # fmt: skip
            low, high = (part[name] for name in ends)
            known = ~(np.isnan(low) | np.isnan(high))
            if (low[known] != high[known]).any():
                line = {"width": 0 if filled else 0.8, "color": faded(style.colour, 0.35)}
                bands.append(area(part["x"][known], low[known], high[known], style.colour, opacity, line=line,
                                  legendgroup=figure_text(arm), showlegend=False))  # fmt: skip
        lines.append(_line(
            arm, style, 2.2, marked=len(part["x"]) <= _MARKED, x=part["x"], y=part["middle"],
            customdata=np.column_stack([part[name] for name in ("lower", "upper", "low", "high", "n")]),
            hover=f"<b>{figure_text(arm)}</b><br>at %{{x:,.6~g}}: %{{y:.4~g}}"
            "<br>95 % interval %{customdata[0]:.4~g} to %{customdata[1]:.4~g}"
            "<br>extremes %{customdata[2]:.4~g} to %{customdata[3]:.4~g}<br>seeds %{customdata[4]}",
        ))  # fmt: skip
    return [*wide, *narrow, *lines]


def _runs(panel: Panel, styles: Mapping[str, Style]) -> list[Trace]:
    """Return all runs of an arm as one trace, over the extremes of every bucket: a mean must not hide a spike."""
    of: Trace = {"type": "scattergl" if len(panel.data) > _WEBGL else "scatter", "connectgaps": False}
    wide, lines = [], []
    for arm, style, part in _parts(panel, styles):
        run = part["run"]  # a point of NaN behind the last point of each run is the gap to the next
        ends = np.append(np.flatnonzero(run[1:] != run[:-1]) + 1, len(run))
        order = np.insert(np.arange(len(run)), ends, -1)
        gapped = {name: np.append(column, np.nan)[order] for name, column in part.items()}
        line = _line(
            arm, style, 1.4, marked=int(np.diff(ends, prepend=0).max()) <= _MARKED, **of, x=gapped["x"],
            y=gapped["mean"], customdata=gapped["seed"],
            hover=f"<b>{figure_text(arm)}</b><br>seed %{{customdata}}<br>at %{{x:,.6~g}}: %{{y:.4~g}}",
        )  # fmt: skip
        if of["type"] == "scattergl":  # the graphics processor thins out no markers
            line = line | {"mode": "lines", "marker": None}
        lines.append(line)
        if (part["low"] < part["high"]).any():
            pairs = np.column_stack([gapped["low"], gapped["high"]]).ravel()
            wide.append(trace(
                **of, x=np.repeat(gapped["x"], 2), y=pairs, mode="lines", legendgroup=figure_text(arm),
                showlegend=False, line={"color": faded(style.colour, 0.3), "width": 1},
            ))  # fmt: skip
    return [*wide, *lines]


def _alarms(panel: Panel, styles: Mapping[str, Style], palette: Palette) -> Iterator[Trace]:
    """Yield the thresholds (each arm's own where it is a multiple of its baseline), and the alarms on their points."""
    for arm, value in panel.thresholds if len(panel.data) else ():
        yield trace(
            figure_text(f"alarm at {value:.4g}" + (f" for {arm}" if arm else "")), mode="lines", showlegend=False,
            x=[float(panel.data["x"].min()), float(panel.data["x"].max())], y=[value, value],
            legendgroup=figure_text(arm) if arm else None,
            line={"color": styles[arm].colour if arm else palette.muted, "dash": common.DOTTED, "width": 1},
        )  # fmt: skip
    if (rows := panel.alarms) is not None and len(rows):
        words = zip(rows["arm"], rows["message"], strict=True)
        yield trace(
            "%{customdata}", mode="markers", showlegend=False, x=rows["x"].to_list(), y=rows["value"].to_list(),
            customdata=[f"<b>{figure_text(arm)}</b><br>{wrapped(message, 60)}" for arm, message in words],
            marker={"symbol": "triangle-up-open", "size": 10, "color": [styles[arm].colour for arm in rows["arm"]]},
        )  # fmt: skip


def _on_edges(panel: Panel, onsets: pd.DataFrame | None, styles: Mapping[str, Style]) -> Iterator[Trace]:
    """Yield the onsets of collapses for the upper edge of a panel, and what is no number for the lower edge."""
    for rows, height, symbol, size, words in (
        (onsets, 0.97, "triangle-down", 9, "onset of the collapse"), (panel.broken, 0.03, "x", 7, "NaN or Inf"),
    ):  # fmt: skip
        for arm, part in rows.groupby("arm", sort=False) if rows is not None else ():
            yield trace(
                f"{words}<br>%{{customdata}}<br>at %{{x:,.6~g}}", x=part["x"].to_list(), y=[height] * len(part),
                customdata=[figure_text(run) for run in part["run_id"]], legendgroup=figure_text(str(arm)),
                mode="markers", marker={"symbol": symbol, "size": size, "color": styles[str(arm)].colour},
                showlegend=False,
            )  # fmt: skip


# A chart of any answer: points, a line or bars over a column, a colour a group.

GROUPS = 24  # that a legend lists; more are drawn without one
_HEIGHT, _ROW, _TITLE = 420, 22, 66  # pixels
_CONTINUOUS = 12  # values of a column of numbers from which on its colours are a scale
_COUNTS = 8  # whole numbers on an axis up to which each is named
_LABEL = 34  # characters of a name on an axis or in the legend


def chart(
    frame: pd.DataFrame, x: str, y: str, colour: str, mark: str, words: Mapping[str, tuple[str, str]], palette: Palette,
    *, axis: str = "auto",
) -> go.Figure:  # fmt: skip
    """Draw rows with a value in each chosen column as line, points or bars; `words`: column -> unit, definition."""
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
    # By itself an axis is log where a linear one would hide most points or lines; bars begin at 0.
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
