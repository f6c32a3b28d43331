"""How long arms stay up, the events around each collapse, and how early each alarm went off."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.app.figures import common
from workbench.app.figures.common import AXES, Trace, note, short, trace
from workbench.app.text import figure_text, wrapped
from workbench.app.theme import Palette, Style, faded

TITLE = "time trained (steps)"
_FILLED = 3  # arms up to which the interval of each is drawn
_SHARE = 0.58  # of the width that the dots of the leads get


def survival(
    curves: pd.DataFrame, rows: pd.DataFrame, styles: Mapping[str, Style], palette: Palette, words: str
) -> go.Figure:
    """Draw survival.curve's `curves` over the numbers at risk in survival.observed's `rows`; `words` tells the test."""
    arms = list(dict.fromkeys(curves["arm"]))
    end = float(curves["time"].max())
    ticks = np.arange(0, end + 1e-9, max(1.0, common.round_up(max(end, 1.0) / 8)))
    bands: list[Trace] = []
    lines: list[Trace] = []
    for place, arm in enumerate(arms):
        part, mine, style = curves[curves["arm"] == arm], rows[rows["arm"] == arm], styles[arm]
        # Of curves at the same height the lower one is wider, so that its edges are seen.
        line = {"color": style.colour, "dash": style.dash, "width": 2.2 + 1.3 * (len(arms) - 1 - place), "shape": "hv"}
        name = f"<b>{figure_text(arm)}</b>"
        lines.append(trace(
            f"{name}, {int(mine['event'].sum())} of {len(mine)} collapsed<br>step %{{x:,}}: %{{y:.3f}} not collapsed"
            "<br>95 % interval %{customdata[2]:.2f} to %{customdata[3]:.2f}<br>at risk %{customdata[0]}, "
            "collapsed %{customdata[1]}",
            x=part["time"].to_numpy(), y=part["survival"].to_numpy(), mode="lines", line=line,
            customdata=part[["at_risk", "events", "low", "high"]].to_numpy(),
        ))  # fmt: skip
        censored = part[part["censored"] > 0]
        if len(censored):
            lines.append(trace(
                f"{name}<br>%{{customdata}} runs watched until step %{{x:,}}, not collapsed", mode="markers",
                x=censored["time"].to_numpy(), y=censored["survival"].to_numpy(),
                customdata=censored["censored"].to_numpy(),
                marker={"symbol": "line-ns", "size": 12, "line": {"color": style.colour, "width": 2}},
            ))  # fmt: skip
        known = part.dropna(subset=["low", "high"])
        if len(arms) <= _FILLED and (known["low"] != known["high"]).any():  # the 95 % interval, drawn in steps
            low, high = (known[name].to_numpy().repeat(2) for name in ("low", "high"))
            bands.append(common.area(np.append(known["time"], end).repeat(2)[1:-1], low, high, style.colour, 0.13))
        at_risk = (mine["time"].to_numpy() >= ticks[:, None]).sum(axis=1)
        row = {"xaxis": "x2", "yaxis": "y2"}
        lines += [
            trace(x=ticks, y=[place] * len(ticks), mode="text", text=[str(n) for n in at_risk], cliponaxis=False,
                  textfont={"color": palette.text, "size": 13}, **row),
            trace(x=[-0.06 * end, -0.025 * end], y=[place, place], mode="lines", line=line | {"width": 2.2}, **row),
        ]  # fmt: skip
    plot, axis, table = 280, 52, 20 * len(arms) + 18  # pixels
    inner = plot + axis + table
    x_axis = common.steps_axis(TITLE, range=[-0.065 * end, end * 1.02], tickvals=ticks.tolist())
    return common.figure(
        [*bands, *lines], palette, inner=inner, top=34, bottom=8, hoverdistance=20, xaxis=x_axis | {"anchor": "y"},
        yaxis=common.axis("runs not yet collapsed (fraction)", domain=[1 - plot / inner, 1], range=[-0.03, 1.05],
                          tickformat=".2~f"),
        xaxis2=x_axis | {"title": {"text": ""}, "anchor": "y2", "matches": "x", "showgrid": False,
                         "showticklabels": False},
        yaxis2=common.axis(
            domain=[0, table / inner], anchor="x2", range=[len(arms) - 0.4, -0.8], tickmode="array", showgrid=False,
            tickvals=list(range(len(arms))), ticktext=[short(arm, 40) for arm in arms],
            tickfont={"color": palette.text},
        ),
        annotations=[
            note(figure_text(text), 0, y, xanchor="left", yanchor="bottom", yshift=shift, align="left",
                 font={"color": palette.muted, "size": 12})
            for text, y, shift in ((words, 1.0, 10), ("runs at risk", table / inner, 0))
        ],
    )  # fmt: skip


def timeline(
    runs: pd.DataFrame, events: pd.DataFrame, styles: Mapping[str, Style], palette: Palette, x_title: str
) -> go.Figure:
    """Draw a line a run: `runs` (arm, seed, run_id, first, last: where its line begins and ends) in the order to draw.

    `events` has run_id, x, kind, severity, diagnostic, message. A mark carries its run's place and its x.
    """
    runs = runs.reset_index(drop=True)
    arms = list(dict.fromkeys(runs["arm"]))
    runs = runs.assign(place=runs.index, row=runs.index + runs["arm"].map(arms.index) + 1)  # a row for each arm's name
    marks = common.stacked(events.merge(runs[["run_id", "place", "row", "arm", "seed"]], on="run_id"), ["row", "x"])
    told = zip(marks["arm"], marks["seed"], marks["x"], marks["kind"], marks["message"], strict=True)
    carried = marks[["place", "x"]].astype(int).to_numpy().tolist()
    marks = marks.assign(
        y=marks["row"] - 0.19 * marks["above"], carried=pd.Series(carried, marks.index, dtype=object),
        text=[
            f"<b>{figure_text(arm)}</b>, seed {seed}, at {int(x):,}<br>{common.kind_in_words(kind)}: "
            f"{wrapped(str(message), 64)}"
            for arm, seed, x, kind, message in told
        ],
    )  # fmt: skip
    lines = [
        trace(**common.segments(part["first"], part["last"], part["row"]), mode="lines", showlegend=False,
              line={"color": faded(styles[str(arm)].colour, 0.55), "width": 2})
        for arm, part in runs.groupby("arm", sort=False)
    ]  # fmt: skip
    names = runs.drop_duplicates("arm")
    rows = len(runs) + len(arms)
    top = 14 + common.LEGEND_ROW * (1 if marks["shape"].nunique() <= 5 else 2)  # two rows hold six kinds
    return common.figure(
        [*lines, *common.event_marks(marks, palette)], palette, inner=rows * 20, top=top, bottom=48, hoverdistance=30,
        **common.legend_on_top(itemwidth=30), xaxis=common.steps_axis(x_title),
        yaxis=common.axis(range=[rows - 0.3, -0.7], tickmode="array", showgrid=False, tickvals=runs["row"].tolist(),
                          ticktext=[f"seed {seed}" for seed in runs["seed"]]),
        annotations=[
            note(f"<span style='color:{styles[str(arm)].colour}'>■</span> <b>{figure_text(arm)}</b>", 0, row - 1,
                 yref="y", xanchor="left", yanchor="middle", bgcolor=palette.background, borderpad=1)
            for row, arm in zip(names["row"], names["arm"], strict=True)
        ],
    )  # fmt: skip


def leads(alarms: pd.DataFrame, dots: pd.DataFrame, styles: Mapping[str, Style], palette: Palette) -> go.Figure:
    """Draw `alarms` as curve_data.alarm_leads gives them, and `dots` with alarm, arm, run_id, seed, lead (steps)."""
    place = {name: i for i, name in enumerate(alarms["alarm"])}
    known = alarms.dropna(subset=["lead_median"])
    at = known["alarm"].map(place).to_numpy()
    traces = [trace(**common.segments(-known["lead_high"], -known["lead_low"], at), mode="lines",
                    line={"color": faded(palette.muted, 0.35), "width": 7})]  # fmt: skip
    for arm, part in dots.groupby("arm", sort=False):
        style, crowd = styles[str(arm)], part.groupby(["alarm", "lead"]).cumcount()
        apart = (crowd % 2 * 2 - 1) * ((crowd + 1) // 2) * 0.24  # runs with the same lead stand under each other
        traces.append(trace(
            f"<b>{figure_text(arm)}</b>, seed %{{customdata[1]}}<br>%{{customdata[0]}}<br>first at %{{x:+,}} steps "
            "from the onset", x=-part["lead"].to_numpy(float), y=(part["alarm"].map(place) + apart).to_numpy(float),
            mode="markers", marker={"symbol": style.marker, "size": 9, "color": faded(style.colour, 0.85),
                                    "line": {"width": 1, "color": style.colour}},
            customdata=[[figure_text(run), seed] for run, seed in zip(part["run_id"], part["seed"], strict=True)],
        ))  # fmt: skip
    traces.append(trace(
        "median %{x:+,.3~g} steps from the onset, over %{customdata} runs", mode="markers", y=at,
        x=-known["lead_median"].to_numpy(float), customdata=known["before"].tolist(),
        marker={"symbol": "line-ns", "size": 20, "line": {"color": palette.text, "width": 2}},
    ))  # fmt: skip
    rows = alarms.to_dict("records")
    columns = {"median<br>lead": [f"{row['lead_median']:.3g}" if row["before"] else "–" for row in rows]}
    for head, name, whole in (
        ("came<br>first", "first", "collapsed"), ("before<br>the onset", "before", "collapsed"),
        ("at or<br>after it", "after", "collapsed"), ("never", "never", "collapsed"),
        ("in healthy<br>runs", "false_alarms", "steady"),
    ):  # fmt: skip
        columns[head] = [f"{row[name]}/{row[whole]}" for row in rows]
    annotations = []
    for number, (head, words) in enumerate(columns.items()):
        x = _SHARE + (1 - _SHARE) * (number + 0.5) / len(columns)
        annotations.append(note(head, x, 1, yanchor="bottom", yshift=4, font={"color": palette.muted, "size": 12}))
        text = {"yref": "y", "yanchor": "middle", "font": {"color": palette.text, "size": 13}}
        annotations += [note(word, x, i, **text) for i, word in enumerate(words)]
    low, high = min([-1.0, *-dots["lead"].astype(float)]), max([1.0, *-dots["lead"].astype(float)])
    pad = (high - low) * 0.06
    return common.figure(
        traces, palette, inner=34 * len(alarms), top=48, bottom=50, hoverdistance=12, annotations=annotations,
        shapes=[common.vertical(0, palette.outcomes["collapsed"])],
        xaxis=common.steps_axis(AXES["onset"], range=[low - pad, high + pad], domain=[0, _SHARE - 0.02],
                                dtick=1 if high - low < 8 else None),
        yaxis=common.axis(
            range=[len(alarms) - 0.4, -0.6], tickmode="array", tickvals=list(place.values()),
            ticktext=[f"{figure_text(row['alarm'])} {row['direction']}" for row in rows],
            tickfont={"color": palette.text, "size": 13},
        ),
    )  # fmt: skip
