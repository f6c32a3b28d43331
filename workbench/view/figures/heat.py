"""Heat maps of the turn ledger: turn index against training, an arm a map, all on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.view.figures.panes import Pane, Trace, note, panes
from workbench.view.safe import figure_text, wrapped
from workbench.view.series import Window
from workbench.view.shading import Shading
from workbench.view.theme import Palette, Style, faded, scale, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

CELL, GAP, BOTTOM, HEAD = 21, 50, 48, 58  # pixels
ACROSS = 3
_WEBGL = 3_000  # marks that meet the pointer, above which the graphics processor holds them


@dataclass(frozen=True)
class Heat:
    """The cells of one arm: bucket, turn_index, value (what is coloured), mean, low, high, non_finite, measured, turns.

    `onsets` has x, the steps (on the axis of the map) at which runs of the arm collapsed.
    """

    arm: str
    cells: pd.DataFrame
    onsets: Sequence[float] = ()


@dataclass(frozen=True)
class Measure:
    """What is drawn: name, unit and definition from the dictionary."""

    name: str
    unit: str
    definition: str


def heat(
    maps: Sequence[Heat], measure: Measure, shading: Shading, styles: Mapping[str, Style], palette: Palette,
    window: Window, x_title: str, *, chosen: tuple[int, int, int] | None = None,
) -> go.Figure:  # fmt: skip
    """The figure; `chosen` = (place in `maps`, bucket, turn index) has a frame. A point per cell carries the same."""
    import plotly.graph_objects as go

    across = 2 if len(maps) == 4 else min(ACROSS, len(maps))
    rows = math.ceil(len(maps) / across)
    turns = int(max((part.cells["turn_index"].max() for part in maps if len(part.cells)), default=1))
    tall = max(CELL * turns, 4 * CELL)
    text = wrapped(f"{measure.definition}", 130)
    head = HEAD + 15 * text.count("<br>")
    inner = rows * tall + (rows - 1) * GAP
    title = f"<b>{figure_text(measure.name)}</b><br><span style='font-size:12px;color:{palette.muted}'>{text}</span>"
    layout: dict[str, Any] = {
        "template": template(palette), "height": head + inner + 24 + BOTTOM, "showlegend": False, "hoverdistance": 60,
        "margin": {"t": head + 24, "b": BOTTOM, "l": 8, "r": 8}, "coloraxis": _scale(shading, measure, palette, inner),
        "annotations": [note(title, 0, 1, xanchor="left", yanchor="bottom", yshift=34, align="left",
                             font={"size": 14})],
    }  # fmt: skip
    traces: list[Trace] = []
    for pane, part in zip(panes(len(maps), across, 0.02, GAP / inner), maps, strict=True):
        mine = (chosen[1], chosen[2]) if chosen is not None and chosen[0] == pane.number else None
        found = _traces(part, pane.number, measure, shading, palette, window, turns, mine)
        traces += [trace | pane.axes for trace in found]
        layout |= pane.placed(_x_axis(pane, window, x_title), _y_axis(pane, turns))
        layout["annotations"] += _head(part, pane, styles[part.arm])
    # Checking it takes plotly as long as all the rest; the tests have it checked.
    return go.Figure(traces, layout, _validate=False)


def _scale(shading: Shading, measure: Measure, palette: Palette, inner: float) -> dict[str, Any]:
    """The colours of all maps, and the bar beside them."""
    ticks, words = shading.ticks()
    low, high = shading.ends
    unit = measure.unit or "no unit"
    return {
        "cmin": low, "cmax": high, "colorscale": scale(shading.colours(palette)),
        "colorbar": {
            "tickvals": ticks, "ticktext": [figure_text(word) for word in words], "thickness": 12,
            "lenmode": "pixels", "len": max(min(inner, 260), 130), "y": 1, "yanchor": "top", "x": 1.005,
            "title": {"text": figure_text(f"{unit}, log scale" if shading.is_log else unit), "side": "right",
                      "font": {"color": palette.muted, "size": 13}},
        },
    }  # fmt: skip


def _x_axis(pane: Pane, window: Window, title: str) -> dict[str, Any]:
    return {
        "range": [window.first - 0.5, window.last + 0.5], "showgrid": False, "separatethousands": True, "nticks": 8,
        "fixedrange": True, "showticklabels": pane.is_last, "title": {"text": title if pane.is_last else ""},
        **({"matches": "x"} if pane.number else {}), **({"dtick": 1} if window.last - window.first < 8 else {}),
    }  # fmt: skip


def _y_axis(pane: Pane, turns: int) -> dict[str, Any]:
    return {
        "range": [turns + 0.5, 0.5], "tickmode": "array", "tickvals": list(range(1, turns + 1)), "showgrid": False,
        "fixedrange": True, "showticklabels": pane.column == 0, "title": {"text": "" if pane.column else "turn index"},
        **({"matches": "y"} if pane.number else {}),
    }  # fmt: skip


def _traces(
    part: Heat, number: int, measure: Measure, shading: Shading, palette: Palette, window: Window, turns: int,
    chosen: tuple[int, int] | None,
) -> list[Trace]:  # fmt: skip
    if part.cells.empty:
        return []
    cells = part.cells.assign(x=_middle(part.cells["bucket"], window))
    found = [_map(cells, shading, window, turns), _absent(cells, palette, window, turns)]
    found += [_unmeasured(cells, palette, window), _broken(cells, palette)]
    found += [_onsets(part, palette), _targets(part.arm, number, cells, measure, window)]
    found.append(_frame(chosen, palette, window) if chosen is not None else None)
    return [trace for trace in found if trace is not None]


def _middle(bucket: pd.Series, window: Window) -> pd.Series:
    return window.first + bucket * window.width + (window.width - 1) / 2


def _map(cells: pd.DataFrame, shading: Shading, window: Window, turns: int) -> Trace:
    """Colours only; a cell without a number stays the ground of the page."""
    buckets = range(int(cells["bucket"].min()), int(cells["bucket"].max()) + 1)
    placed = cells.assign(z=shading.place(cells["value"])).pivot(index="turn_index", columns="bucket", values="z")
    placed = placed.reindex(index=range(1, turns + 1), columns=buckets)
    x0 = window.first + buckets[0] * window.width + (window.width - 1) / 2
    return {
        "type": "heatmap", "z": placed.to_numpy(), "x0": x0, "dx": window.width, "y0": 1, "dy": 1,
        "coloraxis": "coloraxis", "hoverinfo": "skip", "hoverongaps": False, "ygap": 1,
        "xgap": 1 if len(buckets) <= 60 else 0,
    }  # fmt: skip


def _absent(cells: pd.DataFrame, palette: Palette, window: Window, turns: int) -> Trace | None:
    """A dash where no trajectory had such a turn: an empty cell is not a neutral one."""
    import pandas as pd

    buckets = cells["bucket"].unique()
    every = pd.MultiIndex.from_product([buckets, range(1, turns + 1)], names=["bucket", "turn_index"])
    absent = every.difference(pd.MultiIndex.from_frame(cells[["bucket", "turn_index"]])).to_frame(index=False)
    if absent.empty:
        return None
    return {
        "type": "scatter", "mode": "markers", "hoverinfo": "skip",
        "x": _middle(absent["bucket"], window).to_numpy(), "y": absent["turn_index"].to_numpy(),
        "marker": {"symbol": "line-ew", "size": 4, "line": {"width": 1, "color": faded(palette.muted, 0.55)}},
    }  # fmt: skip


def _unmeasured(cells: pd.DataFrame, palette: Palette, window: Window) -> Trace | None:
    """Hatching where there were turns but nothing was measured; neighbours share a rectangle."""
    empty = cells[cells["measured"] == 0].sort_values(["turn_index", "bucket"])
    if empty.empty:
        return None
    begins = (empty["bucket"].diff() != 1) | (empty["turn_index"].diff() != 0)
    spans = empty.groupby(begins.cumsum()).agg(first=("x", "min"), last=("x", "max"), turn=("turn_index", "first"))
    x: list[float | None] = []
    y: list[float | None] = []
    half = window.width / 2
    for first, last, turn in spans.itertuples(index=False, name=None):
        x += [first - half, last + half, last + half, first - half, first - half, None]
        y += [turn - 0.5, turn - 0.5, turn + 0.5, turn + 0.5, turn - 0.5, None]
    return {
        "type": "scatter", "x": x, "y": y, "mode": "lines", "line": {"width": 0}, "fill": "toself", "hoverinfo": "skip",
        "fillpattern": {"shape": "/", "size": 5, "solidity": 0.2, "fgcolor": palette.muted, "bgcolor": "rgba(0,0,0,0)"},
    }  # fmt: skip


def _broken(cells: pd.DataFrame, palette: Palette) -> Trace | None:
    """A cross where a value is NaN or Inf."""

    broken = cells[cells["non_finite"] > 0]
    if broken.empty:
        return None
    return {
        "type": "scatter", "mode": "markers", "hoverinfo": "skip",
        "x": broken["x"].to_numpy(), "y": broken["turn_index"].to_numpy(),
        "marker": {"symbol": "x-thin", "size": 8, "line": {"width": 1.6, "color": palette.outcomes["collapsed"]}},
    }  # fmt: skip


def _onsets(part: Heat, palette: Palette) -> Trace | None:
    if not len(part.onsets):
        return None
    return {
        "type": "scatter", "x": list(part.onsets), "y": [0.5] * len(part.onsets), "mode": "markers",
        "cliponaxis": False,
        "marker": {"symbol": "triangle-down", "size": 10, "color": palette.outcomes["collapsed"], "standoff": 0},
        "hovertemplate": "onset of the collapse at %{x:,}<extra></extra>",
    }  # fmt: skip


def _targets(arm: str, number: int, cells: pd.DataFrame, measure: Measure, window: Window) -> Trace:
    """What the pointer meets: an unseen mark in each cell, with its numbers."""
    return {
        "type": "scattergl" if len(cells) > _WEBGL else "scatter", "mode": "markers",
        "x": cells["x"].to_numpy(), "y": cells["turn_index"].to_numpy(),
        "marker": {"symbol": "square", "size": 12, "opacity": 0},
        "customdata": cells.assign(number=number)[["number", "bucket", "turn_index"]].astype(int).to_numpy(),
        "text": list(_about(arm, cells, measure, window)), "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _about(arm: str, cells: pd.DataFrame, measure: Measure, window: Window) -> Iterator[str]:
    """The numbers of each cell in words."""
    head = f"<b>{figure_text(arm)}</b>, turn"
    name, unit = figure_text(measure.name), "" if measure.unit == "ratio" else f" {figure_text(measure.unit)}"
    columns = cells[["bucket", "turn_index", "mean", "low", "high", "non_finite", "measured", "turns"]]
    for bucket, turn, mean, low, high, broken, measured, turns in columns.itertuples(index=False, name=None):
        first = window.first + int(bucket) * window.width
        last = min(first + window.width - 1, window.last)
        text = f"{head} {turn}, step {first:,}" if first == last else f"{head} {turn}, steps {first:,} to {last:,}"
        if measured == 0:
            text += "<br>not measured"
        elif not math.isnan(mean):
            text += f"<br>{name} {mean:.4g}{unit}"
            text += f"<br>lowest {low:.4g}, highest {high:.4g}" if low != high else ""
        text += f"<br>{int(broken)} of {int(measured)} values NaN or Inf" if broken else ""
        yield text if math.isnan(turns) else f"{text}<br>{int(turns):,} turns"


def _frame(chosen: tuple[int, int], palette: Palette, window: Window) -> Trace:
    bucket, turn = chosen
    left = window.first + bucket * window.width - 0.5
    right = left + window.width
    return {
        "type": "scatter", "x": [left, right, right, left, left],
        "y": [turn - 0.5, turn - 0.5, turn + 0.5, turn + 0.5, turn - 0.5],
        "mode": "lines", "line": {"color": palette.text, "width": 2}, "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip


def _head(part: Heat, pane: Pane, style: Style) -> Iterator[dict[str, Any]]:
    """Name of the arm above its map, and a word in it where nothing was measured."""
    name = wrapped(part.arm, 56).split("<br>")
    label = name[0] + ("…" if len(name) > 1 else "")
    yield note(
        f"<span style='color:{style.colour}'>■</span> {label}", pane.x[0], pane.y[1], xanchor="left",
        yanchor="bottom", yshift=8, align="left", hovertext=figure_text(part.arm),
    )  # fmt: skip
    if part.cells.empty:
        middle = sum(pane.x) / 2, sum(pane.y) / 2
        yield note("not measured in these runs", *middle, bgcolor=faded(style.colour, 0.06))
