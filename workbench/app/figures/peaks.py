"""One signal of one run over training, to pick the step from: its spikes, its alarms, the steps with transcripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workbench.app.safe import figure_text, wrapped
from workbench.app.series import AXES, is_wide
from workbench.app.theme import Palette, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

HEIGHT = 340  # pixels
_MARKED = 400  # points up to which each is marked


@dataclass(frozen=True)
class Signal:
    """A column of table `step`: words from the dictionary, points (step, value, broken_step), events, what was kept.

    `events` has x and message of the column's alarms; `kept` the steps with tokens; `onset` the collapse's.
    """

    name: str
    unit: str
    definition: str
    points: pd.DataFrame
    events: pd.DataFrame
    kept: Sequence[int] = field(default=())
    onset: float | None = None


def peaks(signal: Signal, colour: str, palette: Palette, chosen: int) -> go.Figure:
    """The figure; a point carries its step, the chosen step has a line."""
    import plotly.graph_objects as go

    known = signal.points.dropna(subset=["value"])
    broken = signal.points.dropna(subset=["broken_step"])
    as_log = is_wide([float(v) for v in known["value"]])
    kept = known["step"].isin(list(signal.kept))
    figure = go.Figure()
    figure.add_vline(x=chosen, line={"color": palette.text, "width": 1.2})
    if signal.onset is not None:
        figure.add_vline(x=signal.onset, line={"color": palette.outcomes["collapsed"], "width": 1.2, "dash": "2px,3px"})
    figure.add_trace(
        go.Scatter(
            x=known["step"], y=known["value"], mode="lines", line={"color": colour, "width": 1.6}, hoverinfo="skip"
        )
    )
    size = 7 if len(known) <= _MARKED else 4
    unit = figure_text(signal.unit)
    for part, symbol, said in ((known[kept], "circle", "tokens kept"), (known[~kept], "circle-open", "no tokens")):
        figure.add_trace(
            go.Scatter(
                x=part["step"], y=part["value"], mode="markers", customdata=part["step"].astype(int),
                marker={"symbol": symbol, "size": size, "color": colour},
                hovertemplate=f"step %{{x:,}}: %{{y:.4~g}} {unit}<br>{said}<extra></extra>",
            )
        )  # fmt: skip
    for x, y, symbol, rows, words in _marks(signal, known, broken):
        figure.add_trace(
            go.Scatter(
                x=x, y=y, mode="markers", customdata=rows, text=words, hovertemplate="%{text}<extra></extra>",
                marker={"symbol": symbol, "size": 11, "color": palette.outcomes["collapsed"], "line": {"width": 1.6}},
            )
        )  # fmt: skip
    _lay_out(figure, signal, palette, as_log=as_log)
    return figure


def _marks(
    signal: Signal, known: pd.DataFrame, broken: pd.DataFrame
) -> list[tuple[list[float], list[float], str, list[int], list[str]]]:
    """Alarms on their points; what is no number at the height of the lowest."""
    value = dict(zip(known["step"].astype(int), known["value"].astype(float), strict=True))
    events = [(int(x), str(m)) for x, m in zip(signal.events["x"], signal.events["message"], strict=True)]
    there = [(x, m) for x, m in events if x in value]
    floor = min(value.values(), default=1.0)
    steps = [int(step) for step in broken["broken_step"]]
    alarms = (
        [float(x) for x, _ in there], [value[x] for x, _ in there], "triangle-up-open", [x for x, _ in there],
        [wrapped(message, 60) for _, message in there],
    )  # fmt: skip
    nans = (
        [float(step) for step in steps], [floor] * len(steps), "x-thin", steps,
        [f"NaN or Inf at step {step:,}" for step in steps],
    )  # fmt: skip
    return [marks for marks in (alarms, nans) if marks[0]]


def _lay_out(figure: go.Figure, signal: Signal, palette: Palette, *, as_log: bool) -> None:
    text = wrapped(signal.definition, 84)
    head = 40 + 15 * (text.count("<br>") + 1)
    unit = signal.unit or "no unit"
    figure.update_layout(
        template=template(palette), height=HEIGHT, showlegend=False, hoverdistance=40, dragmode=False,
        margin={"t": head, "b": 48, "l": 8, "r": 12},
    )  # fmt: skip
    figure.update_xaxes(
        title_text=AXES["step"], separatethousands=True, fixedrange=True,
        dtick=1 if signal.points["step"].max() < 10 else None,
    )  # fmt: skip
    figure.update_yaxes(title_text=figure_text(f"{unit}, log scale" if as_log else unit), fixedrange=True)
    if as_log:
        figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    figure.add_annotation(
        text=f"<b>{figure_text(signal.name)}</b><br><span style='font-size:12px;color:{palette.muted}'>{text}</span>",
        x=0, y=1, xref="paper", yref="paper", xanchor="left", yanchor="bottom", yshift=8, align="left", showarrow=False,
        font={"size": 14},
    )  # fmt: skip
    if signal.points.empty:
        figure.add_annotation(
            text="not measured in this run", x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False,
            font={"color": palette.muted},
        )  # fmt: skip
