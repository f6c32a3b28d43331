"""Small multiples of diagnostics over training: one panel a diagnostic, a shared x-axis, bands or single seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.app.figures import common
from workbench.app.figures.common import LEGEND_ROW, Trace, heading, note
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import Palette, Style, faded

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import plotly.graph_objects as go

    Columns = Mapping[str, np.ndarray]

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
    thresholds: Sequence[tuple[str | None, float]] = field(default=())
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
    traces: list[Trace | None] = [
        _look(style, True, 2.2) | _of(arm) | {"x": [None], "y": [None], "name": figure_text(arm), "showlegend": True,
                                              "marker": {"symbol": style.marker, "size": 6, "color": style.colour}}
        for arm, style in styles.items()
    ]  # fmt: skip
    layout: dict[str, Any] = {}
    annotations: list[Trace] = []
    for panel, pane, text in zip(panels, common.panes(len(panels), across, 0.075, gap / inner), words, strict=True):
        edges = f"y{len(panels) + pane.number + 1}"  # from 0 at the lower to 1 at the upper edge of the panel
        drawn = _bands(panel, styles) if "middle" in panel.data else _runs(panel, styles)
        traces += [t | pane.axes for t in (*drawn, *_thresholds(panel, styles, palette), _alarms(panel, styles)) if t]
        traces += [t | pane.axes | {"yaxis": edges} for t in _on_edges(panel, onsets, styles)]
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
            middle = sum(pane.x) / 2, sum(pane.y) / 2
            annotations.append(note("not measured in these runs", *middle, font={"color": palette.muted}))
    return common.figure(
        traces, palette, height=above + gap + inner + BOTTOM, top=above + gap - 8, bottom=BOTTOM, showlegend=legend,
        annotations=annotations, legend=common.legend_on_top(groupclick="togglegroup"), **layout | {"dragmode": "zoom"},
    )  # fmt: skip


def _y_axis(panel: Panel, scale: str) -> dict[str, Any]:
    import numpy as np

    low, high = ("low", "high") if "high" in panel.data else ("mean", "mean")
    known = panel.data[[low, high]].to_numpy(dtype=float).ravel() if len(panel.data) else np.empty(0)
    known = known[~np.isnan(known)]
    bare = {"showticklabels": False, "showgrid": False} if panel.data.empty else {}
    if scale == "linear" or (scale == "auto" and not common.is_wide(known)):
        return {"title": {"text": figure_text(panel.unit)}, **bare}
    decades = math.log10(known.max() / known.min()) if len(known) and known.min() > 0 else 1
    return {
        "type": "log", "title": {"text": figure_text(f"{panel.unit}, log scale".lstrip(", "))},
        "exponentformat": "power", **({"dtick": max(1, math.ceil(decades / 5))} if decades > 1.5 else {}), **bare,
    }  # fmt: skip


def _of(arm: str) -> Trace:
    return {"type": "scatter", "legendgroup": figure_text(arm), "showlegend": False}


def _look(style: Style, marked: bool, width: float) -> Trace:
    return {
        "mode": "lines+markers" if marked or style.marker != "circle" else "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": width},
        "marker": {"symbol": style.marker, "size": 3.5 if style.marker == "circle" else 6, "color": style.colour,
                   "maxdisplayed": 30},
    }  # fmt: skip


def _parts(panel: Panel, styles: Mapping[str, Style]) -> Iterator[tuple[str, Style, Columns]]:
    """Yield the points of each arm as arrays, in the order of `styles`."""
    rows = panel.data.groupby("arm", sort=False).indices
    values = {name: panel.data[name].to_numpy(dtype=float) for name in _NUMBERS if name in panel.data}
    for arm, style in styles.items():
        if arm in rows:
            yield arm, style, {name: column[rows[arm]] for name, column in values.items()}


def _bands(panel: Panel, styles: Mapping[str, Style]) -> list[Trace | None]:
    """Return the middle of every arm over its interval over its extremes: no band covers a line."""
    import numpy as np

    few = len(styles) <= _FILLED
    wide, narrow, lines = [], [], []
    for arm, style, part in _parts(panel, styles):
        wide.append(_area(arm, style, part["x"], part["low"], part["high"], 0.09 if few else 0, few))
        narrow.append(_area(arm, style, part["x"], part["lower"], part["upper"], 0.2 if few else 0.11, True))
        lines.append(
            _of(arm) | _look(style, len(part["x"]) <= _MARKED, 2.2) | {
                "x": part["x"], "y": part["middle"],
                "customdata": np.column_stack([part[name] for name in ("lower", "upper", "low", "high", "n")]),
                "hovertemplate": f"<b>{figure_text(arm)}</b><br>at %{{x:,.6~g}}: %{{y:.4~g}}"
                "<br>95 % interval %{customdata[0]:.4~g} to %{customdata[1]:.4~g}"
                "<br>extremes %{customdata[2]:.4~g} to %{customdata[3]:.4~g}<br>seeds %{customdata[4]}<extra></extra>",
            }
        )  # fmt: skip
    return [*wide, *narrow, *lines]


def _area(
    arm: str, style: Style, x: np.ndarray, low: np.ndarray, high: np.ndarray, opacity: float, filled: bool
) -> Trace | None:
    """Return a band; where many arms would hide each other, only its two edges."""
    import numpy as np

    known = ~(np.isnan(low) | np.isnan(high))
    x, low, high = x[known], low[known], high[known]
    if (low == high).all():
        return None
    return _of(arm) | {
        "x": np.append(x, x[::-1]), "y": np.append(high, low[::-1]), "fill": "toself", "mode": "lines",
        "line": {"width": 0 if filled else 0.8, "color": faded(style.colour, 0.35)}, "hoverinfo": "skip",
        "fillcolor": faded(style.colour, opacity),
    }  # fmt: skip


def _runs(panel: Panel, styles: Mapping[str, Style]) -> list[Trace | None]:
    """Return all runs of an arm as one trace, over the extremes of every bucket: a mean must not hide a spike."""
    import numpy as np

    kind = "scattergl" if len(panel.data) > _WEBGL else "scatter"
    wide, lines = [], []
    for arm, style, part in _parts(panel, styles):
        run = part["run"]  # a point of NaN behind the last point of each run is the gap to the next
        ends = np.append(np.flatnonzero(run[1:] != run[:-1]) + 1, len(run))
        order = np.insert(np.arange(len(run)), ends, -1)
        gapped = {name: np.append(column, np.nan)[order] for name, column in part.items()}
        of = _of(arm) | {"type": kind, "connectgaps": False}
        if (part["low"] < part["high"]).any():
            pairs = np.column_stack([gapped["low"], gapped["high"]]).ravel()
            line = {"color": faded(style.colour, 0.3), "width": 1}
            wide.append(of | {"x": np.repeat(gapped["x"], 2), "y": pairs, "mode": "lines", "line": line,
                              "hoverinfo": "skip"})  # fmt: skip
        look = _look(style, int(np.diff(ends, prepend=0).max()) <= _MARKED, 1.4)
        if kind == "scattergl":  # the graphics processor thins out no markers
            look = {"mode": "lines", "line": look["line"]}
        lines.append(of | look | {
            "x": gapped["x"], "y": gapped["mean"], "customdata": gapped["seed"],
            "hovertemplate": f"<b>{figure_text(arm)}</b><br>seed %{{customdata}}<br>at %{{x:,.6~g}}: %{{y:.4~g}}"
            "<extra></extra>",
        })  # fmt: skip
    return [*wide, *lines]


def _thresholds(panel: Panel, styles: Mapping[str, Style], palette: Palette) -> Iterator[Trace]:
    """Yield the alarm's threshold over the whole panel; each arm's own where it is a multiple of its baseline."""
    for arm, value in panel.thresholds if len(panel.data) else ():
        words = figure_text(f"alarm at {value:.4g}" + (f" for {arm}" if arm else ""))
        yield {
            "type": "scatter", "x": [float(panel.data["x"].min()), float(panel.data["x"].max())], "y": [value, value],
            "mode": "lines", "showlegend": False, "legendgroup": figure_text(arm) if arm else None,
            "line": {"color": styles[arm].colour if arm else palette.muted, "dash": common.DOTTED, "width": 1},
            "hovertemplate": f"{words}<extra></extra>",
        }  # fmt: skip


def _alarms(panel: Panel, styles: Mapping[str, Style]) -> Trace | None:
    if panel.alarms is None or panel.alarms.empty:
        return None
    rows = panel.alarms
    words = zip(rows["arm"], rows["message"], strict=True)
    return {
        "type": "scatter", "mode": "markers", "showlegend": False, "x": rows["x"].to_list(),
        "y": rows["value"].to_list(),
        "marker": {"symbol": "triangle-up-open", "size": 10, "color": [styles[arm].colour for arm in rows["arm"]]},
        "customdata": [f"<b>{figure_text(arm)}</b><br>{wrapped(message, 60)}" for arm, message in words],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _on_edges(panel: Panel, onsets: pd.DataFrame | None, styles: Mapping[str, Style]) -> Iterator[Trace]:
    """Yield the onsets of collapses for the upper edge of a panel, and what is no number for the lower edge."""
    for rows, height, symbol, size, words in (
        (onsets, 0.97, "triangle-down", 9, "onset of the collapse"), (panel.broken, 0.03, "x", 7, "NaN or Inf"),
    ):  # fmt: skip
        for arm, part in rows.groupby("arm", sort=False) if rows is not None else ():
            yield _of(str(arm)) | {
                "x": part["x"].to_list(), "y": [height] * len(part), "mode": "markers",
                "marker": {"symbol": symbol, "size": size, "color": styles[str(arm)].colour},
                "customdata": [figure_text(run) for run in part["run_id"]],
                "hovertemplate": f"{words}<br>%{{customdata}}<br>at %{{x:,.6~g}}<extra></extra>",
            }  # fmt: skip
