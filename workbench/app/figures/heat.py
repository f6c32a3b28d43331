"""Heat maps of the turn ledger: turn index against training, an arm a map, all on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.app.figures.panes import Pane, Trace, heading, note, panes
from workbench.app.series import Window
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import Palette, Shading, Style, faded, scale, template

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import plotly.graph_objects as go

    Cells = Mapping[str, np.ndarray]


CELL, GAP, BOTTOM, HEAD = 21, 50, 48, 58  # pixels
ACROSS = 3


def heat(
    maps: Sequence[Heat], measure: Measure, shading: Shading, styles: Mapping[str, Style], palette: Palette,
    window: Window, x_title: str, *, chosen: tuple[int, int, int] | None = None,
) -> go.Figure:  # fmt: skip
    """The figure; `chosen` = (place in `maps`, bucket, turn index) has a frame. A point per cell carries the same."""
    from workbench.app.figures.drawn import Drawn  # plotly takes a while to load

    across = 2 if len(maps) == 4 else min(ACROSS, len(maps))
    rows = math.ceil(len(maps) / across)
    turns = int(max((part.cells["turn_index"].max() for part in maps if len(part.cells)), default=1))
    tall = max(CELL * turns, 4 * CELL)
    text = wrapped(f"{measure.definition}", 130)
    head = HEAD + 15 * text.count("<br>")
    inner = rows * tall + (rows - 1) * GAP
    layout: dict[str, Any] = {
        "template": template(palette), "height": head + inner + 24 + BOTTOM, "showlegend": False, "hoverdistance": 60,
        "margin": {"t": head + 24, "b": BOTTOM, "l": 8, "r": 8}, "coloraxis": _scale(shading, measure, palette, inner),
        "annotations": [heading(figure_text(measure.name), text, palette, yshift=34)],
    }  # fmt: skip
    traces: list[Trace] = []
    for pane, part in zip(panes(len(maps), across, 0.02, GAP / inner), maps, strict=True):
        mine = (chosen[1], chosen[2]) if chosen is not None and chosen[0] == pane.number else None
        found = tiles(part, pane.number, measure, shading, palette, window, turns, mine)
        traces += [trace | pane.axes for trace in found]
        layout |= pane.placed(_x_axis(pane, window, x_title), _y_axis(pane, turns))
        layout["annotations"] += _head(part, pane, styles[part.arm])
    return Drawn(traces, layout)


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


_NUMBERS = ("bucket", "turn_index", "mean", "low", "high", "non_finite", "measured", "turns")  # columns of the cells
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


def tiles(
    part: Heat, number: int, measure: Measure, shading: Shading, palette: Palette, window: Window, turns: int,
    chosen: tuple[int, int] | None,
) -> list[Trace]:  # fmt: skip
    """The traces of map `number` with `turns` rows; `chosen` = (bucket, turn index) has a frame."""
    if part.cells.empty:
        return []
    cells = {name: part.cells[name].to_numpy() for name in _NUMBERS}
    cells["x"] = _middle(cells["bucket"], window)
    placed = shading.place(part.cells["value"]).to_numpy()
    found = [_map(cells, placed, window, turns), _absent(cells, palette, window, turns)]
    found += [_unmeasured(cells, palette, window), _broken(cells, palette), _onsets(part, palette)]
    found += _targets(part.arm, number, cells, measure, window)
    found.append(_frame(chosen, palette, window) if chosen is not None else None)
    return [trace for trace in found if trace is not None]


def _middle(bucket: np.ndarray, window: Window) -> np.ndarray:
    return window.first + bucket * window.width + (window.width - 1) / 2


def _map(cells: Cells, placed: np.ndarray, window: Window, turns: int) -> Trace:
    """Colours only; a cell without a number stays the ground of the page."""
    import numpy as np

    first, last = cells["bucket"].min(), cells["bucket"].max()
    colours = np.full((turns, last - first + 1), np.nan)
    colours[cells["turn_index"] - 1, cells["bucket"] - first] = placed
    return {
        "type": "heatmap", "z": colours, "x0": float(_middle(first, window)), "dx": window.width, "y0": 1, "dy": 1,
        "coloraxis": "coloraxis", "hoverinfo": "skip", "hoverongaps": False, "ygap": 1,
        "xgap": 1 if last - first < 60 else 0,
    }  # fmt: skip


def _absent(cells: Cells, palette: Palette, window: Window, turns: int) -> Trace | None:
    """A dash where no trajectory had such a turn: an empty cell is not a neutral one."""
    import numpy as np

    first = cells["bucket"].min()
    present = np.zeros((turns, cells["bucket"].max() - first + 1), dtype=bool)
    present[cells["turn_index"] - 1, cells["bucket"] - first] = True
    turn, bucket = np.nonzero(~present & present.any(axis=0))
    if not len(turn):
        return None
    return {
        "type": "scatter", "mode": "markers", "hoverinfo": "skip", "x": _middle(bucket + first, window), "y": turn + 1,
        "marker": {"symbol": "line-ew", "size": 4, "line": {"width": 1, "color": faded(palette.muted, 0.55)}},
    }  # fmt: skip


def _unmeasured(cells: Cells, palette: Palette, window: Window) -> Trace | None:
    """Hatching where there were turns but nothing was measured; neighbours share a rectangle."""
    import pandas as pd

    blank = cells["measured"] == 0
    if not blank.any():
        return None
    names = ["bucket", "turn_index", "x"]
    empty = pd.DataFrame({name: cells[name][blank] for name in names}).sort_values(["turn_index", "bucket"])
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


def _broken(cells: Cells, palette: Palette) -> Trace | None:
    """A cross where a value is NaN or Inf."""
    broken = cells["non_finite"] > 0
    if not broken.any():
        return None
    return {
        "type": "scatter", "mode": "markers", "hoverinfo": "skip",
        "x": cells["x"][broken], "y": cells["turn_index"][broken],
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


def _targets(arm: str, number: int, cells: Cells, measure: Measure, window: Window) -> Iterator[Trace]:
    """What the pointer meets: an unseen mark in each cell, which carries its map, bucket, turn index and numbers.

    The page writes the words of a usual cell: to write those of 5,000 here would take as long as to ask for them.
    """
    import numpy as np

    first = window.first + cells["bucket"] * window.width
    last = np.minimum(first + window.width - 1, window.last)
    usual = np.isfinite(cells["mean"]) & np.isfinite(cells["turns"]) & (cells["non_finite"] == 0)
    usual &= (cells["low"] < cells["high"]) & ((first < last) == (window.width > 1))
    carried = np.column_stack(
        [np.full(len(first), number), cells["bucket"], cells["turn_index"], first, last, cells["mean"], cells["low"],
         cells["high"], cells["turns"]]
    )  # fmt: skip
    look = {
        "type": "scattergl" if len(first) > _WEBGL else "scatter", "mode": "markers",
        "marker": {"symbol": "square", "size": 12, "opacity": 0},
    }  # fmt: skip
    head, name, unit = _words(arm, measure)
    steps = "steps %{customdata[3]:,} to %{customdata[4]:,}" if window.width > 1 else "step %{customdata[3]:,}"
    for which in (usual, ~usual):
        if not which.any():
            continue
        place = {"x": cells["x"][which], "y": cells["turn_index"][which], "customdata": carried[which]}
        if which is usual:
            words = (
                f"{head} %{{customdata[2]}}, {steps}<br>{name} %{{customdata[5]:.4~g}}{unit}"
                "<br>lowest %{customdata[6]:.4~g}, highest %{customdata[7]:.4~g}<br>%{customdata[8]:,} turns"
            )
            yield look | place | {"hovertemplate": f"{words}<extra></extra>"}
        else:
            rows = zip(carried[which].tolist(), cells["non_finite"][which], cells["measured"][which], strict=True)
            told = [_about(head, name, unit, *row) for row in rows]
            yield look | place | {"text": told, "hovertemplate": "%{text}<extra></extra>"}


def _words(arm: str, measure: Measure) -> tuple[str, str, str]:
    unit = "" if measure.unit == "ratio" else f" {figure_text(measure.unit)}"
    return f"<b>{figure_text(arm)}</b>, turn", figure_text(measure.name), unit


def _about(head: str, name: str, unit: str, carried: Sequence[float], broken: int, measured: int) -> str:
    """A cell that is not as the others in words."""
    turn, first, last = map(int, carried[2:5])
    mean, low, high, turns = carried[5:]
    text = f"{head} {turn}, step {first:,}" if first == last else f"{head} {turn}, steps {first:,} to {last:,}"
    if measured == 0:
        text += "<br>not measured"
    elif not math.isnan(mean):
        text += f"<br>{name} {mean:.4g}{unit}"
        text += f"<br>lowest {low:.4g}, highest {high:.4g}" if low != high else ""
    text += f"<br>{int(broken)} of {int(measured)} values NaN or Inf" if broken else ""
    return text if math.isnan(turns) else f"{text}<br>{int(turns):,} turns"


def _frame(chosen: tuple[int, int], palette: Palette, window: Window) -> Trace:
    bucket, turn = chosen
    left = window.first + bucket * window.width - 0.5
    right = left + window.width
    return {
        "type": "scatter", "x": [left, right, right, left, left],
        "y": [turn - 0.5, turn - 0.5, turn + 0.5, turn + 0.5, turn - 0.5],
        "mode": "lines", "line": {"color": palette.text, "width": 2}, "hoverinfo": "skip", "cliponaxis": False,
    }  # fmt: skip
