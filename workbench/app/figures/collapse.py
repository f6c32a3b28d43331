"""How long arms stay up, the events around each collapse, and how early each alarm went off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.app.figures.panes import Trace, scatter
from workbench.app.series import AXES
from workbench.app.text import figure_text, visible, wrapped
from workbench.app.theme import Palette, Style, faded, template

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


PLOT, SURVIVAL_ROW, SURVIVAL_HEAD, AXIS, SURVIVAL_BOTTOM = 280, 20, 34, 52, 34  # pixels
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
    below = SURVIVAL_ROW * len(arms) + 18
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
        template=template(palette), height=SURVIVAL_HEAD + inner + 8, dragmode=False, showlegend=False,
        hoverdistance=20, margin={"t": SURVIVAL_HEAD, "b": 8, "l": 8, "r": 12},
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


def _curve(part: pd.DataFrame, arm: str, rows: pd.DataFrame, style: Style) -> Trace:
    fell, watched = int(rows["event"].sum()), len(rows)
    columns = ["at_risk", "events", "low", "high", "survival"]
    return scatter(
        x=part["time"], y=part["y"], mode="lines", customdata=part[columns].to_numpy(),
        line={"color": style.colour, "dash": style.dash, "width": 2.2, "shape": "hv"},
        hovertemplate=f"<b>{figure_text(arm)}</b>, {fell} of {watched} collapsed<br>step %{{x:,}}: "
        "%{customdata[4]:.3f} still up<br>95 % interval %{customdata[2]:.2f} to %{customdata[3]:.2f}"
        "<br>at risk %{customdata[0]}, collapsed %{customdata[1]}<extra></extra>",
    )  # fmt: skip


def _band(part: pd.DataFrame, style: Style) -> Trace | None:
    """The 95 % interval as steps."""
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
    return scatter(
        x=[*x, *x[::-1]], y=[*high, *low[::-1]], mode="lines", line={"width": 0}, fill="toself", hoverinfo="skip",
        fillcolor=faded(style.colour, 0.13),
    )  # fmt: skip


def _censored(part: pd.DataFrame, arm: str, style: Style) -> Trace | None:
    """A tick where runs stopped being watched while still up."""
    ends = part[part["censored"] > 0]
    if ends.empty:
        return None
    return scatter(
        x=ends["time"], y=ends["y"], mode="markers", customdata=ends["censored"],
        marker={"symbol": "line-ns", "size": 12, "line": {"color": style.colour, "width": 2}},
        hovertemplate=f"<b>{figure_text(arm)}</b><br>%{{customdata}} runs watched until step %{{x:,}}, still up"
        "<extra></extra>",
    )  # fmt: skip


def _samples(arms: list[str], styles: Mapping[str, Style], end: float) -> list[go.Scatter]:
    """Beside the name of each arm how its curve is drawn."""
    return [
        scatter(
            x=[-end * (_SAMPLE + 0.025), -end * 0.025], y=[place, place], mode="lines", hoverinfo="skip",
            line={"color": styles[arm].colour, "dash": styles[arm].dash, "width": 2.2},
        )
        for place, arm in enumerate(arms)
    ]  # fmt: skip


def _at_risk(rows: pd.DataFrame, arms: list[str], at: list[float], palette: Palette) -> Trace:
    counts = [[int((rows.loc[rows["arm"] == arm, "time"] >= t).sum()) for t in at] for arm in arms]
    return scatter(
        x=at * len(arms), y=[i for i in range(len(arms)) for _ in at], mode="text", hoverinfo="skip",
        text=[str(n) for line in counts for n in line], textfont={"color": palette.text, "size": 13}, cliponaxis=False,
    )  # fmt: skip


TIMELINE_ROW, TIMELINE_HEAD, TIMELINE_BOTTOM, LEGEND_ROW = 20, 14, 48, 23  # pixels
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
    head = TIMELINE_HEAD + LEGEND_ROW * (1 if marks["shape"].nunique() <= 5 else 2)
    figure.update_layout(
        template=template(palette), height=int(head + total * TIMELINE_ROW + TIMELINE_BOTTOM),
        hoverdistance=30, dragmode=False, margin={"t": head, "b": TIMELINE_BOTTOM, "l": 8, "r": 12},
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


def _lives(part: pd.DataFrame, colour: str) -> Trace:
    """From the first step of each run to its last."""
    x: list[Any] = []
    y: list[Any] = []
    for first, last, row in part[["first", "last", "row"]].itertuples(index=False, name=None):
        x += [first, last, None]
        y += [row, row, None]
    return scatter(
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


def _marks(part: pd.DataFrame, symbol: str, words: str, colour: str) -> Trace:
    return scatter(
        x=part["x"], y=part["y"], mode="markers", name=words, cliponaxis=False,
        marker={"symbol": symbol, "size": 9, "color": colour, "line": {"width": 1.4, "color": colour}},
        customdata=part[["place", "x"]].astype(int).to_numpy().tolist(),
        text=[_about(event) for event in part.to_dict("records")], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _about(event: Mapping[Any, Any]) -> str:
    kind = figure_text(visible(event["kind"]).replace("_", " "))
    lines = [f"<b>{figure_text(event['arm'])}</b>, seed {event['seed']}, at {int(event['x']):,}"]
    return "<br>".join([*lines, f"{kind}: {wrapped(str(event['message']), 64)}"])


LEADS_ROW, LEADS_HEAD, LEADS_BOTTOM = 34, 48, 50  # pixels
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
        template=template(palette), height=LEADS_HEAD + LEADS_ROW * len(alarms) + LEADS_BOTTOM,
        showlegend=False, dragmode=False, margin={"t": LEADS_HEAD, "b": LEADS_BOTTOM, "l": 8, "r": 8}, hoverdistance=12,
    )  # fmt: skip
    return figure


def _dots(part: pd.DataFrame, arm: str, style: Style, place: Mapping[str, int]) -> Trace:
    """Runs with the same lead stand under each other."""
    crowd = part.groupby(["alarm", "lead"]).cumcount()
    offset = (crowd % 2 * 2 - 1) * ((crowd + 1) // 2) * 0.24
    return scatter(
        x=-part["lead"].astype(float), y=part["alarm"].map(place) + offset, mode="markers",
        marker={"symbol": style.marker, "size": 9, "color": faded(style.colour, 0.85),
                "line": {"width": 1, "color": style.colour}},
        customdata=[[figure_text(run), seed] for run, seed in zip(part["run_id"], part["seed"], strict=True)],
        hovertemplate=f"<b>{figure_text(arm)}</b>, seed %{{customdata[1]}}<br>%{{customdata[0]}}<br>first at %{{x:+,}} "
        "steps from the onset<extra></extra>",
    )  # fmt: skip


def _quartiles(known: pd.DataFrame, place: Mapping[str, int], palette: Palette) -> Trace:
    x: list[float | None] = []
    y: list[float | None] = []
    for name, low, high in known[["alarm", "lead_low", "lead_high"]].itertuples(index=False, name=None):
        x += [-high, -low, None]
        y += [place[name], place[name], None]
    return scatter(
        x=x, y=y, mode="lines", line={"color": faded(palette.muted, 0.35), "width": 7}, hoverinfo="skip",
    )  # fmt: skip


def _medians(known: pd.DataFrame, place: Mapping[str, int], palette: Palette) -> Trace:
    return scatter(
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
