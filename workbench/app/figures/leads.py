"""How long before the onset each alarm came: a row an alarm, a dot a run, and beside it how often it did not warn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.app.safe import figure_text
from workbench.app.series import AXES
from workbench.app.theme import Palette, Style, faded, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

ROW, HEAD, BOTTOM = 34, 48, 50  # pixels
_COUNTS = ("lead", "first", "before", "after", "never", "false alarm")
_SHARE = 0.58  # of the width that the dots get


def leads(
    alarms: pd.DataFrame, dots: pd.DataFrame, styles: Mapping[str, Style], palette: Palette
) -> go.Figure:  # fmt: skip
    """The figure: `alarms` as precursors.precursors gives them, `dots` with alarm, arm, run_id, seed, lead (steps)."""
    import plotly.graph_objects as go

    place = {name: i for i, name in enumerate(alarms["alarm"])}
    figure = go.Figure()
    figure.add_vline(x=0, line={"color": palette.outcomes["collapsed"], "width": 1.4, "dash": "2px,3px"})
    known = alarms.dropna(subset=["lead_median"])
    figure.add_trace(_quartiles(known, place, palette))
    for arm, part in dots.groupby("arm", sort=False):
        figure.add_trace(_dots(part, str(arm), styles[str(arm)], place))
    figure.add_trace(_medians(known, place, palette))
    for number, name in enumerate(_COUNTS):
        x = _SHARE + (1 - _SHARE) * (number + 0.5) / len(_COUNTS)
        _column(figure, alarms, name, x, palette)
    span = [-float(v) for v in dots["lead"]] or [0.0]
    low, high = min([*span, -1.0]), max([*span, 1.0])
    pad = (high - low) * 0.06
    figure.update_xaxes(
        title_text=AXES["onset"], range=[low - pad, high + pad], domain=[0, _SHARE - 0.02], fixedrange=True,
        separatethousands=True, dtick=1 if high - low < 8 else None,
    )  # fmt: skip
    figure.update_yaxes(
        range=[len(alarms) - 0.4, -0.6], tickmode="array", tickvals=list(place.values()), fixedrange=True,
        ticktext=[f"{figure_text(row['alarm'])} {row['direction']}" for row in alarms.to_dict("records")],
        tickfont={"color": palette.text, "size": 13},
    )  # fmt: skip
    figure.update_layout(
        template=template(palette), height=HEAD + ROW * len(alarms) + BOTTOM, showlegend=False, dragmode=False,
        margin={"t": HEAD, "b": BOTTOM, "l": 8, "r": 8}, hoverdistance=12,
    )  # fmt: skip
    return figure


def _dots(part: pd.DataFrame, arm: str, style: Style, place: Mapping[str, int]) -> go.Scatter:
    """Runs with the same lead stand under each other."""
    import plotly.graph_objects as go

    crowd = part.groupby(["alarm", "lead"]).cumcount()
    offset = (crowd % 2 * 2 - 1) * ((crowd + 1) // 2) * 0.24
    return go.Scatter(
        x=-part["lead"].astype(float), y=part["alarm"].map(place) + offset, mode="markers",
        marker={"symbol": style.marker, "size": 9, "color": faded(style.colour, 0.85),
                "line": {"width": 1, "color": style.colour}},
        customdata=[[figure_text(run), seed] for run, seed in zip(part["run_id"], part["seed"], strict=True)],
        hovertemplate=f"<b>{figure_text(arm)}</b>, seed %{{customdata[1]}}<br>%{{customdata[0]}}<br>first at %{{x:+,}} "
        "steps from the onset<extra></extra>",
    )  # fmt: skip


def _quartiles(known: pd.DataFrame, place: Mapping[str, int], palette: Palette) -> go.Scatter:
    import plotly.graph_objects as go

    x: list[float | None] = []
    y: list[float | None] = []
    for name, low, high in known[["alarm", "lead_low", "lead_high"]].itertuples(index=False, name=None):
        x += [-high, -low, None]
        y += [place[name], place[name], None]
    return go.Scatter(
        x=x, y=y, mode="lines", line={"color": faded(palette.muted, 0.35), "width": 7}, hoverinfo="skip",
    )  # fmt: skip


def _medians(known: pd.DataFrame, place: Mapping[str, int], palette: Palette) -> go.Scatter:
    import plotly.graph_objects as go

    return go.Scatter(
        x=-known["lead_median"], y=known["alarm"].map(place), mode="markers", customdata=known["before"],
        marker={"symbol": "line-ns", "size": 20, "line": {"color": palette.text, "width": 2}},
        hovertemplate="median %{x:+,.3~g} steps from the onset, over %{customdata} runs<extra></extra>",
    )  # fmt: skip


def _column(figure: go.Figure, alarms: pd.DataFrame, name: str, x: float, palette: Palette) -> None:
    """A count of each alarm, with its name above."""
    words = {
        "lead": "median<br>lead", "first": "came<br>first", "before": "before<br>the onset",
        "after": "at or<br>after it", "never": "never", "false alarm": "in runs<br>that stay up",
    }  # fmt: skip
    figure.add_annotation(
        text=words[name], x=x, y=1, xref="paper", yref="paper", xanchor="center", yanchor="bottom", showarrow=False,
        font={"color": palette.muted, "size": 12}, yshift=4,
    )  # fmt: skip
    for place, row in enumerate(alarms.to_dict("records")):
        figure.add_annotation(
            text=_count(row, name), x=x, y=place, xref="paper", yref="y", xanchor="center", yanchor="middle",
            showarrow=False, font={"color": palette.text, "size": 13},
        )  # fmt: skip


def _count(row: Mapping[Any, Any], name: str) -> str:
    if name == "lead":
        return f"{row['lead_median']:.3g}" if row["before"] else "–"
    return f"{row['false_alarms']}/{row['steady']}" if name == "false alarm" else f"{row[name]}/{row['collapsed']}"
