"""Small multiples of diagnostics over training: one panel a diagnostic, a shared x-axis, bands or single seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.app.figures import common
from workbench.app.figures.common import LEGEND_ROW, Trace, area, heading, trace
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import Palette, Style, faded

PANEL, BOTTOM = 190, 52  # pixels
_WEBGL = 15_000  # points of a panel above which the graphics processor draws it
_FILLED = 3  # arms up to which the band of the extremes is filled
_MARKED = 60  # points of a line up to which each is marked
_NUMBERS = ("run", "seed", "x", "mean", "middle", "lower", "upper", "low", "high", "n")  # columns of the points


@dataclass(frozen=True)
class Panel:
    """One diagnostic: its words from the dictionary, its values, its thresholds and its alarms.

    `data` has a row per point: arm, x, and either the columns of `curve_data.banded` or those of `Chosen.points`.
    `thresholds` are (arm or None for all, value); `alarms` has arm, x, value, message; `broken` has arm, run_id, x of
    every point with NaN or Inf.
    """

    name: str
    unit: str
    definition: str
    data: pd.DataFrame
    thresholds: Sequence[tuple[str | None, float]] = ()
    alarms: pd.DataFrame | None = None
    broken: pd.DataFrame | None = None


def curves(
    panels: Sequence[Panel], styles: Mapping[str, Style], palette: Palette, x_title: str, *,
    onsets: pd.DataFrame | None = None, scale: str = "auto", columns: int | None = None, legend: bool = True,
) -> go.Figure:  # fmt: skip
    """Draw the panels: `styles` holds the arms in the order of the legend, `onsets` (arm, x, run_id) the collapses.

    `scale` of the y-axes: linear, log, or auto (log where a linear axis would hide most values).
    """
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
    layout: dict[str, Any] = {}
    annotations: list[Trace] = []
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
