"""What happened when: a line a run, a mark an event, the arms under each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.app.safe import figure_text, visible, wrapped
from workbench.app.theme import Palette, Style, faded, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

ROW, HEAD, BOTTOM, LEGEND_ROW = 20, 14, 48, 23  # pixels
_LIFT = 0.19  # of a row, between marks of one run at one step
# Kind of event -> symbol, words, and which colour; what is not listed gets the last.
KINDS = {
    "alarm": ("triangle-up-open", "alarm", "muted"),
    "onset": ("triangle-down", "onset of the collapse", "collapsed"),
    "collapse": ("x", "collapse detected", "collapsed"),
    "mild": ("triangle-down-open", "mild fall", "mild"),
    "recovered": ("triangle-up", "recovered", "healthy"),
    "entropy_collapse": ("diamond-open", "entropy collapse", "diverged"),
    "entropy_explosion": ("diamond", "entropy explosion", "diverged"),
    "format_collapse": ("square", "format collapse", "diverged"),
    "echo_trap": ("star", "echo trap", "diverged"),
    "non_finite": ("asterisk-open", "NaN or Inf", "diverged"),
    "other": ("circle-open", "other event", "muted"),
}


def timeline(
    runs: pd.DataFrame, events: pd.DataFrame, styles: Mapping[str, Style], palette: Palette, x_title: str
) -> go.Figure:
    """The figure: `runs` (arm, seed, run_id, first, last: where its line begins and ends) in the order to draw.

    `events` has run_id, x, kind, severity, diagnostic, message. A mark carries its run's place and its x.
    """
    import plotly.graph_objects as go

    placed = _rows(runs)
    figure = go.Figure()
    for arm, part in placed.groupby("arm", sort=False):
        figure.add_trace(_lives(part, styles[str(arm)].colour))
    marks = _lifted(events, placed)
    for kind, (symbol, words, colour) in KINDS.items():
        part = marks[marks["shape"] == kind]
        if len(part):
            hue = palette.muted if colour == "muted" else palette.outcomes[colour]
            figure.add_trace(_marks(part, symbol, words, hue))
    names = placed.drop_duplicates("arm")
    total = float(placed["row"].max()) + 1
    # Two rows of the legend hold six kinds on a narrow screen.
    head = HEAD + LEGEND_ROW * (1 if marks["shape"].nunique() <= 5 else 2)
    figure.update_layout(
        template=template(palette), height=int(head + total * ROW + BOTTOM), hoverdistance=30, dragmode=False,
        margin={"t": head, "b": BOTTOM, "l": 8, "r": 12},
        legend={"yref": "container", "y": 1, "yanchor": "top", "itemwidth": 30},
    )  # fmt: skip
    figure.update_yaxes(
        range=[total - 0.3, -0.7], tickmode="array", showgrid=False, fixedrange=True,
        tickvals=placed["row"], ticktext=[f"seed {seed}" for seed in placed["seed"]],
    )  # fmt: skip
    for row, arm in zip(names["row"], names["arm"], strict=True):
        figure.add_annotation(
            text=_label(str(arm), styles[str(arm)]), x=0, y=row - 1, xref="paper", yref="y", xanchor="left",
            yanchor="middle", showarrow=False, bgcolor=palette.background, borderpad=1,
        )  # fmt: skip
    figure.update_xaxes(title_text=x_title, separatethousands=True, fixedrange=True)
    return figure


def _rows(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for the name of each arm, and one for each of its runs."""
    arms = list(dict.fromkeys(runs["arm"]))
    placed = runs.reset_index(drop=True)
    return placed.assign(row=placed.index + placed["arm"].map(arms.index) + 1)


def _label(arm: str, style: Style) -> str:
    return f"<span style='color:{style.colour}'>■</span> <b>{figure_text(arm)}</b>"


def _lives(part: pd.DataFrame, colour: str) -> go.Scatter:
    """From the first step of each run to its last."""
    import plotly.graph_objects as go

    x: list[Any] = []
    y: list[Any] = []
    for first, last, row in part[["first", "last", "row"]].itertuples(index=False, name=None):
        x += [first, last, None]
        y += [row, row, None]
    return go.Scatter(
        x=x, y=y, mode="lines", line={"color": faded(colour, 0.55), "width": 2}, hoverinfo="skip", showlegend=False
    )


def _lifted(events: pd.DataFrame, placed: pd.DataFrame) -> pd.DataFrame:
    """Events on the row of their run, those of one step above each other."""
    marks = events.merge(placed[["run_id", "row", "arm", "seed"]], on="run_id")
    marks["place"] = marks["run_id"].map({run: i for i, run in enumerate(placed["run_id"])})
    marks["shape"] = [kind if kind in KINDS else "other" for kind in marks["kind"]]
    marks["rank"] = marks["shape"].map(list(KINDS).index)
    marks = marks.sort_values(["row", "x", "rank"], kind="stable")
    return marks.assign(y=marks["row"] - _LIFT * marks.groupby(["run_id", "x"]).cumcount())


def _marks(part: pd.DataFrame, symbol: str, words: str, colour: str) -> go.Scatter:
    import plotly.graph_objects as go

    return go.Scatter(
        x=part["x"], y=part["y"], mode="markers", name=words, cliponaxis=False,
        marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1.4, "color": colour}},
        customdata=part[["place", "x"]].astype(int).to_numpy().tolist(),
        text=[_about(event) for event in part.to_dict("records")], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _about(event: Mapping[Any, Any]) -> str:
    kind = figure_text(visible(event["kind"]).replace("_", " "))
    lines = [f"<b>{figure_text(event['arm'])}</b>, seed {event['seed']}, at {int(event['x']):,}"]
    return "<br>".join([*lines, f"{kind}: {wrapped(str(event['message']), 64)}"])
