"""What the figures share: axis titles, small multiples, headings, marks of events, and plain traces."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import make_colorscale

from sorl.app.text import figure_text
from sorl.app.theme import Palette, faded, template

Trace = dict[str, Any]  # as plotly reads it from JSON

# x-axis -> its title: what is counted, in which unit, from where.
AXES = {
    "step": "training step (iteration, from 0)",
    "updates": "optimizer updates since the beginning (count)",
    "seconds": "training time since the beginning (seconds)",
    "tokens": "tokens trained on since the beginning, each epoch counted (tokens)",
    "fork": "steps since the fork (0 = the first of its own)",
    "onset": "steps from the onset of the collapse (0 = onset)",
}
# Kind of event -> symbol, words, and its colour: that of an outcome, or muted. Other kinds get the last.
KINDS = {
    "alarm": ("triangle-up-open", "alarm", "muted"),
    "onset": ("triangle-down", "onset of the collapse", "collapsed"),
    "collapse": ("x", "collapse detected", "collapsed"),
    "mild": ("triangle-down-open", "mild fall", "mild"),
    "recovered": ("triangle-up", "recovered", "healthy"),
    "entropy_collapse": ("diamond-open", "entropy collapse", "diverged"),
    "entropy_explosion": ("diamond", "entropy explosion", "diverged"),
    "format_collapse": ("square", "format collapse", "diverged"),
    "echo_trap": ("star", "echo trap", "diverged"),
    "non_finite": ("asterisk-open", "NaN or Inf", "diverged"),
    "rollback": ("triangle-left", "rolled back", "muted"),
    "note": ("bowtie", "note", "muted"),
    "other": ("circle-open", "other event", "muted"),
}
LEGEND_ROW = 23  # pixels
DOTTED = "2px,3px"


def figure(
    traces: Sequence[Trace], palette: Palette, *, inner: int, top: int, bottom: int, **layout: Any
) -> go.Figure:
    """Make a figure of plain traces, `inner` pixels tall between margins `top` and `bottom`."""
    # plotly does not check them here, because that takes longer than the rest of a figure of a thousand
    # curves (the tests have it check them). For the same reason `panes` places panels, not `make_subplots`.
    margin = {"t": top, "b": bottom, "l": 8, "r": 12}
    fixed = {"template": template(palette), "margin": margin, "showlegend": False, "dragmode": False}
    return go.Figure(list(traces), fixed | {"height": top + inner + bottom} | layout, _validate=False)


def trace(hover: str = "", **of: Any) -> Trace:
    """Return a trace, of points or lines unless `type` says otherwise; without `hover` the pointer passes
    through.
    """
    about = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
    return {"type": "scatter", **about, **of}


def line(
    x: Any, y: Any, colour: str, width: float = 2, hover: str = "", *, dash: str = "solid", **of: Any
) -> Trace:
    """Return a line through points; `of` may say more, or otherwise."""
    look = {"color": colour, "width": width, "dash": dash}
    return trace(hover, **{"x": x, "y": y, "mode": "lines", "line": look} | of)


def marks(x: Any, y: Any, symbol: Any, size: float, colour: Any, hover: str = "", **of: Any) -> Trace:
    """Return marks at points with an edge of their colour; `of` may say more, or otherwise."""
    marker = {
        "symbol": symbol,
        "size": size,
        "color": colour,
        "line": {"color": colour, "width": of.pop("edge", 0)},
    }
    return trace(hover, **{"x": x, "y": y, "mode": "markers", "marker": marker} | of)


def whiskers(up: Any, down: Any, colour: str, **look: Any) -> dict[str, Any]:
    """Return error bars that reach so far `up` and `down`; NaN is none."""
    up, down = (np.nan_to_num(np.asarray(ends, dtype=float)).tolist() for ends in (up, down))
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "color": colour, **look}


def area(x: Any, low: Any, high: Any, colour: str, opacity: float, **more: Any) -> Trace:
    """Return the filled area between two curves."""
    look = {"mode": "lines", "fill": "toself", "fillcolor": faded(colour, opacity), "line": {"width": 0}}
    return trace(x=np.append(x, x[::-1]), y=np.append(high, low[::-1]), **look | more)


def segments(starts: Any, ends: Any, heights: Any) -> Trace:
    """Return x and y of horizontal lines with a gap between them."""
    y = np.asarray(heights, dtype=float)
    return {
        "x": np.column_stack([starts, ends, np.full(len(y), np.nan)]).astype(float).ravel(),
        "y": y.repeat(3),
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis without zoom; `title` is literal."""
    return {"title": {"text": figure_text(title)}, "fixedrange": True, **more}


def log_scale(label: str) -> dict[str, Any]:
    """Return the settings of a logarithmic axis; `label` is literal."""
    title = {"text": figure_text(f"{label}, log scale".lstrip(", "))}
    return {"type": "log", "title": title, "tickformat": "~g"}  # powers would be set in a larger font


def vertical(x: float, colour: str, dash: str | None = DOTTED) -> dict[str, Any]:
    """Return a line at `x` over the height of the first panel."""
    line = {"color": colour, "width": 1.2, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "y domain", "line": line}


class Pane(NamedTuple):
    """One of the small multiples: its place from 0, its column, and its ends as fractions of the drawing
    area.
    """

    number: int
    column: int
    is_last: bool  # no pane below it
    x: tuple[float, float]
    y: tuple[float, float]

    @property
    def axes(self) -> dict[str, str]:
        """Its axes, as a trace names them: the first have no number."""
        suffix = str(self.number + 1) if self.number else ""
        return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}

    def placed(self, x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
        """Return its axes with their settings `x` and `y`, for the layout."""
        own = self.axes
        return {
            own["xaxis"].replace("x", "xaxis"): {"domain": list(self.x), "anchor": own["yaxis"], **x},
            own["yaxis"].replace("y", "yaxis"): {"domain": list(self.y), "anchor": own["xaxis"], **y},
        }

    def shared(self, x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
        """Return the axes of a map, which move together; only the outermost have titles and tick labels."""
        return self.placed(
            *(
                {
                    "showgrid": False,
                    "matches": name if self.number else None,
                    "showticklabels": shown,
                    **settings,
                }
                | ({} if shown else {"title": {"text": ""}})
                for name, settings, shown in (("x", x, self.is_last), ("y", y, self.column == 0))
            )
        )


class Contents(NamedTuple):
    """What the panes of a figure hold: each pane is added as it is drawn."""

    traces: list[Trace]
    annotations: list[Trace]
    layout: dict[str, Any]


def panes(count: int, across: int, gap_x: float, gap_y: float) -> Iterator[Pane]:
    """Yield `count` panes in rows of `across`, from the upper left; gaps as fractions of the drawing area."""
    rows = math.ceil(count / across)
    wide = (1 - (across - 1) * gap_x) / across
    tall = (1 - (rows - 1) * gap_y) / rows
    for number in range(count):
        row, column = divmod(number, across)
        left = column * (wide + gap_x)
        top = 1 - row * (tall + gap_y)
        ends = (left, min(1.0, left + wide)), (max(0.0, top - tall), top)
        yield Pane(number, column, number + across >= count, *ends)


def note(text: str, x: float, y: float, **more: Any) -> Trace:
    """Return the annotation of a line of markup at a point of the drawing area."""
    return {"text": text, "x": x, "y": y, "xref": "paper", "yref": "paper", "showarrow": False, **more}


def heading(
    name: str, text: str, palette: Palette, *, x: float = 0.0, y: float = 1.0, yshift: int = 8
) -> Trace:
    """Return the annotation above a figure or pane: its name in bold, `text` (markup) in small letters below
    it.
    """
    words = f"<b>{figure_text(name)}</b><br><span style='font-size:12px;color:{palette.muted}'>{text}</span>"
    return note(words, x, y, xanchor="left", yanchor="bottom", yshift=yshift, align="left", font={"size": 14})


def swatch(colour: str) -> str:
    """Return a small square of a colour, as markup."""
    return f"<span style='color:{colour}'>■</span>"


def arm_label(arm: str, colour: str, pane: Pane, below: str = "") -> Trace:
    """Return the annotation above a pane that shows one arm: its name, cut to the pane, and markup in a
    second line.
    """
    name = short(arm, int(125 * (pane.x[1] - pane.x[0])))
    text = f"{swatch(colour)} {name}"
    if below:
        text += f"<br>{below}"
    look = {
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 7,
        "align": "left",
        "hovertext": figure_text(arm),
    }
    return note(text, pane.x[0], pane.y[1], **look)


def short(name: str, most: int) -> str:
    """Return a name as markup, cut to `most` characters."""
    return figure_text(name if len(name) <= most else name[: most - 1] + "…")


def nothing(pane: Pane | None, palette: Palette) -> Trace:
    """Return the annotation in the middle of a pane, or of the only one, that has nothing to draw."""
    x, y = (sum(ends) / 2 for ends in (pane.x, pane.y)) if pane else (0.5, 0.5)
    return note("not measured in these runs", x, y, font={"color": palette.muted})


def colour_axis(
    unit: str, height: float, palette: Palette, colours: Sequence[str], ends: tuple[float, float], **bar: Any
) -> dict[str, Any]:
    """Return the colour axis that all panes share, with its bar to their right."""
    title = {"text": figure_text(unit), "side": "right", "font": {"color": palette.muted, "size": 13}}
    size = {"thickness": 12, "lenmode": "pixels", "len": max(min(height, 260), 130)}
    bar = size | {"y": 1, "yanchor": "top", "x": 1.005, "title": title} | bar
    return {"cmin": ends[0], "cmax": ends[1], "colorscale": make_colorscale(colours), "colorbar": bar}


def legend_rows(names: Sequence[str], width: int) -> int:
    """Return the rows of a legend on a screen of `width` pixels: an entry takes its sample, its text and a
    gap.
    """
    return max(1, math.ceil(sum(66 + 6.4 * len(name) for name in names) / width))


def legend_on_top(**more: Any) -> dict[str, Any]:
    """Return the settings of a figure with a legend at its upper edge."""
    return {"showlegend": True, "legend": {"yref": "container", "y": 1, "yanchor": "top", **more}}


def stacked(events: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return events with `shape` (of KINDS), in its order, the kind in `words`, and how many of one `by`
    precede.
    """
    shape = events["kind"].where(events["kind"].isin(KINDS), "other")
    events = events.assign(words=events["kind"].map(lambda kind: figure_text(str(kind).replace("_", " "))))
    events = events.assign(shape=pd.Categorical(shape, list(KINDS), ordered=True)).sort_values([*by, "shape"])
    return events.assign(above=events.groupby(list(by)).cumcount())


def event_marks(events: pd.DataFrame, palette: Palette) -> Iterator[Trace]:
    """Yield a trace for each kind of event of `stacked`, from columns x, y, text and carried (what a click
    tells).
    """
    for kind, part in events.groupby("shape", observed=True):
        symbol, name, tone = KINDS[str(kind)]
        x, y, text, carried = (part[column].tolist() for column in ("x", "y", "text", "carried"))
        more = {"text": text, "customdata": carried, "name": name, "showlegend": True, "cliponaxis": False}
        yield marks(x, y, symbol, 9, palette.outcomes.get(tone, palette.muted), "%{text}", edge=1.4, **more)


def is_wide(values: Sequence[float] | np.ndarray) -> bool:
    """True where a linear axis would hide most of the values: all positive, the largest 50
    times the median.
    """
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    return len(known) > 0 and bool(known.min() > 0 and known.max() > 50 * np.median(known))


def round_up(limit: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    decade = 10.0 ** math.floor(math.log10(limit))
    return next(n * decade for n in (1, 2, 5, 10) if n * decade >= limit * (1 - 1e-9))
