"""What the figures share: axis titles, small multiples, headings, marks of events, and plain traces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.app.text import figure_text, visible
from workbench.app.theme import Palette, template

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import plotly.graph_objects as go

Trace = dict[str, Any]  # as plotly reads it from JSON

# x-axis -> its title: what is counted, in which unit, from where.
AXES = {
    "step": "training step (iteration, from 0)",
    "updates": "optimizer updates since the beginning (count)",
    "tokens": "tokens trained on since the beginning, each epoch counted (tokens)",
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
    "other": ("circle-open", "other event", "muted"),
}
LEGEND_ROW = 23  # pixels
DOTTED = "2px,3px"


def figure(
    traces: Iterable[Trace | None], palette: Palette, *, height: float, top: float, bottom: float,
    annotations: Iterable[Trace] = (), **layout: Any,
) -> go.Figure:  # fmt: skip
    """Make a figure of plain traces, `height` pixels tall with margins `top` and `bottom`; None is no trace.

    plotly does not check them here, because that takes longer than the rest of a figure of a thousand curves (the tests
    have it check them). For the same reason panels are placed by `panes`, not by `make_subplots`.
    """
    import plotly.graph_objects as go

    fixed = {
        "template": template(palette), "height": int(height), "margin": {"t": top, "b": bottom, "l": 8, "r": 12},
        "showlegend": False, "dragmode": False, "annotations": list(annotations),
    }  # fmt: skip
    return go.Figure([trace for trace in traces if trace is not None], fixed | layout, _validate=False)


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis without zoom; `title` is literal."""
    return {"title": {"text": figure_text(title)}, "fixedrange": True, **more}


def steps_axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis that counts steps."""
    return axis(title, separatethousands=True, **more)


def scatter(**of: Any) -> Trace:
    """Return a trace of points or lines."""
    return {"type": "scatter", **of}


def segments(starts: Iterable[float], ends: Iterable[float], heights: Iterable[float]) -> dict[str, np.ndarray]:
    """Return x and y of horizontal lines with a gap between them."""
    import numpy as np

    first, last, y = (np.asarray(values, dtype=float) for values in (starts, ends, heights))
    gap = np.full(len(y), np.nan)
    return {"x": np.column_stack([first, last, gap]).ravel(), "y": np.column_stack([y, y, gap]).ravel()}


@dataclass(frozen=True)
class Pane:
    """One of the small multiples: its place from 0, its column, and its ends as fractions of the drawing area."""

    number: int
    column: int
    is_last: bool  # no pane below it
    x: tuple[float, float]
    y: tuple[float, float]

    @property
    def suffix(self) -> str:
        """The number of its axes in their names: the first has none."""
        return str(self.number + 1) if self.number else ""

    @property
    def axes(self) -> dict[str, str]:
        """Its axes, as a trace names them."""
        return {"xaxis": f"x{self.suffix}", "yaxis": f"y{self.suffix}"}

    def placed(self, x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
        """Return its axes with their settings `x` and `y`, for the layout."""
        return {
            f"xaxis{self.suffix}": {"domain": list(self.x), "anchor": self.axes["yaxis"], **x},
            f"yaxis{self.suffix}": {"domain": list(self.y), "anchor": self.axes["xaxis"], **y},
        }


def panes(count: int, across: int, gap_x: float, gap_y: float) -> Iterator[Pane]:
    """Yield `count` panes in rows of `across`, from the upper left; gaps as fractions of the drawing area."""
    rows = math.ceil(count / across)
    wide, tall = (1 - (across - 1) * gap_x) / across, (1 - (rows - 1) * gap_y) / rows
    for number in range(count):
        row, column = divmod(number, across)
        left, top = column * (wide + gap_x), 1 - row * (tall + gap_y)
        ends = (left, min(1.0, left + wide)), (max(0.0, top - tall), top)
        yield Pane(number, column, number + across >= count, *ends)


def note(text: str, x: float, y: float, **more: Any) -> Trace:
    """Return the annotation of a line of markup at a point of the drawing area."""
    return {"text": text, "x": x, "y": y, "xref": "paper", "yref": "paper", "showarrow": False, **more}


def heading(name: str, text: str, palette: Palette, *, x: float = 0.0, y: float = 1.0, yshift: int = 8) -> Trace:
    """Return the annotation above a figure or pane: its name in bold, `text` (markup) in small letters below it."""
    words = f"<b>{figure_text(name)}</b><br><span style='font-size:12px;color:{palette.muted}'>{text}</span>"
    return note(words, x, y, xanchor="left", yanchor="bottom", yshift=yshift, align="left", font={"size": 14})


def arm_label(arm: str, colour: str, pane: Pane) -> Trace:
    """Return the annotation above a pane that shows one arm."""
    text = f"<span style='color:{colour}'>■</span> {figure_text(arm if len(arm) <= 56 else arm[:55] + '…')}"
    return note(text, pane.x[0], pane.y[1], xanchor="left", yanchor="bottom", yshift=7, hovertext=figure_text(arm))


def colour_axis(unit: str, height: float, palette: Palette, **more: Any) -> dict[str, Any]:
    """Return the colour axis that all panes share, with its bar to their right."""
    return {
        "colorbar": {
            "thickness": 12, "lenmode": "pixels", "len": max(min(height, 260), 130), "y": 1, "yanchor": "top",
            "x": 1.005, "title": {"text": figure_text(unit), "side": "right",
                                  "font": {"color": palette.muted, "size": 13}}, **more.pop("bar", {}),
        }, **more,
    }  # fmt: skip


def legend_rows(names: Sequence[str], width: int) -> int:
    """Return the rows of a legend on a screen of `width` pixels: an entry takes its sample, its text and a gap."""
    return max(1, math.ceil(sum(66 + 6.4 * len(name) for name in names) / width))


def legend_on_top(**more: Any) -> dict[str, Any]:
    """Return a legend at the upper edge of the figure."""
    return {"yref": "container", "y": 1, "yanchor": "top", **more}


def stacked(events: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return events with `shape` (a key of KINDS), in its order, and `above`: how many of the same `by` precede."""
    events = events.assign(shape=[kind if kind in KINDS else "other" for kind in events["kind"]])
    events = events.assign(rank=events["shape"].map(list(KINDS).index)).sort_values([*by, "rank"], kind="stable")
    return events.assign(above=events.groupby(list(by)).cumcount())


def event_marks(events: pd.DataFrame, carried: Sequence[Any], palette: Palette) -> Iterator[Trace]:
    """Yield a trace for each kind of event of `stacked`, from columns x, y, text; a mark has its entry of `carried`."""
    import pandas as pd

    carry = pd.Series(list(carried), index=events.index, dtype=object)
    for kind, (symbol, words, tone) in KINDS.items():
        part = events[events["shape"] == kind]
        if len(part):
            colour = palette.outcomes.get(tone, palette.muted)
            yield scatter(
                x=part["x"].tolist(), y=part["y"].tolist(), mode="markers", name=words, cliponaxis=False,
                marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1.4, "color": colour}},
                customdata=carry[part.index].tolist(), text=part["text"].tolist(), showlegend=True,
                hovertemplate="%{text}<extra></extra>",
            )  # fmt: skip


def kind_in_words(kind: object) -> str:
    """Return the kind of an event as markup: `guard_mask` is `guard mask`."""
    return figure_text(visible(kind).replace("_", " "))


def is_wide(values: Sequence[float] | np.ndarray) -> bool:
    """True where a linear axis would hide most of the values: all positive, the largest 50 times the median."""
    import numpy as np

    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    if not len(known) or known.min() <= 0:
        return False
    return bool(known.max() > 50 * np.partition(known, len(known) // 2)[len(known) // 2])


def round_up(limit: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    decade = 10.0 ** math.floor(math.log10(limit))
    return next(n * decade for n in (1, 2, 5, 10) if n * decade >= limit * (1 - 1e-9))
