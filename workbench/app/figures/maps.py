"""Heat maps, an arm a map on one colour scale: of the turn ledger and of stability regions."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
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
        words = [f"{round(value, 3):g}" if near else _tick(value) for value in values]
        if self.below:
            words[0] = f"≤ {words[0]}"
        if self.above:
            words[-1] = f"≥ {words[-1]}"
        return places, words


def _tick(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.3g}"


def colour_scale(unit: str, values: pd.Series) -> ColourScale:
    """Choose the scale for `values`: a ratio around 1; otherwise around 0 where any is
    negative, else from 0.
    """
    known = values.astype(float)
    known = known[np.isfinite(known)]
    kind = "signed" if (known < 0).any() else "size"
    if unit == "ratio":
        kind = "ratio"
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


class _HeatView(NamedTuple):
    """The maps of a figure, and what they have in common."""

    maps: Sequence[Heat]
    measure: Measure
    colours: ColourScale
    palette: Palette
    window: Window
    chosen: tuple[int, int, int] | None  # place in `maps`, bucket, turn index

    @property
    def turns(self) -> int:
        """The largest turn index."""
        return int(max((part.cells["turn_index"].max() for part in self.maps if len(part.cells)), default=1))

    @property
    def words(self) -> str:
        """The definition of the measure, in lines that fit above the maps."""
        return wrapped(f"{self.measure.name}: {self.measure.definition}", 130)


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
    view = _HeatView(maps, measure, colours, palette, window, chosen)
    panes, inner = _map_panes(len(maps), view.turns)
    contents = common.Contents([], _map_titles(view, x_title), {"coloraxis": _map_colours(view, inner)})
    for pane, part in zip(panes, maps, strict=True):
        _draw_map(contents, pane, part, styles[part.arm].colour, view)
    return common.figure(
        contents.traces,
        palette,
        inner=inner,
        top=HEAD + 15 * view.words.count("<br>"),
        bottom=BOTTOM,
        annotations=contents.annotations,
        hoverdistance=60,
        **contents.layout,
    )


def _map_titles(view: _HeatView, x_title: str) -> list[Trace]:
    """What is drawn, above the maps, and the title of the x-axis below them."""
    below = note(x_title, 0.5, 0, yanchor="top", yshift=-24, font={"color": view.palette.muted})
    return [heading(view.measure.title, view.words, view.palette, yshift=44), below]


def _draw_map(contents: common.Contents, pane: common.Pane, part: Heat, colour: str, view: _HeatView) -> None:
    """Add the map of one arm, in whose colour its name is marked, to what the panes hold."""
    contents.layout.update(pane.shared(*_map_axes(view.window, view.turns)))
    contents.annotations.append(common.arm_label(part.arm, colour, pane) | {"yshift": 17})
    if part.cells.empty:
        contents.annotations.append(common.nothing(pane, view.palette))
        return
    traces = [*_map(part, view), _targets(part, pane.number, view.measure, view.window)]
    if view.chosen is not None and view.chosen[0] == pane.number:
        traces.append(_frame(view.chosen, view.window, view.palette))
    contents.traces.extend(drawing | pane.axes for drawing in traces)


def _map_panes(count: int, turns: int) -> tuple[Iterator[common.Pane], int]:
    """A pane a map, and the height of all in pixels."""
    across = 2 if count == 4 else min(ACROSS, count)
    rows = math.ceil(count / across)
    inner = rows * max(CELL * turns, 4 * CELL) + (rows - 1) * GAP
    return common.panes(count, across, 0.02, GAP / inner), inner


def _map_axes(window: Window, turns: int) -> tuple[Trace, Trace]:
    x_axis = common.axis(
        "",
        range=[window.first - 0.5, window.last + 0.5],
        nticks=8,
        ticks="",
        dtick=1 if window.last - window.first < 8 else None,
    )
    y_axis = common.axis("turn index", range=[turns + 0.5, 0.5], tickvals=list(range(1, turns + 1)), ticks="")
    return x_axis, y_axis


def _map_colours(view: _HeatView, inner: int) -> dict[str, Any]:
    """The colour axis; what lies beyond an end is told away from it, as next to it texts would overlap."""
    colours = view.colours
    palette = view.palette
    values = list[float]()
    for part in view.maps:
        values += [value for value in part.cells["value"].astype(float) if math.isfinite(value)]
    places, words = colours.ticks()
    unit = figure_text(view.measure.unit)
    if colours.kind == "ratio":
        unit += "<br>log scale"
    if colours.above:
        unit += f"<br>highest {number(max(values))}"
    if colours.below:
        words[0] += f"<br>lowest {number(min(values))}"
    return common.colour_axis(
        "",
        inner,
        palette,
        colours.colours(palette),
        colours.ends,
        tickvals=places,
        ticktext=words,
        title={"text": unit, "side": "top", "font": {"color": palette.muted, "size": 12}},
    )


def _frame(chosen: tuple[int, int, int], window: Window, palette: Palette) -> Trace:
    """The frame about the chosen cell: (place of its map, bucket, turn index)."""
    _, bucket, turn = chosen
    left = window.first + bucket * window.width - 0.5
    outline = _rectangles(left, left + window.width, turn)
    return trace(**outline, line={"color": palette.text, "width": 2}, cliponaxis=False)


def _rectangles(left: Any, right: Any, turn: Any) -> dict[str, Any]:
    """Return the outlines of spans of cells, with a gap behind each."""
    low = turn - 0.5
    high = turn + 0.5
    gap = np.nan * turn
    x = [left, right, right, left, left, gap]
    y = [low, low, high, high, low, gap]
    return {"x": np.stack(x, axis=-1).ravel(), "y": np.stack(y, axis=-1).ravel(), "mode": "lines"}


class _Grid(NamedTuple):
    """The cells of a map as a matrix of turns and buckets."""

    cells: pd.DataFrame
    turns: int  # rows
    window: Window

    @property
    def first(self) -> int:
        """The lowest bucket."""
        return int(self.cells["bucket"].to_numpy().min())

    @property
    def shape(self) -> tuple[int, int]:
        """Turns, buckets."""
        return self.turns, int(self.cells["bucket"].to_numpy().max() - self.first + 1)

    @property
    def start(self) -> float:
        """The middle of the first column, on the axis."""
        window = self.window
        return float(window.first + self.first * window.width + (window.width - 1) / 2)

    def filled(self, values: Any, empty: Any) -> np.ndarray:
        """A matrix with `values` (one, or one a cell) in the cells and `empty` elsewhere."""
        matrix = np.full(self.shape, empty)
        bucket = self.cells["bucket"].to_numpy() - self.first
        matrix[self.cells["turn_index"].to_numpy() - 1, bucket] = values
        return matrix


def _map(part: Heat, view: _HeatView) -> Iterator[Trace]:
    """Yield the colours of a map, and marks for what has none."""
    palette = view.palette
    grid = _Grid(part.cells, view.turns, view.window)
    yield trace(
        type="heatmap",
        # a cell without a number stays the ground of the page
        z=grid.filled(view.colours.place(part.cells["value"]).to_numpy(), np.nan),
        x0=grid.start,
        dx=view.window.width,
        y0=1,
        dy=1,
        coloraxis="coloraxis",
        hoverongaps=False,
        ygap=1,
        xgap=1 if grid.shape[1] <= 60 else 0,
    )
    yield from _absent_turns(grid, palette)
    yield from _broken_cells(grid, palette)
    if part.onsets:
        yield _onset_marks(part.onsets, palette)
    yield from _veils(part.cells, palette, view.window)


def _absent_turns(grid: _Grid, palette: Palette) -> Iterator[Trace]:
    """A dash where no trajectory had such a turn: an empty cell is not a neutral one."""
    present = grid.filled(True, False)
    turn, bucket = np.nonzero(~present & present.any(axis=0))
    if len(turn):
        x = grid.start + bucket * grid.window.width
        colour = faded(palette.muted, 0.55)
        yield common.marks(x, turn + 1, "line-ew", 4, colour, edge=1, cliponaxis=False)


def _broken_cells(grid: _Grid, palette: Palette) -> Iterator[Trace]:
    """A cross where a value is NaN or Inf."""
    broken = grid.cells[grid.cells["non_finite"].to_numpy() > 0]
    if len(broken):
        x = grid.start + (broken["bucket"].to_numpy() - grid.first) * grid.window.width
        turn = broken["turn_index"].to_numpy()
        red = palette.outcomes["collapsed"]
        yield common.marks(x, turn, "x-thin", 8, red, edge=1.6, cliponaxis=False)


def _onset_marks(onsets: Sequence[tuple[float, Any]], palette: Palette) -> Trace:
    """A triangle with its seed on the upper edge where a run collapsed."""
    x, seeds = map(list, zip(*onsets, strict=True))
    return common.marks(
        x,
        [0.5] * len(x),
        "triangle-down",
        10,
        palette.outcomes["collapsed"],
        "seed %{customdata} fell after %{x:,}",
        mode="markers+text",
        customdata=list(map(figure_text, seeds)),
        text=[f"s{figure_text(seed)}" for seed in seeds],
        textposition="top center",
        textfont={"size": 11, "color": palette.text},
        cliponaxis=False,
    )


def _veils(cells: pd.DataFrame, palette: Palette, window: Window) -> Iterator[Trace]:
    """Yield what makes cells of few turns pale, and hatches those without a measurement."""
    pale = {"fillcolor": faded(palette.background, 0.7)}
    hatched = {"shape": "/", "size": 5, "solidity": 0.2, "fgcolor": palette.muted, "bgcolor": "rgba(0,0,0,0)"}
    for which, fill in (
        (cells["turns"] < FEW, pale),
        (cells["measured"] == 0, {"fillpattern": hatched}),
    ):
        spans = cells[which].sort_values(["turn_index", "bucket"])
        if len(spans):
            yield trace(**_span_outlines(spans, window), line={"width": 0}, fill="toself", **fill)


def _span_outlines(spans: pd.DataFrame, window: Window) -> dict[str, Any]:
    """The outlines of sorted cells; neighbours share a rectangle."""
    starts = (spans["bucket"].diff() != 1) | (spans["turn_index"].diff() != 0)
    joined = spans.groupby(starts.cumsum()).agg({"bucket": ["min", "max"], "turn_index": "first"})
    first, last, turn = joined.to_numpy().T
    left, right = (window.first + ends * window.width - 0.5 for ends in (first, last + 1))
    return _rectangles(left, right, turn)


def _targets(part: Heat, place: int, measure: Measure, window: Window) -> Trace:
    """Return an unseen mark in each cell for the pointer: it carries map, bucket and turn index, and says the
    rest.
    """
    cells = part.cells
    first = window.first + cells["bucket"] * window.width
    last = (first + window.width - 1).clip(upper=window.last)
    spans = zip(first, last, cells.to_dict("records"), strict=True)
    return trace(
        "%{text}",
        type="scattergl" if len(first) > _WEBGL else "scatter",
        mode="markers",
        text=[_cell_text(part.arm, measure, (begin, end), cell) for begin, end, cell in spans],
        x=(first + (window.width - 1) / 2).to_numpy(),
        y=cells["turn_index"].to_numpy(),
        marker={"symbol": "square", "size": 12, "opacity": 0},
        customdata=np.column_stack([np.full(len(first), place), cells[["bucket", "turn_index"]]]),
    )


def _cell_text(arm: str, measure: Measure, span: tuple[int, int], cell: Mapping[Hashable, Any]) -> str:
    """What the pointer says of a cell: `span` are its first and last step."""
    begin, end = span
    unit = "" if measure.unit == "ratio" else f" {figure_text(measure.unit)}"
    steps = f"step {begin:,}" if begin == end else f"steps {begin:,} to {end:,}"
    lines = [f"<b>{figure_text(arm)}</b>, turn {cell['turn_index']}, {steps}<br>"]
    mean = cell["mean"]
    if mean == mean:
        lines.append(f"{figure_text(measure.title)} {mean:.4g}{unit}<br>")
    elif not cell["measured"]:
        lines.append("not measured<br>")
    if cell["low"] < cell["high"]:
        lines.append(f"lowest {cell['low']:.4g}, highest {cell['high']:.4g}<br>")
    if cell["non_finite"]:
        lines.append(f"{cell['non_finite']:.0f} of {cell['measured']:.0f} values NaN or Inf<br>")
    if cell["turns"] == cell["turns"]:
        lines.append(f"{cell['turns']:,.0f} turns")
    return "".join(lines)


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


class Slice(NamedTuple):
    """One slice of a region: tables of analysis.region, and its two settings in words."""

    points: pd.DataFrame  # a row an arm and searched point
    columns: pd.DataFrame  # a row an arm and condition, with the boundary
    lattice: Sequence[float]  # values of the searched setting
    along: str  # the searched setting
    across: str  # the condition

    @property
    def conditions(self) -> list[float]:
        """Values of the condition, from below."""
        return sorted(self.points["y"].unique())

    @property
    def ticks(self) -> list[float]:
        """Places of the lattice on the axis of the searched setting, which is log2."""
        return [math.log2(x) for x in self.lattice]

    def of_arm(self, arm: str) -> "Slice":
        """The rows of one arm, its boundary by condition."""
        columns = self.columns
        return self._replace(
            points=self.points[self.points["series"] == arm],
            columns=columns[columns["series"] == arm].sort_values("y"),
        )


def region(piece: Slice, styles: Styles, palette: Palette, measure: str = "collapsed") -> go.Figure:
    """Draw a slice of a region, a pane an arm; a cell carries its arm."""
    arms = list(dict.fromkeys(piece.points["series"]))
    conditions = piece.conditions
    panes, inner = _region_panes(len(arms), len(conditions))
    axes = (_searched_axis(piece), _condition_axis(piece.across, conditions))
    contents = common.Contents([], _region_titles(measure, piece.along, palette), {})
    for pane, arm in zip(panes, arms, strict=True):
        contents.layout.update(pane.shared(*axes))
        contents.annotations.append(common.arm_label(arm, styles[arm].colour, pane))
        mine = piece.of_arm(arm)
        cells = _cells(mine, conditions, palette, measure)
        edges = _boundary(mine.columns, conditions, palette)
        contents.traces.extend(drawing | pane.axes for drawing in (*cells, *edges))
    contents.layout["coloraxis"] = common.colour_axis(
        "fraction", min(inner, 220), palette, palette.sequential[1:], (0, 1), tickformat=".1f"
    )
    return common.figure(
        contents.traces,
        palette,
        inner=inner,
        top=88,
        bottom=52,
        annotations=contents.annotations,
        **contents.layout,
    )


def _region_panes(arms: int, conditions: int) -> tuple[Iterator[common.Pane], int]:
    """A pane an arm, and the height of all in pixels."""
    rows = math.ceil(arms / ACROSS)
    inner = rows * _ROW * conditions + (rows - 1) * _GAP
    return common.panes(arms, min(ACROSS, arms), 0.035, _GAP / inner), inner


def _searched_axis(piece: Slice) -> dict[str, Any]:
    """The axis of the searched setting: log2, cut to what was tried and the intervals of the boundaries."""
    lattice = piece.lattice
    columns = piece.columns
    ticks = piece.ticks
    half = (ticks[1] - ticks[0]) / 2
    tried = np.r_[piece.points["x"], columns.get("boundary_low", []), columns.get("boundary_high", [])]
    near = np.log2(tried.astype(float))
    first = max(ticks[0], np.nanmin(near) - 2 * half)
    last = min(ticks[-1], np.nanmax(near) + 2 * half)
    return common.axis(
        "",
        range=[first - half, last + half],
        tickvals=ticks[::2],
        ticks="",
        ticktext=[f"{x:g}" for x in lattice[::2]],
    )


def _condition_axis(across: str, conditions: Sequence[float]) -> dict[str, Any]:
    return common.axis(
        across,
        ticks="",
        range=[-0.5, len(conditions) - 0.5],
        tickvals=list(range(len(conditions))),
        ticktext=[f"{y:g}" for y in conditions],
    )


def _region_titles(measure: str, along: str, palette: Palette) -> list[Trace]:
    """What is drawn, with its key, above the panes, and the title of the x-axis below them."""
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
    return [heading(title, key, palette, yshift=34), below]


def _cells(mine: Slice, conditions: Sequence[float], palette: Palette, measure: str) -> list[Trace]:
    """The ground of one arm's map, its colours, and a text in each cell."""
    ticks = mine.ticks
    rows = list(range(len(conditions)))
    z = np.full((len(rows), len(ticks)), np.nan)
    labels = []
    points = mine.points.to_dict("records")
    for point, column, value in zip(points, _nearest_ticks(mine), _shares(mine.points, measure), strict=True):
        row = conditions.index(point["y"])
        z[row, column] = value
        labels.append(_cell_label(point, (ticks[column], row + _ABOVE), value, palette, measure))
    grid: Trace = {"type": "heatmap", "x": ticks, "y": rows, "xgap": 2, "ygap": 2}
    return [
        trace(
            **grid,
            z=[[0] * len(ticks)] * len(rows),
            showscale=False,
            colorscale=make_colorscale([palette.surface] * 2),
        ),
        trace(**grid, z=z, coloraxis="coloraxis", hoverongaps=False),
        _label_trace(labels),
    ]


def _nearest_ticks(mine: Slice) -> np.ndarray:
    """The place in the lattice of each point."""
    return np.abs(np.subtract.outer(np.log2(mine.points["x"].to_numpy()), mine.ticks)).argmin(axis=1)


def _shares(points: pd.DataFrame, measure: str) -> pd.Series:
    """What colours each point: the share of its runs that collapsed, or their mean final success."""
    return points["collapsed"] / points["runs"] if measure == "collapsed" else points["final"]


class _CellLabel(NamedTuple):
    """The text in a cell of a region, and what the cell carries."""

    x: float
    y: float
    text: str
    ink: str
    carried: list[str]  # arm, what the pointer says


def _cell_label(
    row: Mapping[Hashable, Any], at: tuple[float, float], value: float, palette: Palette, measure: str
) -> _CellLabel:
    counts = f"{row['collapsed']:.0f}/{row['runs']:.0f}"
    is_known = value == value
    ground = between(palette.sequential[1:], min(max(value, 0.0), 1.0) if is_known else 0)
    ink = max((palette.text, palette.background), key=lambda ink: contrast(ink, ground))
    final = "not measured" if math.isnan(row["final"]) else f"{row['final']:.3f}"
    about = f"{row['x']:g} at {row['y']:g}<br>{counts} runs collapsed<br>mean final success {final}"
    success = f"{value:.2f}".removeprefix("0") if is_known else ""
    words = counts if measure == "collapsed" else success
    return _CellLabel(*at, words, ink, [figure_text(row.get("arm", "")), about])


def _label_trace(labels: Sequence[_CellLabel]) -> Trace:
    return trace(
        "%{customdata[1]}",
        x=[label.x for label in labels],
        y=[label.y for label in labels],
        text=[label.text for label in labels],
        mode="markers+text",
        textfont={"size": 11, "color": [label.ink for label in labels]},
        marker={"symbol": "square", "size": 26, "opacity": 0},
        customdata=[label.carried for label in labels],
    )


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
