"""The curves behind a diagnosis: the reward and what the findings cite, a panel a metric, with the steps
marked.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from sorl.app.figures import common
from sorl.app.figures.common import Pane, Trace
from sorl.app.text import figure_text
from sorl.app.theme import Palette

POINTS = 1_500  # of a curve that are drawn
_TITLE = 40  # characters of a metric's names that fit beside each other on a narrow screen
_FALL = "▼"
_BROKEN = 200  # marks of values that are no numbers
# pixels
_PANEL = 120
_GAP = 58
_TOP = 44
_BOTTOM = 48


class Mark(NamedTuple):
    """A step that a finding names: the numbers of the findings, and how bad the worst of them is."""

    step: int
    label: str
    severity: str


class Cited(NamedTuple):
    """A metric of a log over its steps, with what is marked in it."""

    metric: str  # as the log calls it
    column: str  # as it was read
    steps: np.ndarray
    values: np.ndarray  # NaN where nothing was logged
    broken: np.ndarray  # steps in which it was logged as NaN or infinite
    marks: Sequence[Mark]

    @property
    def frame(self) -> pd.DataFrame:
        """Its values, a row a step in which one was logged."""
        points = pd.DataFrame({"metric": self.metric, "step": self.steps, "value": self.values})
        return points.dropna(subset=["value"])


def evidence(panels: Sequence[Cited], onset: int | None, palette: Palette) -> go.Figure:
    """Draw the panels below each other on one axis of steps; `onset`: the step after which the run fell."""
    count = len(panels)
    inner = count * _PANEL + (count - 1) * _GAP
    traces: list[Trace] = []
    annotations: list[Trace] = []
    shapes: list[Trace] = []
    layout: Trace = {}
    for panel, pane in zip(panels, common.panes(count, 1, 0, _GAP / inner), strict=True):
        traces += [drawn | pane.axes for drawn in _curve(panel, palette)]
        annotations.append(_title(panel, pane, palette))
        for mark in (*_fall(onset, pane), *panel.marks):
            shapes.append(_line(mark, pane, palette))
            annotations.append(_label(mark, pane, palette))
        layout |= _axes(panel, pane)
    layout |= {"annotations": annotations, "shapes": shapes}
    return common.figure(traces, palette, inner=inner, top=_TOP, bottom=_BOTTOM, **layout)


def _fall(onset: int | None, pane: Pane) -> list[Mark]:
    """Return the mark of the fall, if there was one; above the first panel it has a sign."""
    if onset is None:
        return []
    return [Mark(onset, "" if pane.number else _FALL, "onset")]


def _axes(panel: Cited, pane: Pane) -> Trace:
    """Return the axes of a panel: the steps are named below the last one."""
    title = "training step" if pane.is_last else ""
    x_axis = common.axis(title, matches="x" if pane.number else None, showticklabels=pane.is_last)
    y_axis = common.axis(nticks=4, showticklabels=bool(np.isfinite(panel.values).any()))
    if common.is_wide(panel.values):
        y_axis |= common.log_scale("")
    return pane.placed(x_axis, y_axis)


def _curve(panel: Cited, palette: Palette) -> Iterator[Trace]:
    """Yield the line of a metric, and a cross at the lower edge for each value that is no number."""
    colour = list(palette.algorithms.values())[2]
    is_number = np.isfinite(panel.values)
    x = panel.steps[is_number]
    y = panel.values[is_number]
    shown = extremes(y, POINTS)
    hover = f"{figure_text(panel.metric)}<br>step %{{x:,}}: %{{y:.4~g}}"
    mode = "lines+markers" if len(shown) <= 60 else "lines"
    yield common.line(x[shown], y[shown], colour, 1.6, hover, mode=mode, marker={"size": 4})
    if len(panel.broken):
        some = panel.broken[:: -(-len(panel.broken) // _BROKEN)]
        floor = float(y.min()) if len(y) else 0.0
        words = f"{figure_text(panel.metric)}<br>step %{{x:,}}: NaN or infinite"
        ink = palette.outcomes["diverged"]
        yield common.marks(some, np.full(len(some), floor), "x-thin", 7, ink, words, edge=1.4)


def extremes(values: np.ndarray, most: int) -> np.ndarray:
    """Return the places of at most `most` values that keep the lowest and the highest of each stretch."""
    if len(values) <= most:
        return np.arange(len(values))
    ends = np.linspace(0, len(values), most // 2 + 1).astype(int)
    places: set[int] = set()
    for first, end in pairwise(ends):
        places.add(first + int(values[first:end].argmin()))
        places.add(first + int(values[first:end].argmax()))
    return np.array(sorted(places))


def _title(panel: Cited, pane: Pane, palette: Palette) -> Trace:
    """Return the name of a metric above its panel, in small letters how it was read."""
    name = common.short(panel.metric, 48)
    as_read = ""
    is_short = len(panel.metric) + len(panel.column) <= _TITLE
    if panel.column != panel.metric and is_short:
        column = common.short(panel.column, 40)
        as_read = f"  <span style='font-size:12px;color:{palette.muted}'>read as {column}</span>"
    look = {"xanchor": "left", "yanchor": "bottom", "yshift": 18, "align": "left", "font": {"size": 14}}
    return common.note(f"<b>{name}</b>{as_read}", pane.x[0], pane.y[1], **look)


def _ink(mark: Mark, palette: Palette) -> str:
    colours = {
        "critical": palette.outcomes["collapsed"],
        "onset": palette.outcomes["collapsed"],
        "warning": palette.outcomes["mild"],
    }
    return colours.get(mark.severity, palette.muted)


def _line(mark: Mark, pane: Pane, palette: Palette) -> Trace:
    """Return the line over a panel at the step of a mark; the fall's is solid."""
    dash = "solid" if mark.severity == "onset" else common.DOTTED
    axes = pane.axes
    return common.vertical(mark.step, _ink(mark, palette), dash) | {
        "xref": axes["xaxis"],
        "yref": f"{axes['yaxis']} domain",
    }


def _label(mark: Mark, pane: Pane, palette: Palette) -> Trace:
    """Return what stands above the line of a mark: the numbers of the findings, or that of the fall."""
    axes = pane.axes
    return {
        "text": mark.label,
        "x": mark.step,
        "y": 1,
        "xref": axes["xaxis"],
        "yref": f"{axes['yaxis']} domain",
        "showarrow": False,
        # A fall and a finding are often a step apart: one stands on the left of its line, one on the right.
        "xanchor": "right" if mark.severity == "onset" else "left",
        "yanchor": "bottom",
        "font": {"size": 12, "color": _ink(mark, palette)},
    }
