"""Small multiples of diagnostics over training: one panel a diagnostic, a shared x-axis, bands or single seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workbench.view.figures.lines import Panel, in_legend, of_panel, on_edges
from workbench.view.safe import figure_text, wrapped
from workbench.view.series import is_wide
from workbench.view.theme import Palette, Style, template

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
    from plotly.subplots import make_subplots

    across = columns or (1 if len(panels) <= 3 else 2)
    rows = math.ceil(len(panels) / across)
    words = [wrapped(panel.definition, 118 // across) for panel in panels]
    gap = 44 + 15 * max((text.count("<br>") + 1 for text in words), default=1)
    above = 16 + LEGEND_ROW * _legend_rows(list(styles)) if legend else 0
    inner = rows * PANEL + (rows - 1) * gap
    figure = make_subplots(
        rows, across, vertical_spacing=gap / inner if rows > 1 else 0, horizontal_spacing=0.075,
        specs=[[{"secondary_y": True}] * across for _ in range(rows)],
    )  # fmt: skip
    _widen(figure)
    traces = [in_legend(arm, style) for arm, style in styles.items()]
    for number, (panel, text) in enumerate(zip(panels, words, strict=True)):
        row, column = number // across + 1, number % across + 1
        inside, edges = _place(figure, row, column), _place(figure, row, column, second=True)
        traces += [trace | inside for trace in of_panel(panel, styles, palette)]
        traces += [trace | edges for trace in on_edges(panel, onsets, styles)]
        _axes(figure, panel, scale, row, column, last=number + across >= len(panels), x_title=x_title)
        _title(figure, panel, text, palette, row, column)
    figure.add_traces(traces)
    figure.update_layout(
        template=template(palette), height=above + gap + inner + BOTTOM, showlegend=legend,
        margin={"t": above + gap - 8, "b": BOTTOM, "l": 8, "r": 12},
        legend={"yref": "container", "y": 1, "yanchor": "top", "groupclick": "togglegroup"},
    )  # fmt: skip
    figure.update_xaxes(matches="x", showspikes=True, spikesnap="cursor")
    return figure


def _widen(figure: go.Figure) -> None:
    """Let the panels fill the width: room is left for titles of second y-axes, which these have not."""
    end = max(axis.domain[1] for axis in figure.select_xaxes())
    figure.for_each_xaxis(lambda axis: axis.update(domain=[side / end for side in axis.domain]))


def _legend_rows(arms: Sequence[str]) -> int:
    """Rows of the legend on a narrow screen: an entry takes its sample, its text and a gap."""
    rows, used = 1, 0.0
    for arm in arms:
        entry = 68 + 6.6 * len(arm)
        if used and used + entry > 760:
            rows, used = rows + 1, 0.0
        used += entry
    return rows


def _place(figure: go.Figure, row: int, column: int, second: bool = False) -> dict[str, str]:
    """The axes of a panel, as a trace names them."""
    axes = figure.get_subplot(row, column, secondary_y=second)
    return {name: axis.plotly_name.replace("axis", "") for name, axis in axes._asdict().items()}


def _axes(figure: go.Figure, panel: Panel, scale: str, row: int, column: int, *, last: bool, x_title: str) -> None:
    import numpy as np

    low, high = ("low", "high") if "high" in panel.data else ("mean", "mean")
    known = panel.data[[low, high]].to_numpy(dtype=float).ravel() if len(panel.data) else np.empty(0)
    known = known[~np.isnan(known)]
    as_log = scale == "log" or (scale == "auto" and is_wide(known))
    unit = panel.unit or "no unit"
    figure.update_yaxes(title_text=figure_text(unit), row=row, col=column, secondary_y=False)
    if as_log:
        decades = math.log10(known.max() / known.min()) if len(known) and known.min() > 0 else 1
        figure.update_yaxes(
            type="log", title_text=figure_text(f"{unit}, log scale"), exponentformat="power",
            dtick=max(1, math.ceil(decades / 5)) if decades > 1.5 else None, row=row, col=column, secondary_y=False,
        )  # fmt: skip
    figure.update_yaxes(range=[0, 1], visible=False, fixedrange=True, row=row, col=column, secondary_y=True)
    figure.update_xaxes(
        title_text=x_title if last else None, showticklabels=last, row=row, col=column, separatethousands=True
    )
    if panel.data.empty:
        axis = next(figure.select_yaxes(row=row, col=column, secondary_y=False))
        axis.update(showticklabels=False, showgrid=False)


def _title(figure: go.Figure, panel: Panel, words: str, palette: Palette, row: int, column: int) -> None:
    """Name and definition above the panel, and a word in it where nothing was measured."""
    x_axis = next(figure.select_xaxes(row=row, col=column))
    y_axis = next(figure.select_yaxes(row=row, col=column, secondary_y=False))
    figure.add_annotation(
        text=f"<b>{figure_text(panel.name)}</b><br><span style='font-size:12px;color:{palette.muted}'>{words}</span>",
        x=x_axis.domain[0], y=y_axis.domain[1], xref="paper", yref="paper", xanchor="left", yanchor="bottom",
        yshift=8, align="left", showarrow=False, font={"size": 14},
    )  # fmt: skip
    if panel.data.empty:
        figure.add_annotation(
            text="not measured in these runs", x=sum(x_axis.domain) / 2, y=sum(y_axis.domain) / 2, xref="paper",
            yref="paper", showarrow=False, font={"color": palette.muted},
        )  # fmt: skip
