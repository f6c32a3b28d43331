"""Heat maps of the turn ledger: turn index against training, an arm a map, all on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.app.figures import common
from workbench.app.figures.common import Trace, heading, note
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import Palette, Style, faded, scale

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import plotly.graph_objects as go

    from workbench.app.curve_data import Window

    Columns = Mapping[str, np.ndarray]

CELL, GAP, BOTTOM, HEAD = 21, 50, 48, 82  # pixels
ACROSS = 3
_NUMBERS = ("bucket", "turn_index", "mean", "low", "high", "non_finite", "measured", "turns")  # columns of the cells
_WEBGL = 3_000  # marks that meet the pointer, above which the graphics processor holds them

_SPREAD = 8  # the colour scale ends at so many times the median: what dies must not bleach what lives
_FLOOR = -20.0  # log of the smallest ratio that is told apart: trainers clamp there
_LARGEST = 1e300  # beyond it the width of a scale is no longer a number
_FACTORS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 100, 1e3, 1e4, 1e6, 1e9)


@dataclass(frozen=True)
class ColourScale:
    """`kind`: ratio (log scale, centred at 1), signed (centred at 0) or size (from 0); `limit` is where it ends.

    The limit of a ratio is a factor (2 means from 1/2 to 2). `below` and `above` say that values lie outside.
    """

    kind: str
    limit: float
    below: bool = False
    above: bool = False

    @property
    def ends(self) -> tuple[float, float]:
        """Lowest and highest place on the scale."""
        top = math.log(self.limit) if self.kind == "ratio" else self.limit
        return (0.0 if self.kind == "size" else -top), top

    def place(self, values: pd.Series) -> pd.Series:
        """Return where values stand on the scale: their logarithm for ratios, else themselves."""
        return _log(values) if self.kind == "ratio" else values

    def colours(self, palette: Palette) -> tuple[str, ...]:
        """Return the colours from the lower end to the upper one."""
        return palette.sequential if self.kind == "size" else palette.diverging

    def ticks(self) -> tuple[list[float], list[str]]:
        """Return places and words of the colour bar; an end beyond which values lie says so."""
        low, high = self.ends
        places = [low + (high - low) * i / 4 for i in range(5)]
        values = [math.exp(place) if self.kind == "ratio" else place for place in places]
        if self.kind == "ratio" and self.limit < 1.2:  # two digits would not tell these from 1
            words = [f"{round(value, 3):g}" for value in values]
        else:
            words = [f"{value:.2g}" if abs(value) < 10 else f"{value:.3g}" for value in values]
        return places, ["≤ " * self.below + words[0], *words[1:-1], "≥ " * self.above + words[-1]]


def colour_scale(unit: str, values: pd.Series) -> ColourScale:
    """Choose the scale for `values`: a ratio around 1; otherwise around 0 where any is negative, else from 0."""
    known = values[values.map(math.isfinite)] if len(values) else values
    if unit == "ratio":
        factor = math.exp(_limit(_log(known).abs()))
        limit = next((f for f in _FACTORS if f >= factor * (1 - 1e-9)), _FACTORS[-1])
        return ColourScale("ratio", limit, bool((known < 1 / limit).any()), bool((known > limit).any()))
    limit = _limit(known.abs())
    limit = common.round_up(limit) if limit >= 1 / _LARGEST else 1.0
    if unit == "fraction":
        limit = min(limit, 1.0)
    kind = "signed" if (known < 0).any() else "size"
    return ColourScale(kind, limit, kind == "signed" and bool((known < -limit).any()), bool((known > limit).any()))


def _log(values: pd.Series) -> pd.Series:
    import numpy as np

    return np.log(values.clip(lower=math.exp(_FLOOR)))


def _limit(sizes: pd.Series) -> float:
    if sizes.empty:
        return 1.0
    top, middle = float(sizes.max()), float(sizes.median())
    return min(top, _SPREAD * middle, _LARGEST) if middle > 0 else min(top, _LARGEST)


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
    maps: Sequence[Heat], measure: Measure, colours: ColourScale, styles: Mapping[str, Style], palette: Palette,
    window: Window, x_title: str, *, chosen: tuple[int, int, int] | None = None,
) -> go.Figure:  # fmt: skip
    """Draw a map an arm; `chosen` = (place in `maps`, bucket, turn index) has a frame. Each cell carries the three."""
    across = 2 if len(maps) == 4 else min(ACROSS, len(maps))
    rows = math.ceil(len(maps) / across)
    turns = int(max((part.cells["turn_index"].max() for part in maps if len(part.cells)), default=1))
    text = wrapped(measure.definition, 130)
    head = HEAD + 15 * text.count("<br>")
    inner = rows * max(CELL * turns, 4 * CELL) + (rows - 1) * GAP
    places, words = colours.ticks()
    unit = f"{measure.unit}, log scale" if colours.kind == "ratio" else measure.unit
    layout: dict[str, Any] = {
        "coloraxis": common.colour_axis(
            unit, inner, palette, cmin=colours.ends[0], cmax=colours.ends[1],
            colorscale=scale(colours.colours(palette)), bar={"tickvals": places, "ticktext": words},
        )
    }  # fmt: skip
    annotations = [heading(measure.name, text, palette, yshift=34)]
    traces: list[Trace] = []
    for pane, part in zip(common.panes(len(maps), across, 0.02, GAP / inner), maps, strict=True):
        x_axis = common.steps_axis(
            x_title if pane.is_last else "", range=[window.first - 0.5, window.last + 0.5], showgrid=False, nticks=8,
            showticklabels=pane.is_last, matches="x" if pane.number else None,
            dtick=1 if window.last - window.first < 8 else None,
        )  # fmt: skip
        y_axis = common.axis(
            "" if pane.column else "turn index", range=[turns + 0.5, 0.5], tickmode="array", showgrid=False,
            tickvals=list(range(1, turns + 1)), showticklabels=pane.column == 0, matches="y" if pane.number else None,
        )  # fmt: skip
        layout |= pane.placed(x_axis, y_axis)
        annotations.append(common.arm_label(part.arm, styles[part.arm].colour, pane))
        if part.cells.empty:
            middle = sum(pane.x) / 2, sum(pane.y) / 2
            annotations.append(note("not measured in these runs", *middle, bgcolor=faded(palette.muted, 0.06)))
            continue
        traces += [trace | pane.axes for trace in _map(part, pane.number, measure, colours, palette, window, turns)]
        if chosen is not None and chosen[0] == pane.number:
            left, turn = window.first + chosen[1] * window.width - 0.5, chosen[2]
            right = left + window.width
            traces.append(pane.axes | common.scatter(
                x=[left, right, right, left, left], y=[turn - 0.5, turn - 0.5, turn + 0.5, turn + 0.5, turn - 0.5],
                mode="lines", line={"color": palette.text, "width": 2}, hoverinfo="skip", cliponaxis=False,
            ))  # fmt: skip
    return common.figure(
        traces, palette, height=head + inner + BOTTOM, top=head, bottom=BOTTOM, annotations=annotations,
        hoverdistance=60, **layout,
    )  # fmt: skip


def _map(
    part: Heat, number: int, measure: Measure, colours: ColourScale, palette: Palette, window: Window, turns: int
) -> Iterator[Trace]:
    """Yield the traces of map `number`: colours, and marks for what has none."""
    import numpy as np

    cells = {name: part.cells[name].to_numpy() for name in _NUMBERS}
    bucket, turn = cells["bucket"], cells["turn_index"]
    first = bucket.min()
    middle = window.first + bucket * window.width + (window.width - 1) / 2
    shape = turns, bucket.max() - first + 1
    at = turn - 1, bucket - first
    z = np.full(shape, np.nan)  # a cell without a number stays the ground of the page
    z[at] = colours.place(part.cells["value"]).to_numpy()
    start = float(window.first + first * window.width + (window.width - 1) / 2)
    yield {
        "type": "heatmap", "z": z, "x0": start, "dx": window.width, "y0": 1, "dy": 1, "coloraxis": "coloraxis",
        "hoverinfo": "skip", "hoverongaps": False, "ygap": 1, "xgap": 1 if shape[1] <= 60 else 0,
    }  # fmt: skip
    present = np.zeros(shape, dtype=bool)
    present[at] = True
    absent = np.nonzero(~present & present.any(axis=0))
    broken = cells["non_finite"] > 0
    onsets = list(part.onsets)
    red = palette.outcomes["collapsed"]
    # A dash where no trajectory had such a turn (an empty cell is not a neutral one), a cross where a value is NaN or
    # Inf, a triangle on the upper edge where a run collapsed.
    for x, y, marker, hover in (
        (start + absent[1] * window.width, absent[0] + 1,
         {"symbol": "line-ew", "size": 4, "line": {"width": 1, "color": faded(palette.muted, 0.55)}}, ""),
        (middle[broken], turn[broken], {"symbol": "x-thin", "size": 8, "line": {"width": 1.6, "color": red}}, ""),
        (onsets, [0.5] * len(onsets), {"symbol": "triangle-down", "size": 10, "color": red, "standoff": 0},
         "onset of the collapse at %{x:,}<extra></extra>"),
    ):  # fmt: skip
        if len(x):
            hovered = {"hovertemplate": hover} if hover else {"hoverinfo": "skip"}
            yield common.scatter(x=x, y=y, mode="markers", marker=marker, cliponaxis=False, **hovered)
    if (cells["measured"] == 0).any():
        yield _hatched(part.cells, palette, window)
    yield from _targets(part.arm, number, cells, middle, measure, window)


def _hatched(cells: pd.DataFrame, palette: Palette, window: Window) -> Trace:
    """Return the hatching of turns in which nothing was measured; neighbours share a rectangle."""
    import numpy as np

    empty = cells[cells["measured"] == 0].sort_values(["turn_index", "bucket"])
    begins = (empty["bucket"].diff() != 1) | (empty["turn_index"].diff() != 0)
    spans = empty.groupby(begins.cumsum()).agg(
        first=("bucket", "min"), last=("bucket", "max"), turn=("turn_index", "first")
    )
    left = window.first + spans["first"] * window.width - 0.5
    right = window.first + (spans["last"] + 1) * window.width - 0.5
    low, high, gap = spans["turn"] - 0.5, spans["turn"] + 0.5, np.full(len(spans), np.nan)
    return common.scatter(
        x=np.column_stack([left, right, right, left, left, gap]).ravel(),
        y=np.column_stack([low, low, high, high, low, gap]).ravel(), mode="lines", line={"width": 0}, fill="toself",
        hoverinfo="skip", fillpattern={"shape": "/", "size": 5, "solidity": 0.2, "fgcolor": palette.muted,
                                       "bgcolor": "rgba(0,0,0,0)"},
    )  # fmt: skip


def _targets(
    arm: str, number: int, cells: Columns, middle: np.ndarray, measure: Measure, window: Window
) -> Iterator[Trace]:
    """Yield what the pointer meets: an unseen mark in each cell, with its map, bucket, turn index and numbers.

    The page writes the words of a usual cell: to write those of 5,000 here would take as long as the query.
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
    unit = "" if measure.unit == "ratio" else f" {figure_text(measure.unit)}"
    head, name = f"<b>{figure_text(arm)}</b>, turn", figure_text(measure.name)
    steps = "steps %{customdata[3]:,} to %{customdata[4]:,}" if window.width > 1 else "step %{customdata[3]:,}"
    words = (
        f"{head} %{{customdata[2]}}, {steps}<br>{name} %{{customdata[5]:.4~g}}{unit}"
        "<br>lowest %{customdata[6]:.4~g}, highest %{customdata[7]:.4~g}<br>%{customdata[8]:,} turns<extra></extra>"
    )
    for which in (usual, ~usual):
        if not which.any():
            continue
        if which is usual:
            told: dict[str, Any] = {"hovertemplate": words}
        else:
            rows = zip(carried[which].tolist(), cells["non_finite"][which], cells["measured"][which], strict=True)
            told = {"text": [_about(head, name, unit, *row) for row in rows], "hovertemplate": "%{text}<extra></extra>"}
        yield {
            "type": "scattergl" if len(first) > _WEBGL else "scatter", "mode": "markers", "x": middle[which],
            "y": cells["turn_index"][which], "customdata": carried[which], **told,
            "marker": {"symbol": "square", "size": 12, "opacity": 0},
        }  # fmt: skip


def _about(head: str, name: str, unit: str, carried: Sequence[float], broken: int, measured: int) -> str:
    """Return the words of a cell that is not as the others."""
    turn, first, last = map(int, carried[2:5])
    mean, low, high, turns = carried[5:]
    lines = [f"{head} {turn}, step {first:,}" if first == last else f"{head} {turn}, steps {first:,} to {last:,}"]
    if measured == 0:
        lines.append("not measured")
    elif not math.isnan(mean):
        lines.append(f"{name} {mean:.4g}{unit}")
        lines += [f"lowest {low:.4g}, highest {high:.4g}"] if low != high else []
    lines += [f"{int(broken)} of {int(measured)} values NaN or Inf"] if broken else []
    lines += [] if math.isnan(turns) else [f"{int(turns):,} turns"]
    return "<br>".join(lines)
