"""The signal to pick a step from, and the trajectories of that step by their share of the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.app.figures.panes import Trace, bar, heading, scatter, unmeasured
from workbench.app.series import AXES, is_wide
from workbench.app.text import figure_text, number, word, wrapped
from workbench.app.theme import Palette, faded, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


PEAKS_HEIGHT = 340  # pixels
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
        scatter(x=known["step"], y=known["value"], mode="lines", line={"color": colour, "width": 1.6}, hoverinfo="skip")
    )
    size = 7 if len(known) <= _MARKED else 4
    unit = figure_text(signal.unit)
    for part, symbol, said in ((known[kept], "circle", "tokens kept"), (known[~kept], "circle-open", "no tokens")):
        figure.add_trace(
            scatter(
                x=part["step"], y=part["value"], mode="markers", customdata=part["step"].astype(int),
                marker={"symbol": symbol, "size": size, "color": colour},
                hovertemplate=f"step %{{x:,}}: %{{y:.4~g}} {unit}<br>{said}<extra></extra>",
            )
        )  # fmt: skip
    for x, y, symbol, rows, words in _marks(signal, known, broken):
        figure.add_trace(
            scatter(
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
        template=template(palette), height=PEAKS_HEIGHT, showlegend=False, hoverdistance=40, dragmode=False,
        margin={"t": head, "b": 48, "l": 8, "r": 12},
    )  # fmt: skip
    figure.update_xaxes(
        title_text=AXES["step"], separatethousands=True, fixedrange=True,
        dtick=1 if signal.points["step"].max() < 10 else None,
    )  # fmt: skip
    figure.update_yaxes(title_text=figure_text(f"{unit}, log scale" if as_log else unit), fixedrange=True)
    if as_log:
        figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    figure.add_annotation(heading(figure_text(signal.name), text, palette))
    if signal.points.empty:
        figure.add_annotation(unmeasured("this run", palette))


SHARES = {"gradient_share": "share of the gradient", "ratio_mass": "share of the ratio mass"}
RANKING_HEIGHT, TOP, BOTTOM = 340, 55, 48  # pixels


def ranking(
    rows: Sequence[Mapping[str, Any]], equal: float, palette: Palette, step: int, chosen: int | None
) -> go.Figure:
    """Two bars a trajectory, the worst on top; `rows` as query `ranking` gives them, in the order to draw.

    `equal` is the share that every trajectory would have if all were alike (fraction). A mark carries its trajectory.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04)
    places = list(range(len(rows)))
    colours = [palette.outcomes["healthy"] if row["success"] else palette.muted for row in rows]
    top = max([equal, *(v for row in rows for name in SHARES if (v := _finite(row[name])) is not None)])
    for column, (name, words) in enumerate(SHARES.items(), start=1):
        values = [_finite(row[name]) for row in rows]
        figure.add_trace(
            bar(y=places, x=values, orientation="h", marker={"color": colours}, width=0.62, hoverinfo="skip"),
            1, column,
        )  # fmt: skip
        figure.add_trace(
            scatter(
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
        template=template(palette), height=RANKING_HEIGHT, showlegend=False, dragmode=False, bargap=0.2,
        hoverdistance=400, margin={"t": TOP, "b": BOTTOM, "l": 8, "r": 12},
    )  # fmt: skip
    _head(figure, palette, step)
    return figure


def _head(figure: go.Figure, palette: Palette, step: int) -> None:
    key = f"<span style='color:{palette.outcomes['healthy']}'>■</span> solved · " + (
        f"<span style='color:{palette.muted}'>■</span> not solved · bold: tokens kept · dotted: an equal share"
    )
    figure.add_annotation(heading(f"Trajectories of step {step:,}", key, palette))


def _targets(rows: Sequence[Mapping[str, Any]], places: Sequence[int], top: float) -> Trace:
    """What the pointer meets: unseen marks along the row of each trajectory."""
    along = [top * share for share in (0.05, 0.3, 0.55, 0.8, 1.05)]
    return scatter(
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
