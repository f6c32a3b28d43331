"""Heat maps, an arm a map on one colour scale: of the turn ledger and of stability regions."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import make_colorscale

from sorl.app.data import Window
from sorl.app.figures import common
from sorl.app.figures.common import Trace, heading, note, trace
from sorl.app.text import figure_text, number, wrapped
from sorl.app.theme import Palette, Styles, between, contrast, faded

# pixels
CELL = 21
GAP = 60
BOTTOM = 48
HEAD = 92
ACROSS = 3
FEW = 8  # turns of a cell below which nothing is said of it, and its colour is pale
_WEBGL = 3_000  # marks that meet the pointer, above which the graphics processor holds them

_SPREAD = 8  # the colour scale ends at so many times the median: what dies must not bleach what lives
_FLOOR = -20.0  # log of the smallest ratio that is told apart: trainers clamp there
_LARGEST = 1e300  # beyond it the width of a scale is no longer a number
_FACTORS = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 100, 1e3, 1e4, 1e6, 1e9)


class ColourScale(NamedTuple):
    """`kind`: ratio (around 1, `limit` a factor), signed (around 0) or size (from 0); whether values lie
    beyond.
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
        return np.log(values.clip(lower=math.exp(_FLOOR))) if self.kind == "ratio" else values

    def colours(self, palette: Palette) -> tuple[str, ...]:
        """Return the colours from the lower end to the upper one."""
        return palette.sequential if self.kind == "size" else palette.diverging

    def ticks(self) -> tuple[list[float], list[str]]:
        """Return places and words of the colour bar; an end beyond which values lie says so."""
        places = np.linspace(*self.ends, 5).tolist()
        values = [math.exp(place) if self.kind == "ratio" else place for place in places]
        near = self.kind == "ratio" and self.limit < 1.2  # two digits would not tell these from 1
        words = [f"{round(v, 3):g}" if near else f"{v:.2g}" if abs(v) < 10 else f"{v:.3g}" for v in values]
        return places, ["≤ " * self.below + words[0], *words[1:-1], "≥ " * self.above + words[-1]]


def colour_scale(unit: str, values: pd.Series) -> ColourScale:
    """Choose the scale for `values`: a ratio around 1; otherwise around 0 where any is
    negative, else from 0.
    """
    known = values.astype(float)
    known = known[np.isfinite(known)]
    kind = "ratio" if unit == "ratio" else "signed" if (known < 0).any() else "size"
    sizes = ColourScale(kind, 1.0).place(known).abs()
    limit = 1.0
    if len(sizes):
        top = float(sizes.max())
        middle = float(sizes.median())
        limit = min(top, _LARGEST, _SPREAD * middle if middle > 0 else top)
    if kind == "ratio":
        limit = next((f for f in _FACTORS if f >= math.exp(limit) * (1 - 1e-9)), _FACTORS[-1])
    else:
        limit = common.round_up(limit) if limit >= 1 / _LARGEST else 1.0
        limit = min(limit, 1.0) if unit == "fraction" else limit
    lowest = {"ratio": 1 / limit, "signed": -limit, "size": -math.inf}[kind]
    return ColourScale(kind, limit, bool((known < lowest).any()), bool((known > limit).any()))


class Heat(NamedTuple):
    """The cells of one arm as Turns.cells makes them, and where its runs collapsed (step on the
    axis, seed).
    """

    arm: str
    cells: pd.DataFrame
    onsets: Sequence[tuple[float, Any]] = ()


class Measure(NamedTuple):
    """What is drawn: name, words, unit and definition from the dictionary."""

    name: str
    title: str
    unit: str
    definition: str


def heat(
    maps: Sequence[Heat],
    measure: Measure,
    colours: ColourScale,
    styles: Styles,
    palette: Palette,
    window: Window,
    x_title: str,
    *,
    chosen: tuple[int, int, int] | None = None,
) -> go.Figure:
    """Draw a map an arm; `chosen` = (place in `maps`, bucket, turn index) has a frame. Each cell carries the
    three.
    """
    across = 2 if len(maps) == 4 else min(ACROSS, len(maps))
    rows = math.ceil(len(maps) / across)
    turns = int(max((part.cells["turn_index"].max() for part in maps if len(part.cells)), default=1))
    text = wrapped(f"{measure.name}: {measure.definition}", 130)
    inner = rows * max(CELL * turns, 4 * CELL) + (rows - 1) * GAP
    places, words = colours.ticks()
    values = [v for part in maps for v in part.cells["value"].astype(float) if math.isfinite(v)]
    unit = figure_text(measure.unit) + "<br>log scale" * (colours.kind == "ratio")
    # Next to the end of the bar they would overlap.
    unit += f"<br>highest {number(max(values))}" if colours.above else ""
    words[0] += f"<br>lowest {number(min(values))}" if colours.below else ""
    layout: dict[str, Any] = {
        "coloraxis": common.colour_axis(
            "",
            inner,
            palette,
            colours.colours(palette),
            colours.ends,
            tickvals=places,
            ticktext=words,
            title={"text": unit, "side": "top", "font": {"color": palette.muted, "size": 12}},
        )
    }
    x_axis = common.axis(
        "",
        range=[window.first - 0.5, window.last + 0.5],
        nticks=8,
        ticks="",
        dtick=1 if window.last - window.first < 8 else None,
    )
    y_axis = common.axis("turn index", range=[turns + 0.5, 0.5], tickvals=list(range(1, turns + 1)), ticks="")
    below = note(x_title, 0.5, 0, yanchor="top", yshift=-24, font={"color": palette.muted})
    annotations = [heading(measure.title, text, palette, yshift=44), below]
    traces: list[Trace] = []
    for pane, part in zip(common.panes(len(maps), across, 0.02, GAP / inner), maps, strict=True):
        layout |= pane.shared(x_axis, y_axis)
        annotations.append(common.arm_label(part.arm, styles[part.arm].colour, pane) | {"yshift": 17})
        if part.cells.empty:
            annotations.append(common.nothing(pane, palette))
            continue
        drawn = [*_map(part, colours, palette, window, turns), _targets(part, pane.number, measure, window)]
        if chosen is not None and chosen[0] == pane.number:
            left = window.first + chosen[1] * window.width - 0.5
            turn = chosen[2]
            frame = _rectangles(left, left + window.width, turn)
            drawn.append(trace(**frame, line={"color": palette.text, "width": 2}, cliponaxis=False))
        traces += [one | pane.axes for one in drawn]
    return common.figure(
        traces,
        palette,
        inner=inner,
        top=HEAD + 15 * text.count("<br>"),
        bottom=BOTTOM,
        annotations=annotations,
        hoverdistance=60,
        **layout,
    )


def _rectangles(left: Any, right: Any, turn: Any) -> dict[str, Any]:
    """Return the outlines of spans of cells, with a gap behind each."""
    low = turn - 0.5
    high = turn + 0.5
    gap = np.nan * turn
    x = [left, right, right, left, left, gap]
    y = [low, low, high, high, low, gap]
    return {"x": np.stack(x, axis=-1).ravel(), "y": np.stack(y, axis=-1).ravel(), "mode": "lines"}


def _map(part: Heat, colours: ColourScale, palette: Palette, window: Window, turns: int) -> Iterator[Trace]:
    """Yield the colours of a map, and marks for what has none."""
    cells = part.cells
    bucket = cells["bucket"].to_numpy()
    turn = cells["turn_index"].to_numpy()
    first = bucket.min()
    shape = (turns, bucket.max() - first + 1)
    at = (turn - 1, bucket - first)
    z = np.full(shape, np.nan)  # a cell without a number stays the ground of the page
    z[at] = colours.place(cells["value"]).to_numpy()
    start = float(window.first + first * window.width + (window.width - 1) / 2)
    yield trace(
        type="heatmap",
        z=z,
        x0=start,
        dx=window.width,
        y0=1,
        dy=1,
        coloraxis="coloraxis",
        hoverongaps=False,
        ygap=1,
        xgap=1 if shape[1] <= 60 else 0,
    )
    present = np.zeros(shape, dtype=bool)
    present[at] = True
    absent_turn, absent_bucket = np.nonzero(~present & present.any(axis=0))
    broken = cells["non_finite"].to_numpy() > 0
    red = palette.outcomes["collapsed"]
    # A dash where no trajectory had such a turn (an empty cell is not a neutral one), a cross where a value
    # is NaN or Inf, a triangle with its seed on the upper edge where a run collapsed.
    absent = start + absent_bucket * window.width, absent_turn + 1, "line-ew", 4, faded(palette.muted, 0.55)
    crossed = start + (bucket[broken] - first) * window.width, turn[broken], "x-thin", 8, red
    for place, edge in ((absent, 1), (crossed, 1.6)):
        if len(place[0]):
            yield common.marks(*place, edge=edge, cliponaxis=False)
    if part.onsets:
        x, seeds = map(list, zip(*part.onsets, strict=True))
        yield common.marks(
            x,
            [0.5] * len(x),
            "triangle-down",
            10,
            red,
            "seed %{customdata} fell after %{x:,}",
            mode="markers+text",
            customdata=list(map(figure_text, seeds)),
            text=[f"s{figure_text(seed)}" for seed in seeds],
            textposition="top center",
            textfont={"size": 11, "color": palette.text},
            cliponaxis=False,
        )
    hatched = {"shape": "/", "size": 5, "solidity": 0.2, "fgcolor": palette.muted, "bgcolor": "rgba(0,0,0,0)"}
    for which, fill in (
        (cells["turns"] < FEW, {"fillcolor": faded(palette.background, 0.7)}),
        (cells["measured"] == 0, {"fillpattern": hatched}),
    ):
        spans = cells[which].sort_values(["turn_index", "bucket"])
        if len(spans):  # neighbours share a rectangle
            starts = (spans["bucket"].diff() != 1) | (spans["turn_index"].diff() != 0)
            span = (
                spans.groupby(starts.cumsum())
                .agg({"bucket": ["min", "max"], "turn_index": "first"})
                .to_numpy()
                .T
            )
            left, right = (window.first + ends * window.width - 0.5 for ends in (span[0], span[1] + 1))
            yield trace(**_rectangles(left, right, span[2]), line={"width": 0}, fill="toself", **fill)


def _targets(part: Heat, place: int, measure: Measure, window: Window) -> Trace:
    """Return an unseen mark in each cell for the pointer: it carries map, bucket and turn index, and says the
    rest.
    """
    cells = part.cells
    first = window.first + cells["bucket"] * window.width
    last = (first + window.width - 1).clip(upper=window.last)
    unit = "" if measure.unit == "ratio" else f" {figure_text(measure.unit)}"
    head = f"<b>{figure_text(part.arm)}</b>, turn"
    name = figure_text(measure.title)
    texts = []
    columns = [cells[n] for n in ("turn_index", "mean", "low", "high", "non_finite", "measured", "turns")]
    for begin, end, turn, mean, low, high, broken, measured, turns in zip(first, last, *columns, strict=True):
        steps = f"step {begin:,}" if begin == end else f"steps {begin:,} to {end:,}"
        text = f"{head} {turn}, {steps}<br>"
        text += f"{name} {mean:.4g}{unit}<br>" if mean == mean else "not measured<br>" if not measured else ""
        text += f"lowest {low:.4g}, highest {high:.4g}<br>" if low < high else ""
        text += f"{broken:.0f} of {measured:.0f} values NaN or Inf<br>" if broken else ""
        texts.append(text + (f"{turns:,.0f} turns" if turns == turns else ""))
    return trace(
        "%{text}",
        type="scattergl" if len(first) > _WEBGL else "scatter",
        mode="markers",
        text=texts,
        x=(first + (window.width - 1) / 2).to_numpy(),
        y=cells["turn_index"].to_numpy(),
        marker={"symbol": "square", "size": 12, "opacity": 0},
        customdata=np.column_stack([np.full(len(first), place), cells[["bucket", "turn_index"]]]),
    )


# The stability region over setting and condition.

MEASURES = {"collapsed": "share of runs that collapsed", "final": "mean final success"}
_WORDS = {  # of each: its title, what it means, and what the strongest colour says
    "collapsed": (
        "runs that collapsed",
        "share of the runs at a point that collapsed, also if they came back; in the cell: collapsed / runs",
        "all collapsed",
    ),
    "final": ("final success", "mean success over the last steps of the runs at a point", "all solved"),
}
# pixels
_ROW = 48
_GAP = 62
# of a row: where a cell has its words and where the boundary has its point
_ABOVE = 0.2
_BELOW = -0.24


def region(
    points: pd.DataFrame,
    columns: pd.DataFrame,
    lattice: Sequence[float],
    styles: Styles,
    palette: Palette,
    along: str,
    across: str,
    measure: str = "collapsed",
) -> go.Figure:
    """Draw `points` and `columns` of one slice, as the tables of analysis.region give them; a cell carries
    its arm.
    """
    arms = list(dict.fromkeys(points["series"]))
    conditions = sorted(points["y"].unique())
    ticks = [math.log2(x) for x in lattice]
    half = (ticks[1] - ticks[0]) / 2
    rows = math.ceil(len(arms) / ACROSS)
    inner = rows * _ROW * len(conditions) + (rows - 1) * _GAP
    near = np.log2(
        np.r_[points["x"], columns.get("boundary_low", []), columns.get("boundary_high", [])].astype(float)
    )
    first = max(ticks[0], np.nanmin(near) - 2 * half)
    last = min(ticks[-1], np.nanmax(near) + 2 * half)
    x_axis = common.axis(
        "",
        range=[first - half, last + half],
        tickvals=ticks[::2],
        ticks="",
        ticktext=[f"{x:g}" for x in lattice[::2]],
    )
    y_axis = common.axis(
        across,
        ticks="",
        range=[-0.5, len(conditions) - 0.5],
        tickvals=list(range(len(conditions))),
        ticktext=[f"{y:g}" for y in conditions],
    )
    layout: dict[str, Any] = {}
    strongest = min(
        ("light", "#ffffff"), ("dark", "#000000"), key=lambda end: contrast(end[1], palette.sequential[-1])
    )
    title, meaning, much = _WORDS[measure]
    key = wrapped(
        f"{meaning}; {strongest[0]}: {much}; dot and bar: half of the runs collapse there, 95 % interval; "
        "▷\u00a0◁: beyond what was tried; no number: not tried",
        140,
    )
    below = note(
        figure_text(f"{along} (log scale)"), 0.5, 0, yanchor="top", yshift=-24, font={"color": palette.muted}
    )
    notes = [heading(title, key, palette, yshift=34), below]
    traces: list[Trace] = []
    for pane, arm in zip(
        common.panes(len(arms), min(ACROSS, len(arms)), 0.035, _GAP / inner), arms, strict=True
    ):
        layout |= pane.shared(x_axis, y_axis)
        notes.append(common.arm_label(arm, styles[arm].colour, pane))
        drawn = _cells(points[points["series"] == arm], conditions, ticks, palette, measure)
        drawn += _boundary(columns[columns["series"] == arm].sort_values("y"), conditions, palette)
        traces += [one | pane.axes for one in drawn]
    shades = common.colour_axis(
        "fraction", min(inner, 220), palette, palette.sequential[1:], (0, 1), tickformat=".1f"
    )
    return common.figure(
        traces, palette, inner=inner, top=88, bottom=52, annotations=notes, coloraxis=shades, **layout
    )


def _cells(
    points: pd.DataFrame, conditions: Sequence[float], ticks: Sequence[float], palette: Palette, measure: str
) -> list[Trace]:
    rows = list(range(len(conditions)))
    columns = np.abs(np.subtract.outer(np.log2(points["x"].to_numpy()), ticks)).argmin(axis=1)
    values = points["collapsed"] / points["runs"] if measure == "collapsed" else points["final"]
    # marks: x, y, text and ink of each cell, what it carries
    z = np.full((len(rows), len(ticks)), np.nan)
    marks = []
    for row, column, value in zip(points.to_dict("records"), columns, values, strict=True):
        at = conditions.index(row["y"])
        shown = f"{row['collapsed']:.0f}/{row['runs']:.0f}"
        z[at, column] = value
        ground = between(palette.sequential[1:], min(max(value, 0.0), 1.0) if value == value else 0)
        ink = max((palette.text, palette.background), key=lambda ink: contrast(ink, ground))
        final = "not measured" if math.isnan(row["final"]) else f"{row['final']:.3f}"
        about = f"{row['x']:g} at {row['y']:g}<br>{shown} runs collapsed<br>mean final success {final}"
        number = "" if value != value else f"{value:.2f}".removeprefix("0")
        words = shown if measure == "collapsed" else number
        marks.append((ticks[column], at + _ABOVE, words, ink, [figure_text(row.get("arm", "")), about]))
    x, y, text, inks, carried = map(list, zip(*marks, strict=True)) if marks else ([], [], [], [], [])
    grid: Trace = {"type": "heatmap", "x": list(ticks), "y": rows, "xgap": 2, "ygap": 2}
    return [
        trace(
            **grid,
            z=[[0] * len(ticks)] * len(rows),
            showscale=False,
            colorscale=make_colorscale([palette.surface] * 2),
        ),
        trace(**grid, z=z, coloraxis="coloraxis", hoverongaps=False),
        trace(
            "%{customdata[1]}",
            x=x,
            y=y,
            text=text,
            mode="markers+text",
            textfont={"size": 11, "color": inks},
            marker={"symbol": "square", "size": 26, "opacity": 0},
            customdata=carried,
        ),
    ]


def _boundary(columns: pd.DataFrame, conditions: Sequence[float], palette: Palette) -> list[Trace]:
    if columns.empty:
        return []
    x, low, high = (
        np.log2(columns[name].astype(float)) for name in ("boundary", "boundary_low", "boundary_high")
    )
    symbols = {"above": "triangle-right", "below": "triangle-left"}
    colour = palette.outcomes["mild"]
    marker = {
        "symbol": [symbols.get(word, "circle") for word in columns["beyond"]],
        "color": colour,
        "size": 10,
        "line": {"color": palette.background, "width": 1},
    }
    # The colour is seen on the light and the dark end of the scale; the bar would be faint without another
    # below it.
    bars = (
        common.whiskers(high - x, x - low, ink, thickness=thick, width=4)
        for ink, thick in ((palette.background, 5), (colour, 2))
    )
    y = [conditions.index(y) + _BELOW for y in columns["y"]]
    return [trace(x=x.tolist(), y=y, mode="markers", marker=marker, error_x=bar) for bar in bars]
