"""Heat maps of the turn ledger: turn index against training, an arm a map, all on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.app.figures.panes import Pane, Trace, note, panes
from workbench.app.figures.tiles import Heat, Measure, tiles
from workbench.app.safe import figure_text, wrapped
from workbench.app.series import Window
from workbench.app.shading import Shading
from workbench.app.theme import Palette, Style, faded, scale, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
