"""Effects with their intervals under each other: differences of shares above, factors below, coloured by verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.app.figures.panes import scatter
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import Palette, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

LINE, GAP, TOP, BOTTOM = 17, 15, 30, 52  # pixels
_LABEL, _TOLD = 48, 42  # characters of a line
SHARE, FACTOR = "share", "factor"
_TITLES = {
    SHARE: "difference of the shares of runs that collapse (fraction; above 0: as the claim says)",
    FACTOR: "factor (ratio, log scale; above 1: as the claim says)",
}


@dataclass(frozen=True)
class Effect:
    """One line: `kind` is share or factor, `told` what stands beside it (counts, seeds), `tone` an outcome's colour."""

    label: str
    kind: str
    value: float
    low: float
    high: float
    told: str
    tone: str = ""


def forest(effects: Sequence[Effect], palette: Palette) -> go.Figure:
    """The figure; at least one effect."""
    from plotly.subplots import make_subplots

    kinds = [kind for kind in (SHARE, FACTOR) if any(e.kind == kind for e in effects)]
    parts = [[e for e in effects if e.kind == kind] for kind in kinds]
    tall = [sum(_height(e) for e in part) for part in parts]
    between = BOTTOM + 14
    inner = sum(tall) + between * (len(parts) - 1)
    figure = make_subplots(
        len(parts),
        1,
        vertical_spacing=between / inner if len(parts) > 1 else 0,
        row_heights=[t / sum(tall) for t in tall],
    )
    for row, (kind, part) in enumerate(zip(kinds, parts, strict=True), start=1):
        _panel(figure, row, kind, part, palette)
    figure.update_layout(
        template=template(palette), height=TOP + inner + BOTTOM, showlegend=False, dragmode=False,
        margin={"t": TOP, "b": BOTTOM, "l": 8, "r": 12},
    )  # fmt: skip
    return figure


def _height(effect: Effect) -> int:
    lines = [wrapped(effect.label, _LABEL).count("<br>"), wrapped(effect.told, _TOLD).count("<br>")]
    return LINE * (max(lines) + 1) + GAP


def _panel(figure: go.Figure, row: int, kind: str, part: Sequence[Effect], palette: Palette) -> None:
    places, top = [], 0.0
    for effect in part:
        places.append(top + _height(effect) / 2)
        top += _height(effect)
    none = 0.0 if kind == SHARE else 1.0
    figure.add_trace(
        scatter(x=[none, none], y=[0, top], mode="lines", hoverinfo="skip",
                   line={"color": palette.muted, "width": 1, "dash": "2px,3px"}), row, 1,
    )  # fmt: skip
    for effect, place in zip(part, places, strict=True):
        colour = palette.outcomes.get(effect.tone, palette.muted)
        figure.add_trace(
            scatter(x=[effect.low, effect.high], y=[place, place], mode="lines", hoverinfo="skip",
                       line={"color": colour, "width": 2.4}), row, 1,
        )  # fmt: skip
        figure.add_trace(
            scatter(
                x=[effect.value], y=[place], mode="markers", marker={"color": colour, "size": 10, "symbol": "diamond"},
                hovertemplate=f"<b>{wrapped(effect.label, 60)}</b><br>%{{x:.3~g}}, 95 % interval {effect.low:.3g} to "
                f"{effect.high:.3g}<br>{wrapped(effect.told, 60)}<extra></extra>",
            ), row, 1,
        )  # fmt: skip
    figure.update_xaxes(title_text=_TITLES[kind], domain=[0, 0.62], fixedrange=True, row=row, col=1)
    if kind == SHARE:
        figure.update_xaxes(range=[-1.05, 1.05], tickformat="+.1~f", row=row, col=1)
    else:
        ends = [math.log10(max(v, 1e-9)) for e in part for v in (e.low, e.high, 1.0)]
        pad = 0.06 * (max(ends) - min(ends)) + 0.02
        span = [min(ends) - pad, max(ends) + pad]
        figure.update_xaxes(type="log", exponentformat="none", range=span, nticks=8, row=row, col=1)
    figure.update_yaxes(
        range=[top, 0], tickmode="array", tickvals=places, ticktext=[wrapped(e.label, _LABEL) for e in part],
        showgrid=False, fixedrange=True, tickfont={"color": palette.text, "size": 12}, row=row, col=1,
    )  # fmt: skip
    axis = next(figure.select_yaxes(row=row, col=1))
    for effect, place in zip(part, places, strict=True):
        figure.add_annotation(
            text=wrapped(effect.told, _TOLD), x=0.64, y=place, xref="paper", yref=axis.plotly_name.replace("axis", ""),
            xanchor="left", yanchor="middle", align="left", showarrow=False, font={"size": 12, "color": palette.text},
        )  # fmt: skip
    figure.add_annotation(
        text=figure_text("difference" if kind == SHARE else "factor") + ", 95 % interval, found, seeds, verdict",
        x=0.64, y=axis.domain[1], xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=4,
        showarrow=False, font={"size": 12, "color": palette.muted},
    )  # fmt: skip
