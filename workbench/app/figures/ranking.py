"""The trajectories of one step, ranked: how much of the batch's gradient and of its ratio mass each one carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.app.safe import figure_text, wrapped
from workbench.app.theme import Palette, faded, template
from workbench.app.wording import number, word

if TYPE_CHECKING:
    import plotly.graph_objects as go

SHARES = {"gradient_share": "share of the gradient", "ratio_mass": "share of the ratio mass"}
HEIGHT, TOP, BOTTOM = 340, 55, 48  # pixels


def ranking(
    rows: Sequence[Mapping[str, Any]], equal: float, palette: Palette, step: int, chosen: int | None
) -> go.Figure:
    """Two bars a trajectory, the worst on top; `rows` as query `ranking` gives them, in the order to draw.

    `equal` is the share that every trajectory would have if all were alike (fraction). A mark carries its trajectory.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    places = list(range(len(rows)))
    colours = [palette.outcomes["healthy"] if row["success"] else palette.muted for row in rows]
    top = max([equal, *(v for row in rows for name in SHARES if (v := _finite(row[name])) is not None)])
    for column, (name, words) in enumerate(SHARES.items(), start=1):
        values = [_finite(row[name]) for row in rows]
        figure.add_trace(
            go.Bar(y=places, x=values, orientation="h", marker={"color": colours}, width=0.62, hoverinfo="skip"),
            1, column,
        )  # fmt: skip
        figure.add_trace(
            go.Scatter(
                y=places, x=[v or 0 for v in values], mode="text", textposition="middle right", hoverinfo="skip",
                text=[f" {_share(row[name])}" for row in rows], textfont={"color": palette.muted, "size": 12},
                cliponaxis=False,
            ),
            1, column,
        )  # fmt: skip
        figure.add_trace(_targets(rows, places, top), 1, column)
        figure.add_vline(x=equal, line={"color": palette.muted, "width": 1, "dash": "2px,3px"}, row=1, col=column)
        figure.update_xaxes(
            title_text=f"{words} (fraction)", range=[0, top * 1.24], nticks=5, fixedrange=True, row=1, col=column
        )
    here = next((i for i, row in enumerate(rows) if row["trajectory"] == chosen), None)
    if here is not None:
        figure.add_hrect(
            y0=here - 0.5, y1=here + 0.5, fillcolor=faded(palette.text, 0.08), line={"width": 0}, layer="below",
            row="all", col="all",
        )  # fmt: skip
    figure.update_yaxes(
        range=[max(len(rows), 6) - 0.4, -0.6], tickmode="array", tickvals=places, fixedrange=True, showgrid=False,
        ticktext=[f"<b>{row['trajectory']}</b>" if row["kept"] else str(row["trajectory"]) for row in rows],
        tickfont={"color": palette.text},
    )  # fmt: skip
    figure.update_yaxes(title_text="trajectory", col=1)
    figure.update_layout(
        template=template(palette), height=HEIGHT, showlegend=False, dragmode=False, bargap=0.2, hoverdistance=400,
        margin={"t": TOP, "b": BOTTOM, "l": 8, "r": 12},
    )  # fmt: skip
    _head(figure, palette, step)
    return figure


def _head(figure: go.Figure, palette: Palette, step: int) -> None:
    key = f"<span style='color:{palette.outcomes['healthy']}'>■</span> solved · " + (
        f"<span style='color:{palette.muted}'>■</span> not solved · bold: tokens kept · dotted: an equal share"
    )
    figure.add_annotation(
        text=f"<b>Trajectories of step {step:,}</b><br><span style='font-size:12px;color:{palette.muted}'>{key}</span>",
        x=0, y=1, xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=8, align="left", showarrow=False,
        font={"size": 14},
    )  # fmt: skip


def _targets(rows: Sequence[Mapping[str, Any]], places: Sequence[int], top: float) -> go.Scatter:
    """What the pointer meets: unseen marks along the row of each trajectory."""
    import plotly.graph_objects as go

    along = [top * share for share in (0.05, 0.3, 0.55, 0.8, 1.05)]
    return go.Scatter(
        x=[x for _ in rows for x in along], y=[place for place in places for _ in along], mode="markers",
        marker={"size": 14, "opacity": 0}, customdata=[int(row["trajectory"]) for row in rows for _ in along],
        text=[text for row in rows for text in [_about(row)] * len(along)], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _about(row: Mapping[str, Any]) -> str:
    lines = [f"<b>trajectory {row['trajectory']}</b>, {'tokens kept' if row['kept'] else 'tokens not kept'}"]
    lines += [f"{name}: {wrapped(word(row[name]), 60)}" for name in ("question", "gold", "answer")]
    lines.append(f"largest token ratio {figure_text(number(row['ratio_max']))}")
    if row["worst_turn"] is not None:
        lines.append(f"turn {row['worst_turn']} moved most: sum of log-ratios {number(row['worst_log_ratio'])} nats")
    return "<br>".join(lines)


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) <= 1e9 else None


def _share(value: float | None) -> str:
    return "not measured" if value is None else figure_text(number(value))
