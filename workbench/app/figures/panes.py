"""What the figures share: small multiples, traces as plain dicts, headings.

Plain dicts, as plotly reads them from JSON: its own subplots take longer to make than the rest of a figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.app.theme import Palette

Trace = dict[str, Any]  # as plotly reads it from JSON


@dataclass(frozen=True)
class Pane:
    """One of the small multiples: its place from 0, its column, and its ends as fractions of the drawing area."""

    number: int
    column: int
    is_last: bool  # no pane below it
    x: tuple[float, float]
    y: tuple[float, float]

    @property
    def axes(self) -> dict[str, str]:
        """Its axes, as a trace names them."""
        return {"xaxis": f"x{self._suffix}", "yaxis": f"y{self._suffix}"}

    def placed(self, x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
        """The axes with their settings `x` and `y`, for the layout."""
        mine = self.axes
        return {
            f"xaxis{self._suffix}": {"domain": list(self.x), "anchor": mine["yaxis"], **x},
            f"yaxis{self._suffix}": {"domain": list(self.y), "anchor": mine["xaxis"], **y},
        }

    @property
    def _suffix(self) -> str:
        return str(self.number + 1) if self.number else ""


def panes(count: int, across: int, gap_x: float, gap_y: float) -> list[Pane]:
    """`count` panes in rows of `across`, from the upper left; gaps as fractions of the drawing area."""
    rows = math.ceil(count / across)
    wide, tall = (1 - (across - 1) * gap_x) / across, (1 - (rows - 1) * gap_y) / rows
    found = []
    for number in range(count):
        row, column = divmod(number, across)
        left, top = column * (wide + gap_x), 1 - row * (tall + gap_y)
        ends = (left, min(1.0, left + wide)), (max(0.0, top - tall), top)
        found.append(Pane(number, column, number + across >= count, *ends))
    return found


def note(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """A line of text at a point of the drawing area."""
    return {"text": text, "x": x, "y": y, "xref": "paper", "yref": "paper", "showarrow": False, **more}


def scatter(**of: Any) -> Trace:
    """A trace of points or lines."""
    return {"type": "scatter", **of}


def bar(**of: Any) -> Trace:
    """A trace of bars."""
    return {"type": "bar", **of}


def heatmap(**of: Any) -> Trace:
    """A trace of coloured cells."""
    return {"type": "heatmap", **of}


def heading(
    name: str, text: str, palette: Palette, *, x: float = 0.0, y: float = 1.0, yshift: int = 8
) -> dict[str, Any]:
    """The annotation above a figure or pane: its name in bold, `text` in small letters below it; both are markup."""
    words = f"<b>{name}</b><br><span style='font-size:12px;color:{palette.muted}'>{text}</span>"
    return note(words, x, y, xanchor="left", yanchor="bottom", yshift=yshift, align="left", font={"size": 14})


def unmeasured(what: str, palette: Palette) -> dict[str, Any]:
    """The annotation in the middle of an empty figure."""
    return note(f"not measured in {what}", 0.5, 0.5, font={"color": palette.muted})
