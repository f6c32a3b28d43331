"""Small multiples of diagnostics over training: one panel a diagnostic, a shared x-axis, bands or single seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.app.figures.lines import Panel, in_legend, of_panel, on_edges
from workbench.app.figures.panes import Pane, note, panes
from workbench.app.safe import figure_text, wrapped
from workbench.app.series import is_wide
from workbench.app.theme import Palette, Style, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

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
    yield note(
        f"<b>{figure_text(panel.name)}</b><br>"
        f"<span style='font-size:12px;color:{palette.muted}'>{definition}</span>",
        pane.x[0], pane.y[1], xanchor="left", yanchor="bottom", yshift=8, align="left", font={"size": 14},
    )  # fmt: skip
    if panel.data.empty:
        middle = sum(pane.x) / 2, sum(pane.y) / 2
        yield note("not measured in these runs", *middle, font={"color": palette.muted})
