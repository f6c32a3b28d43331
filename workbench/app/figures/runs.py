"""Runs: survival, events and early alarms of many; success, wall time, a signal and the batch of a step of
one.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from sorl.analysis.survival import collapses
from sorl.app.data import Fall, Row
from sorl.app.figures import common
from sorl.app.figures.common import AXES, Trace, heading, note, trace, vertical
from sorl.app.text import apart, duration, few, figure_text, number, percent, word, wrapped
from sorl.app.theme import Palette, Styles, faded

TITLE = "time trained (steps)"
FEWEST = 3  # runs from which on there is an interval
_ACROSS = 4  # panes of survival in a row
# letters that the axis of the timeline has room for, alarms of one place that are told
_LETTERS = 140
_TOLD = 6
_SHARE = 0.58  # of the width that the dots of the leads get


def survival(
    curves: pd.DataFrame,
    rows: pd.DataFrame,
    styles: Styles,
    palette: Palette,
    words: str,
    reference: str = "",
) -> go.Figure:
    """Draw a pane an arm: survival.curve's `curves`, that of `reference` dotted, over the runs at risk in
    `rows`.
    """
    arms = list(dict.fromkeys(curves["arm"]))
    end = float(curves["time"].max())
    short, shared = apart(arms)
    ticks = np.arange(0, end + 1e-9, max(1.0, common.round_up(max(end, 1.0) / 5)))
    # panes, pixels
    across = min(_ACROSS, len(arms))
    plot = 150
    gap = 74
    tall = math.ceil(len(arms) / across)
    inner = tall * plot + (tall - 1) * gap
    x_axis = common.axis("", range=[-0.04 * end, end * 1.04], tickvals=ticks.tolist())
    y_axis = common.axis(
        "not collapsed (fraction)",
        range=[-0.42, 1.08],
        tickvals=[-0.25, 0, 0.5, 1],
        showgrid=True,
        ticktext=["at risk", "0", "0.5", "1"],
    )
    muted = {"color": palette.muted, "size": 12}
    above = {"xanchor": "left", "yanchor": "bottom", "yshift": 44}
    notes = [
        note(figure_text(f"All at {shared}. {words}" if shared else words), 0, 1, font=muted, **above),
        note(TITLE, 0.5, 0, yanchor="top", yshift=-22, font={"color": palette.muted}),
    ]
    traces = list[Trace]()
    layout = dict[str, Any]()
    for pane, arm in zip(common.panes(len(arms), across, 0.025, gap / inner), arms, strict=True):
        part = curves[curves["arm"] == arm]
        mine = rows[rows["arm"] == arm]
        colour = styles[arm].colour
        layout |= pane.shared(x_axis, y_axis)
        notes.append(common.arm_label(short[arm], colour, pane, collapses(mine)))
        name = f"<b>{figure_text(arm)}</b><br>"
        drawn = []
        if arm != reference:
            drawn.append(_falling(curves[curves["arm"] == reference], palette.muted, 1.5, common.DOTTED))
        known = part.dropna(subset=["low", "high"])
        if len(mine) >= FEWEST and (known["low"] != known["high"]).any():  # the 95 % interval, drawn in steps
            low, high = (known[name].to_numpy().repeat(2) for name in ("low", "high"))
            drawn.append(common.area(np.append(known["time"], end).repeat(2)[1:-1], low, high, colour, 0.13))
        interval = (
            "<br>95 % interval %{customdata[2]:.2f} to %{customdata[3]:.2f}" if len(mine) >= FEWEST else ""
        )
        hover = (
            f"{name}step %{{x:,}}: %{{y:.3f}} not collapsed{interval}<br>at risk %{{customdata[0]}}, "
            "collapsed %{customdata[1]}"
        )
        carried = part[["at_risk", "events", "low", "high"]].to_numpy()
        censored = part[part["censored"] > 0]
        at_risk = (mine["time"].to_numpy() >= ticks[:, None]).sum(axis=1)
        drawn += [
            _falling(part, colour, 2, "solid", hover, customdata=carried),
            common.marks(
                censored["time"].to_numpy(),
                censored["survival"].to_numpy(),
                "line-ns",
                12,
                colour,
                f"{name}%{{customdata}} runs watched until step %{{x:,}}, not collapsed",
                edge=2,
                customdata=censored["censored"].to_numpy(),
            ),
            trace(
                x=ticks,
                y=[-0.25] * len(ticks),
                mode="text",
                text=[str(n) for n in at_risk],
                cliponaxis=False,
                textfont={"color": palette.text, "size": 12},
            ),
        ]
        traces += [one | pane.axes for one in drawn]
    return common.figure(
        traces, palette, inner=inner, top=72, bottom=50, hoverdistance=20, annotations=notes, **layout
    )


def _falling(part: pd.DataFrame, colour: str, width: float, dash: str, hover: str = "", **more: Any) -> Trace:
    look = {"color": colour, "width": width, "dash": dash, "shape": "hv"}
    return common.line(
        part["time"].to_numpy(), part["survival"].to_numpy(), colour, hover=hover, line=look, **more
    )


def letters(events: pd.DataFrame) -> dict[str, str]:
    """Map the diagnostics that raised an alarm to a letter each, in the order of the alphabet."""
    names = sorted({str(name) for name in events.loc[events["kind"] == "alarm", "diagnostic"]})
    return dict(zip(names, cycle(ascii_lowercase), strict=False))


def timeline(
    runs: pd.DataFrame, events: pd.DataFrame, styles: Styles, palette: Palette, x_title: str
) -> go.Figure:
    """Draw a line a run: `runs` (arm, seed, run_id, first, last) in order, `events` (run_id, x, kind,
    diagnostic, message): alarms are the `letters` of their diagnostics below the line, other events marks on
    it.
    """
    runs = runs.reset_index(drop=True)
    arms = list(dict.fromkeys(runs["arm"]))
    # a row for each arm's name
    runs = runs.assign(place=runs.index, row=runs.index + runs["arm"].map(arms.index) + 1)
    marks = events.assign(letter=events["diagnostic"].map(letters(events)))
    marks = common.stacked(
        marks.merge(runs[["run_id", "place", "row", "arm", "seed"]], on="run_id"), ["row", "x"]
    )
    carried = marks[["place", "x"]].astype(int).to_numpy().tolist()
    marks = marks.assign(
        y=marks["row"] + 0.4 * (marks["kind"] == "alarm") - 0.19 * marks["above"],
        carried=pd.Series(carried, marks.index, dtype=object),
        text=[
            f"<b>{figure_text(one.arm)}</b>, seed {one.seed}, at {one.x:,.0f}<br>{one.words}: "
            f"{wrapped(str(one.message), 64)}"
            for one in marks.itertuples()
        ],
    )
    lines = [
        common.line(
            colour=faded(styles[str(arm)].colour, 0.55),
            showlegend=False,
            **common.segments(part["first"], part["last"], part["row"]),
        )
        for arm, part in runs.groupby("arm", sort=False)
    ]
    rang = marks[marks["kind"] == "alarm"]
    marks = marks[marks["kind"] != "alarm"]
    if len(rang):
        rang = _together(rang, max(1.0, float(runs["last"].max() - runs["first"].min())) / _LETTERS)
        lines.append(
            trace(
                "%{customdata[2]}",
                x=rang["x"].tolist(),
                y=rang["y"].tolist(),
                mode="text",
                text=rang["letter"].tolist(),
                textfont={"size": 12, "color": palette.text},
                name="alarm",
                showlegend=True,
                cliponaxis=False,
                customdata=[
                    [*carried, text] for carried, text in zip(rang["carried"], rang["text"], strict=True)
                ],
            )
        )
    rows = len(runs) + len(arms)
    top = 14 + common.LEGEND_ROW * (1 if marks["shape"].nunique() <= 5 else 2)  # two rows hold six kinds
    names = runs.drop_duplicates("arm")[["arm", "row"]].itertuples(index=False)
    look = {
        "yref": "y",
        "xanchor": "left",
        "yanchor": "middle",
        "bgcolor": palette.background,
        "borderpad": 1,
    }
    return common.figure(
        [*lines, *common.event_marks(marks, palette)],
        palette,
        inner=rows * 20,
        top=top,
        bottom=48,
        hoverdistance=30,
        **common.legend_on_top(itemwidth=30),
        xaxis=common.axis(x_title),
        yaxis=common.axis(
            range=[rows - 0.3, -0.7],
            tickmode="array",
            showgrid=False,
            tickvals=runs["row"].tolist(),
            ticktext=[f"seed {seed}" for seed in runs["seed"]],
        ),
        annotations=[
            note(f"{common.swatch(styles[arm].colour)} <b>{figure_text(arm)}</b>", 0, row - 1, **look)
            for arm, row in names
        ],
    )


def _together(rang: pd.DataFrame, letter: float) -> pd.DataFrame:
    """Join the alarms of a row whose letters, each `letter` steps wide, would overlap; one that repeats
    stands once.
    """
    found: list[dict[Any, Any]] = []
    for one in rang.sort_values(["row", "x", "letter"]).to_dict("records"):
        last: dict[Any, Any] = found[-1] if found else {"row": None}
        if one["row"] != last["row"] or one["x"] > last["x"] + letter * (len(last["letter"]) + 0.5):
            found.append(one | {"y": one["row"] + 0.4, "told": [one["text"]]})
        else:
            last["letter"] = "".join(sorted({*last["letter"], one["letter"]}))
            last["told"].append(one["text"])
    texts = (few(one["told"], _TOLD, "<br>") for one in found)
    return pd.DataFrame(found).assign(text=list(texts))


# Head of a column of the leads -> its count, and of how many runs.
_COUNTS = {
    "came<br>first": ("first", "collapsed"),
    "before<br>the onset": ("before", "collapsed"),
    "at or<br>after it": ("after", "collapsed"),
    "never": ("never", "collapsed"),
    "in healthy<br>runs": ("false_alarms", "steady"),
}


def leads(alarms: pd.DataFrame, dots: pd.DataFrame, styles: Styles, palette: Palette) -> go.Figure:
    """Draw `alarms` as data.alarm_leads gives them, and `dots` with alarm, arm, run_id, seed, lead
    (steps).
    """
    place = {name: i for i, name in enumerate(alarms["alarm"])}
    known = alarms.dropna(subset=["lead_median"])
    at = known["alarm"].map(place).to_numpy()
    bars = common.segments(-known["lead_high"], -known["lead_low"], at)
    traces = [common.line(**bars, colour=faded(palette.muted, 0.35), width=7)]
    for arm, part in dots.groupby("arm", sort=False):
        style = styles[str(arm)]
        crowd = part.groupby(["alarm", "lead"]).cumcount()
        # runs with the same lead stand under each other
        apart = (crowd % 2 * 2 - 1) * ((crowd + 1) // 2) * 0.24
        traces.append(
            common.marks(
                -part["lead"].to_numpy(float),
                (part["alarm"].map(place) + apart).to_numpy(float),
                style.marker,
                9,
                style.colour,
                f"<b>{figure_text(arm)}</b>, seed %{{customdata[1]}}<br>%{{customdata[0]}}<br>first at "
                "%{x:+,} steps from the onset",
                opacity=0.85,
                customdata=[
                    [figure_text(run), seed] for run, seed in zip(part["run_id"], part["seed"], strict=True)
                ],
            )
        )
    traces.append(
        common.marks(
            -known["lead_median"].to_numpy(float),
            at,
            "line-ns",
            20,
            palette.text,
            "median %{x:+,.3~g} steps from the onset, over %{customdata} runs",
            edge=2,
            customdata=known["before"].tolist(),
        )
    )
    rows = alarms.to_dict("records")
    columns = {"median<br>lead": [f"{row['lead_median']:.3g}" if row["before"] else "–" for row in rows]}
    columns |= {head: [f"{row[n]}/{row[whole]}" for row in rows] for head, (n, whole) in _COUNTS.items()}
    annotations = []
    for column, (head, words) in enumerate(columns.items()):
        x = _SHARE + (1 - _SHARE) * (column + 0.5) / len(columns)
        annotations.append(
            note(head, x, 1, yanchor="bottom", yshift=4, font={"color": palette.muted, "size": 12})
        )
        text = {"yref": "y", "yanchor": "middle", "font": {"color": palette.text, "size": 13}}
        annotations += [note(cell, x, i, **text) for i, cell in enumerate(words)]
    low = min([-1.0, *-dots["lead"].astype(float)])
    high = max([1.0, *-dots["lead"].astype(float)])
    pad = (high - low) * 0.06
    return common.figure(
        traces,
        palette,
        inner=34 * len(alarms),
        top=48,
        bottom=50,
        hoverdistance=12,
        annotations=annotations,
        shapes=[vertical(0, palette.outcomes["collapsed"])],
        xaxis=common.axis(
            AXES["onset"],
            range=[low - pad, high + pad],
            domain=[0, _SHARE - 0.02],
            dtick=1 if high - low < 8 else None,
        ),
        yaxis=common.axis(
            range=[len(alarms) - 0.4, -0.6],
            tickmode="array",
            tickvals=list(place.values()),
            ticktext=[f"{figure_text(row['alarm'])} {row['direction']}" for row in rows],
            tickfont={"color": palette.text, "size": 13},
        ),
    )


# One run.

# where the events stand, above a fraction's 1, and how far apart those of one step
_STRIP = 1.09
_LIFT = 0.055
_SHAPES = ("circle", "circle-open", "square", "square-open")
PARTS = {
    "rollout": "sampling rollouts",
    "update": "updates",
    "evaluation": "held-out evaluation",
    "record": "measuring and recording",
    "rest": "the rest",
}
SHARES = {"gradient_share": "share of the step's gradient", "ratio_mass": "share of its ratio mass"}


def _earlier(starts: pd.DataFrame, colour: str, palette: Palette) -> Iterator[Trace]:
    """Yield the earlier starts of a run: what it kept of them, and dotted what was given up."""
    is_named = set[str]()
    for (_, is_abandoned), rows in starts.groupby(["start", "abandoned"], sort=False):
        name = "given up at a rollback" if is_abandoned else "before a rollback"
        ink = palette.muted if is_abandoned else colour
        yield common.line(
            rows["step"].to_numpy(),
            rows["success"].to_numpy(),
            ink,
            1.5,
            f"{name}<br>step %{{x:,.6~g}}: %{{y:.4~g}}",
            dash=common.DOTTED if is_abandoned else "solid",
            name=name,
            showlegend=name not in is_named,
        )
        is_named.add(name)


def career(
    points: pd.DataFrame,
    held_out: pd.DataFrame,
    events: pd.DataFrame,
    colour: str,
    palette: Palette,
    definition: str,
    children: pd.DataFrame | None = None,
    starts: pd.DataFrame | None = None,
) -> go.Figure:
    """Draw success: `points` (x, mean, low, high), queries `evaluation`, `children` (its forks) and `starts`
    (those that a guard rolled back), and `events`.
    """
    marks = common.stacked(events, ["step"])
    marks = marks.assign(
        x=marks["step"],
        y=_STRIP + _LIFT * marks["above"],
        carried=marks["step"].astype(int),
        text=[
            f"<b>{one.words}</b> at step {one.step:,.0f}<br>{wrapped(str(one.message), 64)}"
            for one in marks.itertuples()
        ],
    )
    traces = [] if children is None or children.empty else list(branches(points, children, palette))
    if starts is not None:
        traces += _earlier(starts, colour, palette)
    if (points["low"] < points["high"]).any():  # a bucket of several steps has extremes
        traces.append(common.area(points["x"], points["low"], points["high"], colour, 0.18, showlegend=False))
    if len(points):
        traces.append(
            common.line(
                points["x"].to_numpy(),
                points["mean"].to_numpy(),
                colour,
                2,
                "in training<br>step %{x:,.6~g}: %{y:.4~g}",
                name="in training",
                marker={"size": 4, "color": colour},
                mode="lines+markers" if len(points) <= 60 else "lines",
            )
        )
    for place, (name, part) in enumerate(held_out.groupby("data", sort=False)):
        ink = palette.muted if place % len(_SHAPES) else palette.text
        title = figure_text(f"held-out: {name}")
        low, middle, high = (part[column] for column in ("success_low", "success", "success_high"))
        traces.append(
            common.marks(
                part["step"].tolist(),
                middle.tolist(),
                _SHAPES[place % len(_SHAPES)],
                7,
                ink,
                f"{title}<br>step %{{x:,}}: %{{y:.4~g}}<br>95 % interval %{{customdata[0]:.3~g}} to"
                " %{customdata[1]:.3~g}<br>questions %{customdata[2]:,}",
                name=title,
                error_y=common.whiskers(high - middle, middle - low, ink, thickness=1.2, width=3),
                customdata=part[["success_low", "success_high", "episodes"]].to_numpy(),
            )
        )
    traces += common.event_marks(marks, palette)
    text = wrapped(definition, 75)
    names = [one["name"] for one in traces if "name" in one]
    entries = max(common.legend_rows(names, 480), math.ceil(len(names) / 2))
    top = 50 + common.LEGEND_ROW * entries + 15 * (text.count("<br>") + 1)
    onsets = events.loc[events["kind"] == "onset", "step"]
    return common.figure(
        traces,
        palette,
        inner=270,
        top=top,
        bottom=48,
        hoverdistance=40,
        **common.legend_on_top(itemwidth=30),
        annotations=[
            heading("success", text, palette),
            *([] if len(points) else [common.nothing(None, palette)]),
        ],
        shapes=[vertical(step, palette.outcomes["collapsed"]) for step in onsets],
        xaxis=common.axis(AXES["step"], showticklabels=len(points) + len(marks) > 0),
        yaxis=common.axis(
            "fraction", range=[-0.03, max([1.0, *marks["y"]]) + 0.06], tickvals=[0, 0.25, 0.5, 0.75, 1]
        ),
    )


def branches(points: pd.DataFrame, children: pd.DataFrame, palette: Palette) -> Iterator[Trace]:
    """Yield the forks of a run, a trace an arm: each begins on its parent's curve, in the step before the
    fork.
    """
    inks = cycle([*palette.algorithms.values(), *palette.others])
    stem = points.dropna(subset=["mean"])
    for arm, mine in children.groupby("arm", sort=False):
        x = list[float]()
        y = list[float]()
        told = list[str]()
        for _, own in mine.groupby("run_id", sort=False):
            fork = int(own["forked_at"].iloc[0]) - 1
            foot = float(np.interp(fork, stem["x"], stem["mean"])) if len(stem) else math.nan
            x += [fork, *own["step"].astype(float), math.nan]
            y += [foot, *own["success"].astype(float), math.nan]
            told += [f"draw {own['draw'].iloc[0]}, {'fell' if own['down'].iloc[0] else 'up'}"] * (
                len(own) + 2
            )
        each = mine.drop_duplicates("run_id")
        name = figure_text(f"{arm}: {int(each['down'].sum())} of {len(each)} fell")
        hover = f"{name}<br>%{{customdata}}<br>step %{{x:,.6~g}}: %{{y:.4~g}}"
        ink = palette.muted if arm == "unchanged" else next(inks)
        yield common.line(x, y, ink, 1, hover, customdata=told, name=name, connectgaps=False)


def shares(spent: pd.DataFrame) -> dict[str, float]:
    """Return part -> its seconds over all steps, of the parts that were measured; `spent` answers query
    `spent`.
    """
    sums = {part: float(spent[part].sum()) for part in PARTS if part != "rest" and spent[part].notna().any()}
    # recording is not in the total
    inside = sum(seconds for part, seconds in sums.items() if part != "record")
    rest = float(spent["total"].sum()) - inside
    if sums and rest > 0.002 * (sum(sums.values()) + rest):  # less is rounding
        sums["rest"] = rest
    return sums


def spending(spent: pd.DataFrame, palette: Palette) -> go.Figure:
    """Draw stacked bars, a bar a bucket of steps, whose parts add up to the mean wall time of a step."""
    sums = shares(spent)
    whole = sum(sums.values())
    each = spent.assign(rest=spent["total"] - spent[["rollout", "update", "evaluation"]].sum(axis=1))
    shades = palette.sequential
    colours = dict(zip(PARTS, (shades[2], shades[4], shades[3], palette.muted, palette.grid), strict=True))
    bars = [
        trace(
            f"{PARTS[part]}<br>step %{{x:,.6~g}}: %{{y:.4~g}} s",
            type="bar",
            x=(each["step"] + (each["steps"] - 1) / 2).tolist(),
            y=(each[part] / each["steps"]).tolist(),
            width=(each["steps"] * 0.86).tolist(),
            marker={"color": colours[part], "line": {"width": 0}},
            name=f"{PARTS[part]} {duration(seconds)}, {percent(seconds / whole)}" if whole else PARTS[part],
        )
        for part, seconds in sums.items()
    ]
    return common.figure(
        bars,
        palette,
        inner=180,
        top=72,
        bottom=48,
        barmode="stack",
        bargap=0,
        xaxis=common.axis(AXES["step"]),
        yaxis=common.axis("wall time of a step (s)", rangemode="tozero"),
        **common.legend_on_top(itemwidth=30, traceorder="normal"),
    )


class Signal(NamedTuple):
    """A column of table `step` in one run: words, points (step, value, broken_step), alarms (x, message)."""

    name: str
    title: str
    unit: str
    definition: str
    points: pd.DataFrame
    alarms: pd.DataFrame
    kept: Sequence[int] = ()  # steps with tokens
    fall: Fall | None = None
    steps: int = 0  # done so far
    lowest: bool = False  # low values are the bad ones

    @property
    def spike(self) -> int:
        """Return the step to begin at: the first NaN or Inf, the most extreme about the onset or of all, the
        last.
        """
        if broken := [int(step) for step in self.points["broken_step"].dropna()]:
            return min(broken)
        known = self.points.dropna(subset=["value"])
        near = known if self.fall is None else known[known["step"].between(self.fall.low, self.fall.high)]
        known = (near if len(near) else known).sort_values("value", ascending=self.lowest, kind="stable")
        return int(known["step"].iloc[0]) if len(known) else max(0, self.steps - 1)


def peaks(signal: Signal, colour: str, palette: Palette, chosen: int) -> go.Figure:
    """Draw the signal; a point carries its step, the chosen step has a line."""
    known = signal.points.dropna(subset=["value"])
    height = dict(zip(known["step"].astype(int).tolist(), known["value"].astype(float).tolist(), strict=True))
    values = list(height.values())
    floor = min(height.values(), default=1.0)
    told = zip(signal.alarms["x"], signal.alarms["message"], strict=True)
    red = palette.outcomes["collapsed"]
    kept = set(signal.kept)
    small = 7 if len(height) <= 400 else 4
    value = f"step %{{x:,}}: %{{y:.4~g}} {figure_text(signal.unit)}<br>"
    alarms = [(int(x), height[int(x)], wrapped(str(message), 60)) for x, message in told if x in height]
    broken = [(int(s), floor, f"NaN or Inf at step {s:,.0f}") for s in signal.points["broken_step"].dropna()]
    traces = [common.line(list(height), values, colour, 1.6)]
    for symbol, size, ink, hover, rows in (
        (
            "circle",
            small,
            colour,
            f"{value}tokens kept",
            [(s, y, "") for s, y in height.items() if s in kept],
        ),
        (
            "circle-open",
            small,
            colour,
            f"{value}no tokens",
            [(s, y, "") for s, y in height.items() if s not in kept],
        ),
        ("triangle-up-open", 11, red, "%{text}", alarms),
        ("x-thin", 11, red, "%{text}", broken),
    ):
        x, y, texts = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
        edge = 1.6 if ink == red else 0
        traces.append(common.marks(x, y, symbol, size, ink, hover, edge=edge, customdata=x, text=texts))
    definition = wrapped(f"{signal.name}: {signal.definition}", 84)
    top = 55 + 15 * definition.count("<br>")
    fall = [] if signal.fall is None else _fall_shapes(signal.fall, red)
    scale = common.log_scale(signal.unit) | {"dtick": 1} if common.is_wide(values) else {}
    return common.figure(
        traces,
        palette,
        inner=340 - top - 48,
        top=top,
        bottom=48,
        hoverdistance=40,
        shapes=[vertical(chosen, palette.text, dash=None), *fall],
        annotations=[
            heading(signal.title, definition, palette),
            *([] if height else [common.nothing(None, palette)]),
        ],
        xaxis=common.axis(AXES["step"], dtick=1 if signal.points["step"].max() < 10 else None),
        yaxis=common.axis(signal.unit) | scale,
    )


def _fall_shapes(fall: Fall, colour: str) -> list[dict[str, Any]]:
    """Return the dotted line at the step after which a run fell, over a band as wide as its 95 % interval."""
    band = {
        "type": "rect",
        "x0": fall.low,
        "x1": fall.high,
        "y0": 0,
        "y1": 1,
        "yref": "y domain",
        "line": {"width": 0},
        "fillcolor": faded(colour, 0.12),
        "layer": "below",
    }
    line = vertical(fall.step, colour)
    return [line] if fall.low == fall.high else [band, line]


def ranking(rows: Sequence[Row], equal: float, palette: Palette, step: int, chosen: int | None) -> go.Figure:
    """Draw two bars a trajectory: `rows` of query `ranking` in order; `equal` is the share if
    all were alike.
    """
    places = list(range(len(rows)))
    healthy = palette.outcomes["healthy"]
    colours = [healthy if row["success"] else palette.muted for row in rows]
    drawn = {
        name: [v if (v := row[name]) is not None and abs(v) <= 1e9 else None for row in rows]
        for name in SHARES
    }
    top = max([equal, *(v for values in drawn.values() for v in values if v is not None)])
    # unseen marks along each row meet the pointer
    along = [top * share for share in (0.05, 0.3, 0.55, 0.8, 1.05)]
    about = list[str]()
    for row in rows:
        lines = [
            f"<b>trajectory {row['trajectory']}</b>, {'tokens kept' if row['kept'] else 'tokens not kept'}"
        ]
        lines += [f"{name}: {wrapped(word(row[name]), 60)}" for name in ("question", "gold", "answer")]
        lines.append(f"largest token ratio {figure_text(number(row['ratio_max']))}")
        if row["worst_turn"] is not None:
            worst = number(row["worst_log_ratio"])
            lines.append(f"turn {row['worst_turn']} moved most: sum of log-ratios {worst} nats")
        about += ["<br>".join(lines)] * len(along)
    y_axis = common.axis(
        "trajectory",
        range=[max(len(rows), 6) - 0.4, -0.6],
        tickmode="array",
        tickvals=places,
        showgrid=False,
        ticktext=[f"<b>{row['trajectory']}</b>" if row["kept"] else str(row["trajectory"]) for row in rows],
        tickfont={"color": palette.text},
    )
    traces = list[Trace]()
    shapes = list[Trace]()
    layout = dict[str, Any]()
    for pane, (name, words) in zip(common.panes(2, 2, 0.04, 0), SHARES.items(), strict=True):
        values = drawn[name]
        labels = [
            (
                " not measured"
                if (v := row[name]) is None
                else f" {percent(v) if math.isfinite(v) else number(v)}"
            )
            for row in rows
        ]
        traces += [
            one | pane.axes
            for one in (
                trace(type="bar", y=places, x=values, orientation="h", marker={"color": colours}, width=0.62),
                trace(
                    y=places,
                    x=[v or 0 for v in values],
                    mode="text",
                    textposition="middle right",
                    text=labels,
                    textfont={"color": palette.muted, "size": 12},
                    cliponaxis=False,
                ),
                trace(
                    "%{text}",
                    x=along * len(rows),
                    y=[place for place in places for _ in along],
                    mode="markers",
                    marker={"size": 14, "opacity": 0},
                    text=about,
                    customdata=[int(row["trajectory"]) for row in rows for _ in along],
                ),
            )
        ]
        x_axis = common.axis(
            words, range=[0, top * 1.24], nticks=5, tickformat=".0%" if top > 0.05 else ".1%"
        )
        other = {"matches": "y", "showticklabels": False, "title": {"text": ""}} if pane.column else {}
        layout |= pane.placed(x_axis, y_axis | other)
        x, y = pane.axes.values()
        shapes.append(vertical(equal, palette.muted) | {"xref": x, "yref": f"{y} domain"})
        shapes += [
            {
                "type": "rect",
                "x0": 0,
                "x1": 1,
                "xref": f"{x} domain",
                "y0": i - 0.5,
                "y1": i + 0.5,
                "yref": y,
                "fillcolor": faded(palette.text, 0.08),
                "line": {"width": 0},
                "layer": "below",
            }
            for i, row in enumerate(rows)
            if row["trajectory"] == chosen
        ]
    key = (
        f"{common.swatch(healthy)} solved · {common.swatch(palette.muted)} not solved · bold: tokens kept ·"
        " dotted: an equal share"
    )
    return common.figure(
        traces,
        palette,
        inner=237,
        top=55,
        bottom=48,
        bargap=0.2,
        hoverdistance=400,
        shapes=shapes,
        annotations=[heading(f"Trajectories of step {step:,}", key, palette)],
        **layout,
    )
