"""Where the wall time of a run went: seconds a step, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.app.series import AXES
from workbench.app.theme import Palette, template
from workbench.app.wording import duration, percent

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

HEIGHT, HEAD, BOTTOM = 300, 72, 48  # pixels
PARTS = {
    "rollout": "sampling rollouts", "update": "updates", "evaluation": "held-out evaluation",
    "record": "measuring and recording", "rest": "the rest",
}  # fmt: skip
_LEAST = 0.002  # share of the whole below which the rest is rounding


def shares(spent: pd.DataFrame) -> dict[str, float]:
    """Part -> its seconds over all steps, of the parts that were measured; `spent` is the answer to query `spent`."""
    sums = {part: float(spent[part].sum()) for part in PARTS if part != "rest" and spent[part].notna().any()}
    inside = sum(seconds for part, seconds in sums.items() if part != "record")  # recording is not in the total
    rest = float(spent["total"].sum()) - inside
    if sums and rest > _LEAST * (sum(sums.values()) + rest):
        sums["rest"] = rest
    return sums


def spending(spent: pd.DataFrame, palette: Palette) -> go.Figure:
    """The figure: stacked bars, a bar a bucket of steps, whose parts add up to the mean wall time of a step."""
    import plotly.graph_objects as go

    sums = shares(spent)
    whole = sum(sums.values())
    each = spent.assign(rest=spent["total"] - spent[["rollout", "update", "evaluation"]].sum(axis=1))
    shades = palette.sequential
    colours = dict(zip(PARTS, (shades[2], shades[4], shades[3], palette.muted, palette.grid), strict=True))
    figure = go.Figure()
    for part, seconds in sums.items():
        figure.add_trace(
            go.Bar(
                x=each["step"] + (each["steps"] - 1) / 2, y=each[part] / each["steps"], width=each["steps"] * 0.86,
                name=f"{PARTS[part]} {duration(seconds)}, {percent(seconds / whole)}" if whole else PARTS[part],
                marker={"color": colours[part], "line": {"width": 0}}, customdata=each["steps"],
                hovertemplate=f"{PARTS[part]}<br>step %{{x:,.6~g}}: %{{y:.4~g}} s<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(
        template=template(palette), height=HEIGHT, barmode="stack", bargap=0, dragmode=False, showlegend=True,
        margin={"t": HEAD, "b": BOTTOM, "l": 8, "r": 12},
        legend={"yref": "container", "y": 1, "yanchor": "top", "itemwidth": 30, "traceorder": "normal"},
    )  # fmt: skip
    figure.update_xaxes(title_text=AXES["step"], separatethousands=True, fixedrange=True)
    figure.update_yaxes(title_text="wall time of a step (s)", rangemode="tozero", fixedrange=True)
    return figure
