"""Kaplan-Meier curves of the arms: the share of runs still up, with censoring ticks and the runs at risk below."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from workbench.app.safe import figure_text
from workbench.app.theme import Palette, Style, faded, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

PLOT, ROW, HEAD, AXIS, BOTTOM = 280, 20, 34, 52, 34  # pixels
_FILLED = 3  # arms up to which the interval of each is drawn
_SAMPLE = 0.035  # of the axis, before 0
_APART = 0.011  # of the axis, three pixels: curves that are equal must not hide each other
TITLE = "time trained (steps)"


def survival(
    curves: pd.DataFrame, rows: pd.DataFrame, styles: Mapping[str, Style], palette: Palette, words: str
) -> go.Figure:
    """The figure from survival.curve's `curves` and survival.observed's `rows`; `words` says what the test found.

    Below the curves stand the runs at risk: those that were still watched and up just before that step.
    """
    from plotly.subplots import make_subplots

    arms = list(dict.fromkeys(curves["arm"]))
    below = ROW * len(arms) + 18
    inner = PLOT + AXIS + below
    heights = [PLOT / (PLOT + below), below / (PLOT + below)]
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=AXIS / inner, row_heights=heights)
    end = float(curves["time"].max())
    for arm in arms:
        part = curves[curves["arm"] == arm]
        if len(arms) <= _FILLED and (band := _band(part, styles[arm])) is not None:
            figure.add_trace(band, 1, 1)
    for place, arm in enumerate(arms):
        part, mine = curves[curves["arm"] == arm], rows[rows["arm"] == arm]
        part = part.assign(y=part["survival"] + _APART * ((len(arms) - 1) / 2 - place))
        figure.add_trace(_curve(part, arm, mine, styles[arm]), 1, 1)
        if (ticks := _censored(part, arm, styles[arm])) is not None:
            figure.add_trace(ticks, 1, 1)
    at = _ticks(end)
    for trace in [_at_risk(rows, arms, at, palette), *_samples(arms, styles, end)]:
        figure.add_trace(trace, 2, 1)
    figure.update_xaxes(
        range=[-end * (_SAMPLE + 0.03), end * 1.02], tickvals=at, separatethousands=True, fixedrange=True
    )
    figure.update_xaxes(title_text=TITLE, showticklabels=True, row=1, col=1)
    figure.update_xaxes(showgrid=False, showticklabels=False, row=2, col=1)
    figure.update_yaxes(
        title_text="runs still up (fraction)", range=[-0.03, 1.05], tickformat=".2~f", fixedrange=True, row=1, col=1
    )
    figure.update_yaxes(
        range=[len(arms) - 0.4, -0.8], tickmode="array", tickvals=list(range(len(arms))), showgrid=False,
        ticktext=[_short(arm) for arm in arms], fixedrange=True, tickfont={"color": palette.text}, row=2, col=1,
    )  # fmt: skip
    y_axis = next(figure.select_yaxes(row=2, col=1))
    for text, y, shift in ((words, 1.0, 10), ("runs at risk", y_axis.domain[1], 0)):
        figure.add_annotation(
            text=figure_text(text), x=0, y=y, xref="paper", yref="paper", xanchor="left", yanchor="bottom",
            yshift=shift, showarrow=False, font={"color": palette.muted, "size": 12}, align="left",
        )  # fmt: skip
    figure.update_layout(
        template=template(palette), height=HEAD + inner + 8, dragmode=False, showlegend=False, hoverdistance=20,
        margin={"t": HEAD, "b": 8, "l": 8, "r": 12},
    )  # fmt: skip
    return figure


def _short(arm: str) -> str:
    return figure_text(arm if len(arm) <= 40 else arm[:39] + "…")


def _ticks(end: float) -> list[float]:
    """About eight round steps from 0 to the end."""
    if end <= 0:
        return [0.0]
    rough = end / 8
    decade = 10.0 ** math.floor(math.log10(rough))
    step = max(1.0, next(n * decade for n in (1, 2, 2.5, 5, 10) if n * decade >= rough))
    step = math.ceil(step)
    return [float(i * step) for i in range(int(end / step) + 1)]


def _curve(part: pd.DataFrame, arm: str, rows: pd.DataFrame, style: Style) -> go.Scatter:
    import plotly.graph_objects as go

    fell, watched = int(rows["event"].sum()), len(rows)
    columns = ["at_risk", "events", "low", "high", "survival"]
    return go.Scatter(
        x=part["time"], y=part["y"], mode="lines", customdata=part[columns].to_numpy(),
        line={"color": style.colour, "dash": style.dash, "width": 2.2, "shape": "hv"},
        hovertemplate=f"<b>{figure_text(arm)}</b>, {fell} of {watched} collapsed<br>step %{{x:,}}: "
        "%{customdata[4]:.3f} still up<br>95 % interval %{customdata[2]:.2f} to %{customdata[3]:.2f}"
        "<br>at risk %{customdata[0]}, collapsed %{customdata[1]}<extra></extra>",
    )  # fmt: skip


def _band(part: pd.DataFrame, style: Style) -> go.Scatter | None:
    """The 95 % interval as steps."""
    import plotly.graph_objects as go

    known = part.dropna(subset=["low", "high"])
    if known.empty or (known["low"] == known["high"]).all():
        return None
    times = list(known["time"])
    after = [*times[1:], float(part["time"].max())]
    x, low, high = [], [], []
    for start, stop, bottom, top in zip(times, after, known["low"], known["high"], strict=True):
        x += [start, stop]
        low += [bottom, bottom]
        high += [top, top]
    return go.Scatter(
        x=[*x, *x[::-1]], y=[*high, *low[::-1]], mode="lines", line={"width": 0}, fill="toself", hoverinfo="skip",
        fillcolor=faded(style.colour, 0.13),
    )  # fmt: skip


def _censored(part: pd.DataFrame, arm: str, style: Style) -> go.Scatter | None:
    """A tick where runs stopped being watched while still up."""
    import plotly.graph_objects as go

    ends = part[part["censored"] > 0]
    if ends.empty:
        return None
    return go.Scatter(
        x=ends["time"], y=ends["y"], mode="markers", customdata=ends["censored"],
        marker={"symbol": "line-ns", "size": 12, "line": {"color": style.colour, "width": 2}},
        hovertemplate=f"<b>{figure_text(arm)}</b><br>%{{customdata}} runs watched until step %{{x:,}}, still up"
        "<extra></extra>",
    )  # fmt: skip


def _samples(arms: list[str], styles: Mapping[str, Style], end: float) -> list[go.Scatter]:
    """Beside the name of each arm how its curve is drawn."""
    import plotly.graph_objects as go

    return [
        go.Scatter(
            x=[-end * (_SAMPLE + 0.025), -end * 0.025], y=[place, place], mode="lines", hoverinfo="skip",
            line={"color": styles[arm].colour, "dash": styles[arm].dash, "width": 2.2},
        )
        for place, arm in enumerate(arms)
    ]  # fmt: skip


def _at_risk(rows: pd.DataFrame, arms: list[str], at: list[float], palette: Palette) -> go.Scatter:
    import plotly.graph_objects as go

    counts = [[int((rows.loc[rows["arm"] == arm, "time"] >= t).sum()) for t in at] for arm in arms]
    return go.Scatter(
        x=at * len(arms), y=[i for i in range(len(arms)) for _ in at], mode="text", hoverinfo="skip",
        text=[str(n) for line in counts for n in line], textfont={"color": palette.text, "size": 13}, cliponaxis=False,
    )  # fmt: skip
