"""Small multiples of diagnostics over training: one panel a diagnostic, a shared x-axis, bands or single seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.app.figures.panes import Pane, Trace, heading, note, panes
from workbench.app.series import is_wide
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import Palette, Style, faded, template

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import plotly.graph_objects as go

    Columns = Mapping[str, np.ndarray]


PANEL, BOTTOM, LEGEND_ROW = 190, 52, 23  # pixels


def curves(
    panels: Sequence[Panel], styles: Mapping[str, Style], palette: Palette, x_title: str, *,
    onsets: pd.DataFrame | None = None, scale: str = "auto", columns: int | None = None, legend: bool = True,
) -> go.Figure:  # fmt: skip
    """The figure: `styles` holds the arms in the order of the legend, `onsets` (arm, x, run_id) the collapses.

    `scale` of the y-axes: linear, log, or auto (log where a linear axis would hide most values). A `legend` may be
    left out where there is one arm.
    """
    from workbench.app.figures.drawn import Drawn  # plotly takes a while to load

    across = columns or (1 if len(panels) <= 3 else 2)
    rows = math.ceil(len(panels) / across)
    words = [wrapped(panel.definition, 118 // across) for panel in panels]
    gap = 44 + 15 * max((text.count("<br>") + 1 for text in words), default=1)
    above = 16 + LEGEND_ROW * _legend_rows(list(styles)) if legend else 0
    inner = rows * PANEL + (rows - 1) * gap
    traces = [in_legend(arm, style) for arm, style in styles.items()]
    layout: dict[str, Any] = {
        "template": template(palette), "height": above + gap + inner + BOTTOM, "showlegend": legend, "annotations": [],
        "margin": {"t": above + gap - 8, "b": BOTTOM, "l": 8, "r": 12},
        "legend": {"yref": "container", "y": 1, "yanchor": "top", "groupclick": "togglegroup"},
    }  # fmt: skip
    places = panes(len(panels), across, 0.075, gap / inner)
    for panel, pane, text in zip(panels, places, words, strict=True):
        edges = f"y{len(panels) + pane.number + 1}"  # from 0 at the lower to 1 at the upper edge of the panel
        traces += [trace | pane.axes for trace in of_panel(panel, styles, palette)]
        traces += [trace | pane.axes | {"yaxis": edges} for trace in on_edges(panel, onsets, styles)]
        layout |= pane.placed(_x_axis(x_title if pane.is_last else ""), _y_axis(panel, scale))
        layout[edges.replace("y", "yaxis")] = {
            "overlaying": pane.axes["yaxis"], "anchor": pane.axes["xaxis"], "side": "right", "range": [0, 1],
            "visible": False, "fixedrange": True,
        }  # fmt: skip
        layout["annotations"] += _words(panel, pane, text, palette)
    return Drawn(traces, layout)


def _legend_rows(arms: Sequence[str]) -> int:
    """Rows of the legend on a narrow screen: an entry takes its sample, its text and a gap."""
    rows, used = 1, 0.0
    for arm in arms:
        entry = 68 + 6.6 * len(arm)
        if used and used + entry > 760:
            rows, used = rows + 1, 0.0
        used += entry
    return rows


def _x_axis(title: str) -> dict[str, Any]:
    """All panels share it; the lowest say what it counts."""
    return {
        "matches": "x", "title": {"text": title}, "showticklabels": bool(title), "separatethousands": True,
        "showspikes": True, "spikesnap": "cursor",
    }  # fmt: skip


def _y_axis(panel: Panel, scale: str) -> dict[str, Any]:
    import numpy as np

    low, high = ("low", "high") if "high" in panel.data else ("mean", "mean")
    known = panel.data[[low, high]].to_numpy(dtype=float).ravel() if len(panel.data) else np.empty(0)
    known = known[~np.isnan(known)]
    unit = panel.unit or "no unit"
    bare = {"showticklabels": False, "showgrid": False} if panel.data.empty else {}
    if scale == "linear" or (scale == "auto" and not is_wide(known)):
        return {"title": {"text": figure_text(unit)}, **bare}
    decades = math.log10(known.max() / known.min()) if len(known) and known.min() > 0 else 1
    return {
        "type": "log", "title": {"text": figure_text(f"{unit}, log scale")}, "exponentformat": "power",
        **({"dtick": max(1, math.ceil(decades / 5))} if decades > 1.5 else {}), **bare,
    }  # fmt: skip


def _words(panel: Panel, pane: Pane, definition: str, palette: Palette) -> Iterator[dict[str, Any]]:
    """Name and definition above the panel, and a word in it where nothing was measured."""
    yield heading(figure_text(panel.name), definition, palette, x=pane.x[0], y=pane.y[1])
    if panel.data.empty:
        middle = sum(pane.x) / 2, sum(pane.y) / 2
        yield note("not measured in these runs", *middle, font={"color": palette.muted})


_WEBGL = 15_000  # points of a panel above which the graphics processor draws it
_FILLED = 3  # arms up to which the band of the extremes is filled
_MARKED = 60  # points of a line up to which each is marked
_NUMBERS = ("run", "seed", "x", "mean", "middle", "lower", "upper", "low", "high", "n")  # columns of the points


@dataclass(frozen=True)
class Panel:
    """One diagnostic: its words from the dictionary, its values, its thresholds and its alarms.

    `data` has a row per point: arm, x, and either the columns of `series.banded` or those of `series.placed`.
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


def in_legend(arm: str, style: Style) -> Trace:
    """The entry of an arm: it has no points, and switches the traces of the arm in all panels."""
    return {
        "type": "scatter", "x": [None], "y": [None], "name": figure_text(arm), "legendgroup": figure_text(arm),
        "mode": "lines+markers", "line": {"color": style.colour, "dash": style.dash, "width": 2.2},
        "marker": {"symbol": style.marker, "size": 6, "color": style.colour},
    }  # fmt: skip


def of_panel(panel: Panel, styles: Mapping[str, Style], palette: Palette) -> list[Trace]:
    """The traces of a panel but those on its edges: wide and pale first, lines last, so that no band covers a line."""
    rows = {str(arm): where for arm, where in panel.data.groupby("arm", sort=False).indices.items()}
    values = {name: panel.data[name].to_numpy(dtype=float) for name in _NUMBERS if name in panel.data}
    parts = [
        (arm, style, {name: column[rows[arm]] for name, column in values.items()})
        for arm, style in styles.items()
        if arm in rows
    ]
    if "middle" in panel.data:
        few = len(styles) <= _FILLED
        traces = [_area(part, "low", "high", style, arm, 0.09 if few else 0, few) for arm, style, part in parts]
        traces += [_area(part, "lower", "upper", style, arm, 0.2 if few else 0.11) for arm, style, part in parts]
        traces += [_middle(part, style, arm) for arm, style, part in parts]
    else:
        kind = "scattergl" if len(panel.data) > _WEBGL else "scatter"
        runs = [(arm, style, _gapped(part)) for arm, style, part in parts]
        traces = [_extremes(part, style, arm, kind) for arm, style, part in runs]
        traces += [_seeds(part, style, arm, kind) for arm, style, part in runs]
    traces += [*_thresholds(panel, styles, palette), _alarms(panel, styles)]
    return [trace for trace in traces if trace is not None]


def _area(
    part: Columns, low: str, high: str, style: Style, arm: str, opacity: float, filled: bool = True
) -> Trace | None:
    """A band; where many arms would hide each other, only its two edges."""
    import numpy as np

    known = ~(np.isnan(part[low]) | np.isnan(part[high]))
    x, below, above = part["x"][known], part[low][known], part[high][known]
    if (below == above).all():
        return None
    return {
        "type": "scatter", "x": np.append(x, x[::-1]), "y": np.append(above, below[::-1]), "fill": "toself",
        "mode": "lines", "line": {"width": 0 if filled else 0.8, "color": faded(style.colour, 0.35)},
        "fillcolor": faded(style.colour, opacity), "legendgroup": figure_text(arm), "showlegend": False,
        "hoverinfo": "skip",
    }  # fmt: skip


def _middle(part: Columns, style: Style, arm: str) -> Trace:
    import numpy as np

    return {
        "type": "scatter", "x": part["x"], "y": part["middle"], "legendgroup": figure_text(arm), "showlegend": False,
        **_drawn(style, len(part["x"]), 2.2),
        "customdata": np.column_stack([part[name] for name in ("lower", "upper", "low", "high", "n")]),
        "hovertemplate": f"<b>{figure_text(arm)}</b><br>at %{{x:,.6~g}}: %{{y:.4~g}}"
        "<br>95 % interval %{customdata[0]:.4~g} to %{customdata[1]:.4~g}"
        "<br>extremes %{customdata[2]:.4~g} to %{customdata[3]:.4~g}<br>seeds %{customdata[4]}<extra></extra>",
    }  # fmt: skip


def _seeds(part: Columns, style: Style, arm: str, kind: str) -> Trace:
    """All seeds of an arm in one trace, with a gap between two runs."""
    import numpy as np

    look = _drawn(style, int(np.diff(np.flatnonzero(np.isnan(part["run"])), prepend=-1).max()) - 1, 1.4)
    if kind == "scattergl":  # the graphics processor thins out no markers
        look = {"mode": "lines", "line": look["line"]}
    return {
        "type": kind, "x": part["x"], "y": part["mean"], "customdata": part["seed"], "legendgroup": figure_text(arm),
        "showlegend": False, "connectgaps": False, **look,
        "hovertemplate": f"<b>{figure_text(arm)}</b><br>seed %{{customdata}}<br>at %{{x:,.6~g}}: %{{y:.4~g}}"
        "<extra></extra>",
    }  # fmt: skip


def _extremes(part: Columns, style: Style, arm: str, kind: str) -> Trace | None:
    """Lowest and highest value of every bucket: a mean may smooth, it must not hide a spike."""
    import numpy as np

    if not (part["low"] < part["high"]).any():
        return None
    return {
        "type": kind, "x": np.repeat(part["x"], 2), "y": np.column_stack([part["low"], part["high"]]).ravel(),
        "mode": "lines", "connectgaps": False, "line": {"color": faded(style.colour, 0.3), "width": 1},
        "legendgroup": figure_text(arm), "showlegend": False, "hoverinfo": "skip",
    }  # fmt: skip


def _gapped(part: Columns) -> Columns:
    """The points of an arm, which go run by run, with a point of NaN behind the last one of each run."""
    import numpy as np

    run = part["run"]
    ends = np.append(np.flatnonzero(run[1:] != run[:-1]) + 1, len(run))
    order = np.insert(np.arange(len(run)), ends, -1)  # the last place, where the NaN stands
    return {name: np.append(column, np.nan)[order] for name, column in part.items()}


def _drawn(style: Style, points: int, width: float) -> dict[str, Any]:
    marked = style.marker != "circle" or points <= _MARKED
    return {
        "mode": "lines+markers" if marked else "lines",
        "line": {"color": style.colour, "dash": style.dash, "width": width},
        "marker": {"symbol": style.marker, "size": 3.5 if style.marker == "circle" else 6, "color": style.colour,
                   "maxdisplayed": 30},
    }  # fmt: skip


def _thresholds(panel: Panel, styles: Mapping[str, Style], palette: Palette) -> list[Trace]:
    """The alarm's threshold over the whole panel; each arm's own where it is a multiple of its baseline."""
    if panel.data.empty:
        return []
    ends = [float(panel.data["x"].min()), float(panel.data["x"].max())]
    return [
        {
            "type": "scatter", "x": ends, "y": [value, value], "mode": "lines", "showlegend": False,
            "legendgroup": figure_text(arm) if arm else None,
            "line": {"color": styles[arm].colour if arm else palette.muted, "dash": "2px,3px", "width": 1},
            "hovertemplate": figure_text(f"alarm at {value:.4g}" + (f" for {arm}" if arm else "")) + "<extra></extra>",
        }
        for arm, value in panel.thresholds
    ]  # fmt: skip


def _alarms(panel: Panel, styles: Mapping[str, Style]) -> Trace | None:
    if panel.alarms is None or panel.alarms.empty:
        return None
    rows = panel.alarms
    words = zip(rows["arm"], rows["message"], strict=True)
    return {
        "type": "scatter", "mode": "markers", "showlegend": False,
        "x": rows["x"].to_list(), "y": rows["value"].to_list(),
        "marker": {"symbol": "triangle-up-open", "size": 10, "color": [styles[arm].colour for arm in rows["arm"]]},
        "customdata": [f"<b>{figure_text(arm)}</b><br>{wrapped(message, 60)}" for arm, message in words],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def on_edges(panel: Panel, onsets: pd.DataFrame | None, styles: Mapping[str, Style]) -> Iterator[Trace]:
    """On the upper edge of a panel the onset of each collapse, on the lower edge what is no number."""
    marks = (
        (onsets, 0.97, "triangle-down", 9, "onset of the collapse"),
        (panel.broken, 0.03, "x", 7, "NaN or Inf"),
    )
    for rows, height, symbol, size, words in marks:
        if rows is None or rows.empty:
            continue
        for arm, part in rows.groupby("arm", sort=False):
            yield _edge(part, str(arm), styles[str(arm)], height, symbol, size, words)


def _edge(part: pd.DataFrame, arm: str, style: Style, height: float, symbol: str, size: int, words: str) -> Trace:
    return {
        "type": "scatter", "x": part["x"].to_list(), "y": [height] * len(part), "mode": "markers", "showlegend": False,
        "legendgroup": figure_text(arm), "marker": {"symbol": symbol, "size": size, "color": style.colour},
        "customdata": [figure_text(run) for run in part["run_id"]],
        "hovertemplate": f"{words}<br>%{{customdata}}<br>at %{{x:,.6~g}}<extra></extra>",
    }  # fmt: skip
