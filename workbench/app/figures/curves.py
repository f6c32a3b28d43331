"""Curves of diagnostics over training, a panel a diagnostic, as bands or single seeds; a quick chart of any
answer.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import make_colorscale

from sorl.app.figures import common
from sorl.app.figures.common import LEGEND_ROW, Trace, area, heading, short, trace
from sorl.app.text import few, figure_text, wrapped
from sorl.app.theme import DASHES, Palette, Style, Styles, faded, styles
from sorl.diagnosis.standing import counted

# pixels
PANEL = 190
BOTTOM = 52
_WEBGL = 15_000  # points of a panel above which the graphics processor draws it
_ACROSS = 4  # panes of one diagnostic side by side, one of an arm
_FILLED = 3  # arms up to which the band of the extremes is filled
_MARKED = 60  # points of a line up to which some are marked
# pixels of the least width of a panel; marks that stand one above the other
_NARROW = 290
_PLACES = 6
_FLAT = 20  # times the bulk of the values (5 % to 95 %) that an axis may span before what lies beyond is cut
# columns of the points
_NUMBERS = ("run", "seed", "x", "mean", "middle", "lower", "upper", "low", "high", "n", "piece")
_NAMED = 2  # arms that the remark about points beyond an axis names
_PALE = 0.4  # opacity of what was measured behind a smoothed line


class Threshold(NamedTuple):
    """A value at which an alarm goes off: of one arm, or (None) of all, from the x at which its rule can
    ring.
    """

    arm: str | None
    value: float
    first: float = -math.inf


class Marks(NamedTuple):
    """What rules say of a diagnostic."""

    thresholds: Sequence[Threshold] = ()
    alarms: pd.DataFrame | None = None  # arm, x, value, message
    unwatched: Sequence[str] = ()  # runs that fell before the rule could ring
    needs: int = 0  # points of a run that the rule takes before it can ring


class Panel(NamedTuple):
    """One diagnostic: its words from the dictionary, its points (`banded` or `Chosen.points`) and marks."""

    name: str
    unit: str
    definition: str
    data: pd.DataFrame
    marks: Marks = Marks()
    broken: pd.DataFrame | None = None  # arm, run_id, x of every point with NaN or Inf
    seeds: pd.DataFrame | None = None  # points that are drawn seed by seed with the lines of `banded` arms
    unsmoothed: pd.DataFrame | None = None  # `data` as it was measured, where that is smoothed

    @property
    def parts(self) -> list[pd.DataFrame]:
        """All points that are drawn."""
        return [part for part in (self.data, self.seeds, self.unsmoothed) if part is not None]


class _Slot(NamedTuple):
    """What one pane draws: a diagnostic of some arms."""

    number: int  # of the pane
    panel: Panel
    styles: Styles  # of its arms
    words: str  # below its name


class Arrangement(NamedTuple):
    """How panels stand, and what their axes are."""

    columns: int | None = None  # panels in a row; None: by their number
    by_arm: bool = False  # each diagnostic has a pane an arm, all on one scale
    has_legend: bool = True
    scale: str = "auto"  # of y
    is_aligned: bool = False  # 0 is the onset, which gets a line


class _View(NamedTuple):
    """What all panes have in common."""

    palette: Palette
    x_title: str
    arrangement: Arrangement
    onsets: pd.DataFrame | None  # arm, x, run_id of falls


class _Place(NamedTuple):
    """Where a slot is drawn."""

    pane: common.Pane
    edges: str  # y-axis from 0 at the lower to 1 at the upper edge of the panel
    matches: str  # y-axis that all panes of the diagnostic share
    word_height: int  # pixels of the words below the names


def curves(
    panels: Sequence[Panel],
    styles: Styles,
    palette: Palette,
    x_title: str,
    *,
    onsets: pd.DataFrame | None = None,
    arrangement: Arrangement = Arrangement(),
) -> go.Figure:
    """Draw the panels; `styles` in the order of the legend, `onsets` (arm, x, run_id) of falls."""
    view = _View(palette, x_title, arrangement, onsets)
    if arrangement.by_arm and styles:
        across = math.ceil(len(styles) / math.ceil(len(styles) / _ACROSS))
        grid = _Grid(_slots_by_arm(panels, styles, across), across)
    else:
        across = arrangement.columns or (1 if len(panels) <= 3 else 2)
        grid = _Grid(_slots_by_panel(panels, styles, across), across)
    traces = _legend_entries(styles)
    # A click on an entry shows its arm alone, a second one all again; a double click switches one.
    layout = common.legend_on_top(
        groupclick="togglegroup", itemclick="toggleothers", itemdoubleclick="toggle"
    )
    layout |= {"showlegend": arrangement.has_legend, "dragmode": "zoom", "annotations": [], "shapes": []}
    for slot, place in zip(grid.slots, grid.places(), strict=True):
        _draw_slot(slot, place, view, traces, layout)
    if not layout["shapes"]:
        del layout["shapes"]
    above = 16 + LEGEND_ROW * common.legend_rows(list(styles), 700) if arrangement.has_legend else 0
    top = above + grid.gap - 26
    return common.figure(traces, palette, inner=grid.height + 8, top=top, bottom=BOTTOM, **layout)


class _Grid(NamedTuple):
    """The slots of a figure in rows of `across` panes."""

    slots: Sequence[_Slot]
    across: int

    @property
    def pane_count(self) -> int:
        """Panes, also the empty ones at the end of a diagnostic's rows."""
        return self.slots[-1].number + 1 if self.slots else 0

    @property
    def word_height(self) -> int:
        """Pixels of the words below the names."""
        return 15 * max((slot.words.count("<br>") + 1 for slot in self.slots), default=1)

    @property
    def gap(self) -> int:
        """Pixels between two rows."""
        return 62 + self.word_height

    @property
    def height(self) -> int:
        """Pixels of all rows."""
        rows = math.ceil(self.pane_count / self.across)
        return rows * PANEL + (rows - 1) * self.gap

    def places(self) -> Iterator[_Place]:
        """Yield where each slot is drawn."""
        panes = list(common.panes(self.pane_count, self.across, 0.075, self.gap / max(self.height, 1)))
        word_height = self.word_height
        first_axes: dict[int, str] = {}  # panel -> the y-axis that its panes share
        for slot in self.slots:
            pane = panes[slot.number]
            matches = first_axes.setdefault(id(slot.panel), pane.axes["yaxis"])
            yield _Place(pane, f"y{self.pane_count + pane.number + 1}", matches, word_height)


def _slots_by_panel(panels: Sequence[Panel], styles: Styles, across: int) -> list[_Slot]:
    return [
        _Slot(number, panel, styles, wrapped(panel.definition, 118 // across))
        for number, panel in enumerate(panels)
    ]


def _slots_by_arm(panels: Sequence[Panel], styles: Styles, across: int) -> list[_Slot]:
    """A pane for each arm of each diagnostic, which begins a row."""
    panes_of_panel = math.ceil(len(styles) / across) * across
    slots = []
    for place, panel in enumerate(panels):
        for number, (arm, style) in enumerate(styles.items(), panes_of_panel * place):
            slots.append(_Slot(number, panel, {arm: style}, short(arm, 118 // across)))
    return slots


def _legend_entries(styles: Styles) -> list[Trace]:
    """The entries of the legend: they have no points, and switch the traces of their arm in all panels."""
    return [
        _line(arm, style, 2.2, marked=True, x=[None], y=[None], name=figure_text(arm))
        | {
            "showlegend": True,
            "marker": {"symbol": style.marker, "size": 6, "color": style.colour},
        }
        for arm, style in styles.items()
    ]


def _draw_slot(slot: _Slot, place: _Place, view: _View, traces: list[Trace], layout: dict[str, Any]) -> None:
    """Add the traces of a pane, and its axes and texts to the layout."""
    panel = slot.panel
    pane = place.pane
    y_axis, ends = _y_axis(panel, view.arrangement.scale)
    cut = _beyond(panel, ends)
    cut = cut[cut["arm"].isin(list(slot.styles))]
    lines = (*_lines(panel, slot.styles), *_alarms(panel, slot.styles, view.palette))
    traces += [drawing | pane.axes for drawing in lines]
    on_edges = _on_edges(panel, view.onsets, cut, slot.styles, view.palette)
    traces += [drawing | pane.axes | {"yaxis": place.edges} for drawing in on_edges]
    layout |= _slot_axes(place, view, y_axis)
    if view.arrangement.is_aligned:
        layout["shapes"].append(_onset_line(pane, view.palette))
    layout["annotations"].append(_slot_heading(slot, place, view.palette))
    if len(cut):
        layout["annotations"].append(_beyond_note(cut, pane, view.palette))
    if all(part.empty for part in panel.parts):
        layout["annotations"].append(common.nothing(pane, view.palette))
        # plotly draws no axes without a trace, and then fails at what is laid over them.
        traces.append(trace(x=[None], y=[None], showlegend=False) | pane.axes)


def _slot_axes(place: _Place, view: _View, y_axis: dict[str, Any]) -> dict[str, Any]:
    """The axes of a pane, and the unseen one from its lower to its upper edge."""
    x, y = place.pane.axes.values()
    title = view.x_title if place.pane.is_last else ""
    x_axis = common.axis(title, matches="x", showspikes=True, spikesnap="cursor", fixedrange=False)
    shared = {"matches": place.matches} if place.matches != y else {}
    edges = {
        "overlaying": y,
        "anchor": x,
        "side": "right",
        "range": [0, 1],
        "visible": False,
        "fixedrange": True,
    }
    return {**place.pane.placed(x_axis, y_axis | shared), place.edges.replace("y", "yaxis"): edges}


def _onset_line(pane: common.Pane, palette: Palette) -> dict[str, Any]:
    x, y = pane.axes.values()
    return common.vertical(0, palette.muted) | {"xref": x, "yref": f"{y} domain"}


def _slot_heading(slot: _Slot, place: _Place, palette: Palette) -> Trace:
    """The name of a pane; those of one row stand on one line, however many lines of words each has below."""
    top = {
        "yanchor": "top",
        "yshift": 8 + 20 + place.word_height,
        "hovertext": wrapped(slot.panel.definition, 70),
    }
    x = place.pane.x[0]
    y = place.pane.y[1]
    return heading(slot.panel.name, slot.words, palette, x=x, y=y) | top


def _beyond_note(cut: pd.DataFrame, pane: common.Pane, palette: Palette) -> Trace:
    # a name has no room in a narrow panel
    look = {"xanchor": "right", "yanchor": "bottom", "yshift": 12, "bgcolor": palette.background}
    text = figure_text(beyond_sentence(cut))
    return common.note(text, pane.x[1], pane.y[0], font={"size": 12}, **look)


def single_out(figure: go.Figure, arm: str) -> None:
    """Show one arm alone, as a click on its entry of the legend does."""
    for part in figure.data:
        if part.legendgroup and part.legendgroup != figure_text(arm):
            part.visible = "legendonly" if part.showlegend else False


def _y_axis(panel: Panel, scale: str) -> tuple[dict[str, Any], tuple[float, float] | None]:
    # The axis, and its ends where it does not hold all values. A `scale` of auto is log where a linear axis
    # would hide most values, and leaves out what would flatten the others.
    known = _known_values(panel)
    bare = {"showticklabels": False, "showgrid": False} if not len(known) else {}
    if scale == "linear" or (scale == "auto" and not common.is_wide(known)):
        ends = _bulk(known) if scale == "auto" else None
        fixed = {"range": list(ends), "autorange": False} if ends else {}
        return {"title": {"text": figure_text(panel.unit)}, **bare, **fixed}, ends
    decades = math.log10(known.max() / known.min()) if len(known) and known.min() > 0 else 1
    ticks = {"dtick": max(1, math.ceil(decades / 5))} if decades > 1.5 else {}
    return common.log_scale(panel.unit) | ticks | bare, None


def _known_values(panel: Panel) -> np.ndarray:
    """The extremes of all points of a panel, without NaN."""
    columns = [np.empty(0)]
    for part in panel.parts:
        columns += [part[name].to_numpy(dtype=float) for name in ("low", "high") if name in part]
    known = np.concatenate(columns)
    return known[~np.isnan(known)]


def _bulk(known: np.ndarray) -> tuple[float, float] | None:
    """Ends of an axis that leaves out what would flatten the other values; None where nothing would."""
    finite = known[np.isfinite(known)]
    if not len(finite):
        return None
    low, high = np.quantile(finite, [0.05, 0.95])
    span = float(high - low)
    if not span or finite.max() - finite.min() <= _FLAT * span:
        return None
    below = max(finite.min(), low - 2 * span)
    above = min(finite.max(), high + 2 * span)
    return float(below - 0.1 * span), float(above + 0.1 * span)


def _beyond(panel: Panel, ends: tuple[float, float] | None) -> pd.DataFrame:
    """Return arm, x and value of every point that lies beyond the `ends` of the axis."""
    low, high = ends or (-math.inf, math.inf)
    points = [pd.DataFrame(columns=["arm", "x", "value"])]
    for part in [part for part in panel.parts if ends and len(part)]:
        for name, is_out in (("low", part["low"] < low), ("high", part["high"] > high)):
            points.append(part.loc[is_out, ["arm", "x", name]].rename(columns={name: "value"}))
    return pd.concat(points[1:] or points).drop_duplicates()


def beyond_sentence(cut: pd.DataFrame) -> str:
    """Say how many points of which arms (arm, x, value) lie beyond the axis, and how far: true whichever arm
    is singled out.
    """
    each = []
    for arm, part in cut.groupby("arm", sort=False):
        name = str(arm) if len(str(arm)) <= _LABEL else f"{str(arm)[: _LABEL - 1]}…"
        farthest = max(part["value"], key=abs)
        each.append((abs(farthest), f"{name} {counted(len(part), 'point')}, to {farthest:,.4g}"))
    each.sort(key=lambda pair: -pair[0])
    return f"beyond the axis: {few([words for _, words in each], _NAMED, '; ', ' arm')}"


def _line(arm: str, style: Style, width: float, *, marked: bool, **more: Any) -> Trace:
    """Return a line of an arm, which its entry of the legend switches."""
    circle = style.marker == "circle"
    marker = {"symbol": style.marker, "size": 3.5 if circle else 6, "color": style.colour, "maxdisplayed": 12}
    return common.line(
        colour=style.colour,
        width=width,
        dash=style.dash,
        legendgroup=figure_text(arm),
        showlegend=False,
        mode="lines+markers" if marked or not circle else "lines",
        **{"marker": marker} | more,
    )


def _parts(data: pd.DataFrame, styles: Styles) -> Iterator[tuple[str, Style, dict[str, np.ndarray]]]:
    """Yield the points of each arm as arrays, in the order of `styles`."""
    rows = data.groupby("arm", sort=False).indices
    values = {name: data[name].to_numpy(dtype=float) for name in _NUMBERS if name in data}
    for arm, style in styles.items():
        if arm in rows:
            yield arm, style, {name: column[rows[arm]] for name, column in values.items()}


def _lines(panel: Panel, styles: Styles) -> list[Trace]:
    """Return all lines of a panel; behind a smoothed one stands what was measured."""
    is_banded = "middle" in panel.data
    lines = _bands(panel, styles) if is_banded else _runs(styles, panel.data)
    if panel.unsmoothed is None:
        return lines
    solid = {arm: style._replace(dash="solid") for arm, style in styles.items()}
    if not is_banded:
        return [*_runs(solid, panel.unsmoothed, width=0.9, opacity=_PALE), *lines]
    measured = [
        _line(arm, style, 0.9, marked=False, x=part["x"], y=part["middle"], opacity=_PALE)
        | {"mode": "lines", "marker": None}
        for arm, style, part in _parts(_gapped(panel.unsmoothed), solid)
    ]
    return [*measured, *lines]


def _gapped(lines: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of arms with a row of NaN wherever one has a gap, so that nothing is drawn over it."""
    if "piece" not in lines or lines.empty:
        return lines
    begins = (lines["piece"] != lines["piece"].shift()) & (lines["arm"] == lines["arm"].shift())
    if not begins.any():
        return lines
    gaps = lines[["arm"]][begins].set_axis(lines.index[begins] - 0.5)
    return pd.concat([lines, gaps]).sort_index()


def _bands(panel: Panel, styles: Styles) -> list[Trace]:
    """Return every arm's middle over its interval over its extremes; where it has no interval, seeds are thin
    lines.
    """
    is_filled = len(styles) <= _FILLED
    solid = {arm: style._replace(dash="solid") for arm, style in styles.items()}
    thin = [] if panel.seeds is None else _runs(solid, panel.seeds, width=0.9, opacity=0.6)
    wide = list[Trace]()
    narrow = list[Trace]()
    lines = list[Trace]()
    for arm, style, part in _parts(_gapped(panel.data), styles):
        # Where many arms would hide each other, a band of extremes is only its two edges.
        wide += _band(part, "low", "high", arm, style, 0.09 if is_filled else 0)
        narrow += _band(part, "lower", "upper", arm, style, 0.2 if is_filled else 0.11)
        lines.append(_middle(part, arm, style))
    return [*wide, *narrow, *thin, *lines]


def _band(
    part: Mapping[str, np.ndarray], low: str, high: str, arm: str, style: Style, opacity: float
) -> list[Trace]:
    """Return the area between two columns where an arm has an interval, a polygon a piece; at no opacity its
    edges.
    """
    known = ~np.isnan(part["lower"]) & ~np.isnan(part[low]) & ~np.isnan(part[high])
    if not (part[low][known] != part[high][known]).any():
        return []
    line = {"width": 0 if opacity else 0.8, "color": faded(style.colour, 0.35)}
    pieces = part.get("piece", np.zeros(len(known)))
    bands = []
    for piece in np.unique(pieces[known]):
        at = known & (pieces == piece)
        look = {"line": line, "legendgroup": figure_text(arm), "showlegend": False}
        bands.append(area(part["x"][at], part[low][at], part[high][at], style.colour, opacity, **look))
    return bands


def _middle(part: Mapping[str, np.ndarray], arm: str, style: Style) -> Trace:
    """Return the line of an arm through the middles of its seeds."""
    interval = [
        "" if math.isnan(low) else f"<br>95 % interval {low:.4g} to {high:.4g}"
        for low, high in zip(part["lower"], part["upper"], strict=True)
    ]
    hover = (
        f"<b>{figure_text(arm)}</b>, %{{customdata[2]}} seeds<br>at %{{x:,.6~g}}: %{{y:.4~g}}%{{text}}"
        "<br>extremes %{customdata[0]:.4~g} to %{customdata[1]:.4~g}"
    )
    points = {"x": part["x"], "y": part["middle"], "text": interval, "hover": hover}
    extremes = np.column_stack([part[name] for name in ("low", "high", "n")])
    return _line(arm, style, 2.2, marked=len(part["x"]) <= _MARKED, customdata=extremes, **points)


def _runs(styles: Styles, data: pd.DataFrame, *, width: float = 1.4, opacity: float = 1) -> list[Trace]:
    """Return all runs of an arm as one trace, over the extremes of every bucket: a mean must not hide a
    spike.
    """
    look: Trace = {
        "type": "scattergl" if len(data) > _WEBGL else "scatter",
        "connectgaps": False,
        "opacity": opacity,
    }
    wide = []
    lines = []
    for arm, style, part in _parts(data, styles):
        ends = _piece_ends(part)
        gapped = _with_gaps(part, ends)
        counts = np.diff(ends, prepend=0)  # points of each run, or of each piece of it
        line = _line(
            arm,
            style,
            width,
            marked=opacity == 1 and int(counts.max()) <= _MARKED,
            **look,
            x=gapped["x"],
            y=gapped["mean"],
            customdata=gapped["seed"],
            hover=f"<b>{figure_text(arm)}</b><br>seed %{{customdata}}<br>at %{{x:,.6~g}}: %{{y:.4~g}}",
        )
        if opacity < 1 or look["type"] == "scattergl":  # the graphics processor thins out no markers
            has_dots = (counts == 1).any() and "piece" in part  # a line of one point has no length
            line |= _dotted_look(style) if has_dots else {"mode": "lines", "marker": None}
        lines.append(line)
        if (part["low"] < part["high"]).any():
            wide.append(_extremes(gapped, arm, style, look))
    return [*wide, *lines]


def _dotted_look(style: Style) -> Trace:
    """A line with a dot at each point."""
    return {"mode": "lines+markers", "marker": {"size": 3, "color": style.colour}}


def _piece_ends(part: Mapping[str, np.ndarray]) -> np.ndarray:
    """The places behind the last point of each run, or of each piece of one."""
    run = part["run"]
    piece = part.get("piece", np.zeros(len(run)))
    begins = (run[1:] != run[:-1]) | (piece[1:] != piece[:-1])
    return np.append(np.flatnonzero(begins) + 1, len(run))


def _with_gaps(part: Mapping[str, np.ndarray], ends: np.ndarray) -> dict[str, np.ndarray]:
    """The columns with a NaN at each of `ends`: the gap to the next run."""
    order = np.insert(np.arange(len(part["run"])), ends, -1)
    return {name: np.append(column, np.nan)[order] for name, column in part.items()}


def _extremes(gapped: Mapping[str, np.ndarray], arm: str, style: Style, look: Trace) -> Trace:
    """A vertical line from the lowest to the highest value of each bucket."""
    pairs = np.column_stack([gapped["low"], gapped["high"]]).ravel()
    return trace(
        **look,
        x=np.repeat(gapped["x"], 2),
        y=pairs,
        mode="lines",
        legendgroup=figure_text(arm),
        showlegend=False,
        line={"color": faded(style.colour, 0.3), "width": 1},
    )


def _alarms(panel: Panel, styles: Styles, palette: Palette) -> Iterator[Trace]:
    """Yield the thresholds from where they can ring (each arm's own where it is a multiple of its baseline),
    and the alarms on their points.
    """
    for threshold in panel.marks.thresholds if len(panel.data) else ():
        if threshold.arm is None or threshold.arm in styles:
            yield from _threshold_line(threshold, panel.data["x"], styles, palette)
    alarms = panel.marks.alarms
    if alarms is None:
        return
    for name, style in styles.items():
        rows = alarms[alarms["arm"] == name]
        if len(rows):
            messages = [f"<b>{figure_text(name)}</b><br>{wrapped(text, 60)}" for text in rows["message"]]
            at = rows[["x", "value"]].assign(words=messages)
            yield from _marked(name, style, at, "triangle-up-open", 15, "%{customdata}", style.colour)


def _threshold_line(threshold: Threshold, x: pd.Series, styles: Styles, palette: Palette) -> Iterator[Trace]:
    """Yield the line of a threshold over the points from where it can ring, if there are any."""
    arm = threshold.arm
    first = max(float(x.min()), threshold.first)
    last = float(x.max())
    if first > last:
        return
    group = {"legendgroup": figure_text(arm)} if arm else {}
    words = figure_text(f"alarm at {threshold.value:.4g}" + (f" for {arm}" if arm else ""))
    colour = styles[arm].colour if arm else palette.muted
    ends = [threshold.value] * 2
    yield common.line([first, last], ends, colour, 1, words, dash=common.DOTTED, showlegend=False, **group)


def _marked(
    arm: str, style: Style, at: pd.DataFrame, symbol: str, size: int, hover: str, fill: str
) -> Iterator[Trace]:
    """Yield marks (x, y, words), with the arm's own marker in the colour `fill`: colour alone would not say
    whose.
    """
    x, y, words = (at[name].to_list() for name in at)
    of: Trace = {"showlegend": False, "legendgroup": figure_text(arm)}
    yield common.marks(x, y, symbol, size, style.colour, hover, edge=1.4, customdata=words, **of)
    if fill:
        yield common.marks(x, y, style.marker, 5, fill, **of)


class _EdgeMarks(NamedTuple):
    """Points that a panel marks at its upper or lower edge."""

    rows: pd.DataFrame | None
    symbol: str
    size: int  # pixels
    height: float  # of the panel, from 0 at the lower edge
    words: str
    room: float = 1e-9  # on the x-axis, in which marks stand one above the other


def _on_edges(
    panel: Panel, onsets: pd.DataFrame | None, cut: pd.DataFrame, styles: Styles, palette: Palette
) -> Iterator[Trace]:
    """Yield the onsets for the upper edge of a panel, what is no number for the lower, and what lies beyond
    either.
    """
    beyond = "%{customdata}, beyond the axis"
    if onsets is not None and len(onsets):
        size = 14
        room = _mark_width(panel, onsets, size)
        words = "onset of the fall<br>%{customdata}"
        marks = _EdgeMarks(onsets, "triangle-down", size, 0.96, words, room)
        yield from _edge_marks(marks, styles, palette.background)
    for marks in (
        _EdgeMarks(panel.broken, "x", 7, 0.03, "NaN or Inf<br>%{customdata}"),
        _EdgeMarks(cut[cut["value"] > 0], "arrow-bar-up", 9, 0.97, beyond),
        _EdgeMarks(cut[cut["value"] <= 0], "arrow-bar-down", 9, 0.03, beyond),
    ):
        yield from _edge_marks(marks, styles, "")


def _mark_width(panel: Panel, onsets: pd.DataFrame, size: int) -> float:
    """How much of the x-axis a mark of `size` pixels covers in a narrow panel."""
    x = np.r_[panel.data.get("x", []), onsets["x"]].astype(float)
    return max(float(np.nanmax(x) - np.nanmin(x)), 1.0) * size / _NARROW


def _edge_marks(marks: _EdgeMarks, styles: Styles, fill: str) -> Iterator[Trace]:
    """Yield the marks of each arm; those at one x stand one above the other, one an arm, and so do large ones
    that are near each other.
    """
    rows = marks.rows
    if rows is None or rows.empty:
        return
    texts = rows["run_id"] if "run_id" in rows else rows["value"].map("{:.4g}".format)
    step = -0.08 if marks.height > 0.5 else 0.07
    heights = marks.height + step * np.array(_stacked(rows, marks.room))
    rows = rows.assign(text=texts.map(figure_text), height=heights)
    for arm, part in rows.groupby("arm", sort=False):
        style = styles.get(str(arm))
        if style is None:
            continue
        by_x = part.groupby("x").agg(height=("height", "first"), text=("text", "<br>".join))
        hover = f"<b>{figure_text(arm)}</b><br>{marks.words}<br>at %{{x:,.6~g}}"
        yield from _marked(str(arm), style, by_x.reset_index(), marks.symbol, marks.size, hover, fill)


def _stacked(rows: pd.DataFrame, room: float) -> list[int]:
    """Return a place from the top for each mark (x, arm), so that those of one place are `room` apart."""
    ends = list[float]()
    places = dict[tuple[float, str], int]()
    for x, arm in sorted({(float(x), str(arm)) for x, arm in zip(rows["x"], rows["arm"], strict=True)}):
        free = next((place for place, end in enumerate(ends) if x - end >= room), len(ends))
        if free == len(ends) < _PLACES:
            ends.append(x)
        places[x, arm] = free % _PLACES
        ends[free % _PLACES] = x
    return [places[float(x), str(arm)] for x, arm in zip(rows["x"], rows["arm"], strict=True)]


# A chart of any answer: points, a line or bars over a column, a colour a group.

GROUPS = 24  # that a legend lists; more are drawn without one
# pixels
_HEIGHT = 420
_ROW = 22
_TITLE = 66
_CONTINUOUS = 12  # values of a column of numbers from which on its colours are a scale
_COUNTS = 8  # whole numbers on an axis up to which each is named
_LABEL = 34  # characters of a name on an axis or in the legend


class _Answer(NamedTuple):
    """The rows of an answer, and how they are drawn."""

    frame: pd.DataFrame
    x: str  # columns
    y: str
    colour: str  # empty: none
    mark: str  # line, points or bars
    labels: Mapping[str, str]  # column -> its name with its unit

    @property
    def is_text(self) -> bool:
        """Whether x is text: its values then stand below each other, and y goes to the right."""
        return bool(self.frame[self.x].dtype.kind == "O")

    @property
    def names(self) -> list[Any]:
        """The values of x where it is text, each once."""
        return list(dict.fromkeys(self.frame[self.x])) if self.is_text else []

    @property
    def groups(self) -> list[Any]:
        """The values of the colour; numbers and times in order."""
        if not self.colour:
            return [""]
        groups = list(dict.fromkeys(self.frame[self.colour]))
        if self.frame[self.colour].dtype.kind in "iufM":
            groups.sort()
        return groups

    @property
    def is_scaled(self) -> bool:
        """Whether the colours are a scale."""
        if not self.colour:
            return False
        is_number = self.frame[self.colour].dtype.kind in "iuf"
        return is_number and len(dict.fromkeys(self.frame[self.colour])) > _CONTINUOUS

    def drawing(self, part: pd.DataFrame, head: str, tail: str, **look: Any) -> Trace:
        """The trace of some rows; `head` and `tail` are said before and after their place."""
        at, value = ("y", "x") if self.is_text else ("x", "y")
        place = f"{figure_text(self.x)} %{{{at}}}<br>{figure_text(self.y)} %{{{value}:.5~g}}"
        x = [figure_text(v) for v in part[self.x]] if self.is_text else part[self.x].to_numpy()
        places = {at: x, value: part[self.y].to_numpy()}
        lying = {"orientation": "h"} if self.is_text else {}
        return trace(f"{head}{place}{tail}", showlegend=True, **places, **lying, **look)


def chart(
    frame: pd.DataFrame,
    x: str,
    y: str,
    colour: str,
    mark: str,
    words: Mapping[str, tuple[str, str]],
    palette: Palette,
    *,
    axis: str = "auto",
) -> go.Figure:
    """Draw rows with a value in each chosen column as line, points or bars; `words`: column -> unit,
    definition.
    """
    labels = {name: _label(name, words) for name in (x, y, colour)}
    answer = _Answer(frame, x, y, colour, mark, labels)
    groups = answer.groups
    traces = [_scaled_points(answer, palette)] if answer.is_scaled else _grouped(answer, groups, palette)
    rows = len(answer.names) * (len(groups) if mark == "bars" else 1)
    return common.figure(
        traces,
        palette,
        inner=max(_HEIGHT - _TITLE - 52, 8 + rows * _ROW),
        top=_TITLE,
        bottom=52,
        barmode="group",
        bargap=0.3,
        dragmode="zoom",
        showlegend=len(traces) > 1 and len(groups) <= GROUPS,
        legend={
            "orientation": "v",
            "x": 1.01,
            "y": 1,
            "yanchor": "top",
            "title": {"text": figure_text(colour), "font": {"size": 13}},
        },
        **_answer_axes(answer, axis),
        annotations=[heading(y, wrapped(words.get(y, ("", ""))[1], 118), palette, yshift=10)],
    )


def _label(name: str, words: Mapping[str, tuple[str, str]]) -> str:
    unit = words.get(name, ("",))[0]
    return f"{name} ({unit})" if unit else name


def _scaled_points(answer: _Answer, palette: Palette) -> Trace:
    """All rows as points whose colour is a number."""
    values = answer.frame[answer.colour].tolist()
    title = {"text": figure_text(answer.labels[answer.colour])}
    marker = {
        "size": 7,
        "color": values,
        "colorscale": make_colorscale(palette.sequential[1:]),
        "colorbar": {"title": title, "outlinewidth": 0, "thickness": 10},
    }
    tail = f"<br>{figure_text(answer.colour)} %{{customdata:.5~g}}"
    return answer.drawing(answer.frame, "", tail, mode="markers", customdata=values, marker=marker)


def _grouped(answer: _Answer, groups: Sequence[Any], palette: Palette) -> list[Trace]:
    """A trace a group."""
    frame = answer.frame
    traces = []
    for group, style in _styles(frame, answer.colour, groups, palette).items():
        part = frame[frame[answer.colour] == group] if answer.colour else frame
        if answer.mark == "line":
            part = part.sort_values(answer.x)
        head = f"<b>{figure_text(group)}</b><br>" if answer.colour else ""
        look = _mark_look(answer.mark, style, len(part))
        traces.append(answer.drawing(part, head, "", name=short(str(group), _LABEL), **look))
    return traces


def _mark_look(mark: str, style: Style, count: int) -> dict[str, Any]:
    """How bars, points or a line of `count` rows look."""
    if mark == "bars":
        return {"type": "bar", "marker": {"color": style.colour, "line": {"width": 0}}}
    size, opacity = (5, 1) if mark == "line" else (7, 0.8)
    mode = "lines+markers" if count <= 60 else "lines"
    return {
        "mode": "markers" if mark == "points" else mode,
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"color": style.colour, "symbol": style.marker, "size": size, "opacity": opacity},
    }


def _answer_axes(answer: _Answer, scale: str) -> dict[str, Any]:
    """The axes of a chart: y goes to the right where x is text."""
    values = _value_axis(answer, scale)
    if answer.is_text:
        return {"xaxis": values, "yaxis": _name_axis(answer.names)}
    return {"xaxis": _number_axis(answer), "yaxis": values}


def _value_axis(answer: _Answer, scale: str) -> dict[str, Any]:
    """The axis of y: by itself it is log where a linear one would hide most points or lines; bars begin at
    0.
    """
    as_log = scale == "log" or (
        answer.mark != "bars"
        and scale == "auto"
        and common.is_wide(answer.frame[answer.y].astype(float).to_numpy())
    )
    label = answer.labels[answer.y]
    return common.log_scale(label) if as_log else common.axis(label, type="linear", fixedrange=False)


def _number_axis(answer: _Answer) -> dict[str, Any]:
    """The axis of x where it is a number or a time: few whole numbers are all named, as there is no turn
    1.5.
    """
    x = answer.frame[answer.x]
    whole = x.dtype.kind in "iu" and x.max() - x.min() < _COUNTS
    return common.axis(answer.labels[answer.x], fixedrange=False, dtick=1 if whole else None)


def _name_axis(names: Sequence[Any]) -> dict[str, Any]:
    """The axis of x where it is text, the first name uppermost."""
    return {
        "type": "category",
        "autorange": "reversed",
        "tickmode": "array",
        "showgrid": False,
        "tickvals": [figure_text(name) for name in names],
        "ticktext": [wrapped(str(name), _LABEL) for name in names],
    }


def _styles(data: pd.DataFrame, colour: str, groups: Sequence[Any], palette: Palette) -> dict[Any, Style]:
    # Algorithms and arms in the colours that they have everywhere, other groups in turn.
    if colour in ("algorithm", "arm"):
        named = (
            dict(zip(data["arm"], data["algorithm"], strict=True))
            if {"arm", "algorithm"} <= set(data)
            else {}
        )
        known = (*palette.algorithms, *palette.neighbours)
        pairs = []
        for group in groups:
            starts = [name for name in known if group == name or group.startswith((f"{name},", f"{name} "))]
            pairs.append((group, str(named.get(group, max(starts, key=len, default=group)))))
        return styles(pairs, palette)
    colours = (
        [*palette.algorithms.values(), *palette.others] if colour else [list(palette.algorithms.values())[2]]
    )
    return {
        g: Style(colours[i % len(colours)], DASHES[i // len(colours) % len(DASHES)], "circle")
        for i, g in enumerate(groups)
    }
