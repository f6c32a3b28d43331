"""Runs: survival, events and early alarms of many; success, wall time, a signal and the batch of a step of
one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle
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
# pixels: the height of a pane of survival, and the gap below it
_SURVIVAL_PANE = 150
_SURVIVAL_GAP = 74
# letters that the axis of the timeline has room for, alarms of one place that are told
_LETTERS = 140
_TOLD = 6
_SHARE = 0.58  # of the width that the dots of the leads get


class _Survival(NamedTuple):
    """The curves of all arms, as survival.curve gives them, and the runs that they count."""

    curves: pd.DataFrame
    rows: pd.DataFrame
    palette: Palette
    reference: str  # the arm whose curve is dotted in the panes of the others

    @property
    def end(self) -> float:
        """The last time of all curves."""
        return float(self.curves["time"].max())

    @property
    def ticks(self) -> np.ndarray:
        """Steps with a tick: about five over the time of all curves."""
        return np.arange(0, self.end + 1e-9, max(1.0, common.round_up(max(self.end, 1.0) / 5)))

    def curve_of(self, arm: str) -> pd.DataFrame:
        """The curve of one arm."""
        return self.curves[self.curves["arm"] == arm]

    def runs_of(self, arm: str) -> pd.DataFrame:
        """The runs of one arm."""
        return self.rows[self.rows["arm"] == arm]


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
    short, shared = apart(arms)
    panes, inner = _survival_panes(len(arms))
    every = _Survival(curves, rows, palette, reference)
    words = f"All at {shared}. {words}" if shared else words
    contents = common.Contents([], _survival_titles(words, palette), {})
    for pane, arm in zip(panes, arms, strict=True):
        contents.layout.update(pane.shared(*_survival_axes(every)))
        contents.annotations.append(
            common.arm_label(short[arm], styles[arm].colour, pane, collapses(every.runs_of(arm)))
        )
        contents.traces.extend(
            drawing | pane.axes for drawing in _survival_of_arm(arm, every, styles[arm].colour)
        )
    return common.figure(
        contents.traces,
        palette,
        inner=inner,
        top=72,
        bottom=50,
        hoverdistance=20,
        annotations=contents.annotations,
        **contents.layout,
    )


def _survival_panes(count: int) -> tuple[Iterator[common.Pane], int]:
    """A pane an arm, and the height of all in pixels."""
    across = min(_ACROSS, count)
    tall = math.ceil(count / across)
    inner = tall * _SURVIVAL_PANE + (tall - 1) * _SURVIVAL_GAP
    return common.panes(count, across, 0.025, _SURVIVAL_GAP / inner), inner


def _survival_titles(words: str, palette: Palette) -> list[Trace]:
    """What is drawn, above the panes, and the title of the time axis below them."""
    muted = {"color": palette.muted, "size": 12}
    above = {"xanchor": "left", "yanchor": "bottom", "yshift": 44}
    return [
        note(figure_text(words), 0, 1, font=muted, **above),
        note(TITLE, 0.5, 0, yanchor="top", yshift=-22, font={"color": palette.muted}),
    ]


def _survival_axes(every: _Survival) -> tuple[Trace, Trace]:
    end = every.end
    ticks = every.ticks.tolist()
    x_axis = common.axis("", range=[-0.04 * end, end * 1.04], tickvals=ticks)
    y_axis = common.axis(
        "not collapsed (fraction)",
        range=[-0.42, 1.08],
        tickvals=[-0.25, 0, 0.5, 1],
        showgrid=True,
        ticktext=["at risk", "0", "0.5", "1"],
    )
    return x_axis, y_axis


def _survival_of_arm(arm: str, every: _Survival, colour: str) -> Iterator[Trace]:
    """Yield the curve of the reference, then the interval of an arm's curve, the curve, marks where runs were
    no longer watched, and the numbers at risk.
    """
    if arm != every.reference:
        yield _falling(every.curve_of(every.reference), every.palette.muted, 1.5, common.DOTTED)
    part = every.curve_of(arm)
    mine = every.runs_of(arm)
    name = f"<b>{figure_text(arm)}</b><br>"
    if len(mine) >= FEWEST:
        yield from _survival_interval(part, every.end, colour)
    interval = "<br>95 % interval %{customdata[2]:.2f} to %{customdata[3]:.2f}" if len(mine) >= FEWEST else ""
    hover = (
        f"{name}step %{{x:,}}: %{{y:.3f}} not collapsed{interval}<br>at risk %{{customdata[0]}}, "
        "collapsed %{customdata[1]}"
    )
    carried = part[["at_risk", "events", "low", "high"]].to_numpy()
    yield _falling(part, colour, 2, "solid", hover, customdata=carried)
    censored = part[part["censored"] > 0]
    yield common.marks(
        censored["time"].to_numpy(),
        censored["survival"].to_numpy(),
        "line-ns",
        12,
        colour,
        f"{name}%{{customdata}} runs watched until step %{{x:,}}, not collapsed",
        edge=2,
        customdata=censored["censored"].to_numpy(),
    )
    yield _runs_at_risk(mine, every.ticks, every.palette)


def _survival_interval(part: pd.DataFrame, end: float, colour: str) -> Iterator[Trace]:
    """Yield the 95 % interval up to step `end`, drawn in steps, where the curve has one."""
    known = part.dropna(subset=["low", "high"])
    if (known["low"] != known["high"]).any():
        low, high = (known[name].to_numpy().repeat(2) for name in ("low", "high"))
        yield common.area(np.append(known["time"], end).repeat(2)[1:-1], low, high, colour, 0.13)


def _runs_at_risk(runs: pd.DataFrame, ticks: np.ndarray, palette: Palette) -> Trace:
    """The number of runs at risk at each tick, as text below the curve."""
    at_risk = (runs["time"].to_numpy() >= ticks[:, None]).sum(axis=1)
    return trace(
        x=ticks,
        y=[-0.25] * len(ticks),
        mode="text",
        text=[str(n) for n in at_risk],
        cliponaxis=False,
        textfont={"color": palette.text, "size": 12},
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
    marks = _marks_of_runs(runs, events)
    lines = _lines_of_runs(runs, styles)
    alarms = marks[marks["kind"] == "alarm"]
    marks = marks[marks["kind"] != "alarm"]
    if len(alarms):
        steps = max(1.0, float(runs["last"].max() - runs["first"].min()))
        lines.append(_letter_trace(_together(alarms, steps / _LETTERS), palette))
    rows = len(runs) + len(arms)
    top = 14 + common.LEGEND_ROW * (1 if marks["shape"].nunique() <= 5 else 2)  # two rows hold six kinds
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
        annotations=_arm_names(runs, styles, palette),
    )


def _marks_of_runs(runs: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """The events with their letter, their place in the drawing, what a click carries, and a text."""
    marks = events.assign(letter=events["diagnostic"].map(letters(events)))
    marks = common.stacked(
        marks.merge(runs[["run_id", "place", "row", "arm", "seed"]], on="run_id"), ["row", "x"]
    )
    carried = marks[["place", "x"]].astype(int).to_numpy().tolist()
    return marks.assign(
        y=marks["row"] + 0.4 * (marks["kind"] == "alarm") - 0.19 * marks["above"],
        carried=pd.Series(carried, marks.index, dtype=object),
        text=[
            f"<b>{figure_text(mark.arm)}</b>, seed {mark.seed}, at {mark.x:,.0f}<br>{mark.words}: "
            f"{wrapped(str(mark.message), 64)}"
            for mark in marks.itertuples()
        ],
    )


def _lines_of_runs(runs: pd.DataFrame, styles: Styles) -> list[Trace]:
    """A trace an arm, with a line a run."""
    return [
        common.line(
            colour=faded(styles[str(arm)].colour, 0.55),
            showlegend=False,
            **common.segments(part["first"], part["last"], part["row"]),
        )
        for arm, part in runs.groupby("arm", sort=False)
    ]


def _letter_trace(alarms: pd.DataFrame, palette: Palette) -> Trace:
    carried = zip(alarms["carried"], alarms["text"], strict=True)
    return trace(
        "%{customdata[2]}",
        x=alarms["x"].tolist(),
        y=alarms["y"].tolist(),
        mode="text",
        text=alarms["letter"].tolist(),
        textfont={"size": 12, "color": palette.text},
        name="alarm",
        showlegend=True,
        cliponaxis=False,
        customdata=[[*place, text] for place, text in carried],
    )


def _arm_names(runs: pd.DataFrame, styles: Styles, palette: Palette) -> list[Trace]:
    """The name of each arm, in the row above its runs."""
    look = {
        "yref": "y",
        "xanchor": "left",
        "yanchor": "middle",
        "bgcolor": palette.background,
        "borderpad": 1,
    }
    return [
        note(f"{common.swatch(styles[arm].colour)} <b>{figure_text(arm)}</b>", 0, row - 1, **look)
        for arm, row in runs.drop_duplicates("arm")[["arm", "row"]].itertuples(index=False)
    ]


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
    medians = common.marks(
        -known["lead_median"].to_numpy(float),
        at,
        "line-ns",
        20,
        palette.text,
        "median %{x:+,.3~g} steps from the onset, over %{customdata} runs",
        edge=2,
        customdata=known["before"].tolist(),
    )
    low = min([-1.0, *-dots["lead"].astype(float)])
    high = max([1.0, *-dots["lead"].astype(float)])
    pad = (high - low) * 0.06
    return common.figure(
        [
            common.line(**bars, colour=faded(palette.muted, 0.35), width=7),
            *_lead_dots(dots, place, styles),
            medians,
        ],
        palette,
        inner=34 * len(alarms),
        top=48,
        bottom=50,
        hoverdistance=12,
        annotations=_lead_table(alarms, palette),
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
            ticktext=[f"{figure_text(row['alarm'])} {row['direction']}" for row in alarms.to_dict("records")],
            tickfont={"color": palette.text, "size": 13},
        ),
    )


def _lead_dots(dots: pd.DataFrame, place: Mapping[str, int], styles: Styles) -> Iterator[Trace]:
    """Yield a trace an arm, with a dot a run."""
    for arm, part in dots.groupby("arm", sort=False):
        style = styles[str(arm)]
        crowd = part.groupby(["alarm", "lead"]).cumcount()
        # runs with the same lead stand under each other
        below = (crowd % 2 * 2 - 1) * ((crowd + 1) // 2) * 0.24
        runs = zip(part["run_id"], part["seed"], strict=True)
        yield common.marks(
            -part["lead"].to_numpy(float),
            (part["alarm"].map(place) + below).to_numpy(float),
            style.marker,
            9,
            style.colour,
            f"<b>{figure_text(arm)}</b>, seed %{{customdata[1]}}<br>%{{customdata[0]}}<br>first at "
            "%{x:+,} steps from the onset",
            opacity=0.85,
            customdata=[[figure_text(run), seed] for run, seed in runs],
        )


def _lead_table(alarms: pd.DataFrame, palette: Palette) -> list[Trace]:
    """The numbers to the right of the dots: a column a count, a row an alarm."""
    rows = alarms.to_dict("records")
    columns = {"median<br>lead": [f"{row['lead_median']:.3g}" if row["before"] else "–" for row in rows]}
    for head, (count, whole) in _COUNTS.items():
        columns[head] = [f"{row[count]}/{row[whole]}" for row in rows]
    annotations = []
    for column, (head, words) in enumerate(columns.items()):
        x = _SHARE + (1 - _SHARE) * (column + 0.5) / len(columns)
        annotations.append(
            note(head, x, 1, yanchor="bottom", yshift=4, font={"color": palette.muted, "size": 12})
        )
        text = {"yref": "y", "yanchor": "middle", "font": {"color": palette.text, "size": 13}}
        annotations += [note(cell, x, i, **text) for i, cell in enumerate(words)]
    return annotations


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
    marks = _marks_of_run(events)
    traces = [] if children is None or children.empty else list(branches(points, children, palette))
    if starts is not None:
        traces += _earlier(starts, colour, palette)
    traces += _training_success(points, colour)
    traces += _held_out_success(held_out, palette)
    traces += common.event_marks(marks, palette)
    text = wrapped(definition, 75)
    names = [drawing["name"] for drawing in traces if "name" in drawing]
    entries = max(common.legend_rows(names, 480), math.ceil(len(names) / 2))
    onsets = events.loc[events["kind"] == "onset", "step"]
    return common.figure(
        traces,
        palette,
        inner=270,
        top=50 + common.LEGEND_ROW * entries + 15 * (text.count("<br>") + 1),
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


def _marks_of_run(events: pd.DataFrame) -> pd.DataFrame:
    """The events of one run with their place above the curve, what a click carries, and a text."""
    marks = common.stacked(events, ["step"])
    return marks.assign(
        x=marks["step"],
        y=_STRIP + _LIFT * marks["above"],
        carried=marks["step"].astype(int),
        text=[
            f"<b>{mark.words}</b> at step {mark.step:,.0f}<br>{wrapped(str(mark.message), 64)}"
            for mark in marks.itertuples()
        ],
    )


def _training_success(points: pd.DataFrame, colour: str) -> Iterator[Trace]:
    if (points["low"] < points["high"]).any():  # a bucket of several steps has extremes
        yield common.area(points["x"], points["low"], points["high"], colour, 0.18, showlegend=False)
    if len(points):
        yield common.line(
            points["x"].to_numpy(),
            points["mean"].to_numpy(),
            colour,
            2,
            "in training<br>step %{x:,.6~g}: %{y:.4~g}",
            name="in training",
            marker={"size": 4, "color": colour},
            mode="lines+markers" if len(points) <= 60 else "lines",
        )


def _held_out_success(held_out: pd.DataFrame, palette: Palette) -> Iterator[Trace]:
    """Yield a trace a set of held-out questions, with 95 % intervals."""
    for place, (name, part) in enumerate(held_out.groupby("data", sort=False)):
        ink = palette.muted if place % len(_SHAPES) else palette.text
        title = figure_text(f"held-out: {name}")
        low, middle, high = (part[column] for column in ("success_low", "success", "success_high"))
        yield common.marks(
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


def branches(points: pd.DataFrame, children: pd.DataFrame, palette: Palette) -> Iterator[Trace]:
    """Yield the forks of a run, a trace an arm: each begins on its parent's curve, in the step before the
    fork.
    """
    inks = cycle([*palette.algorithms.values(), *palette.others])
    stem = points.dropna(subset=["mean"])
    for arm, mine in children.groupby("arm", sort=False):
        each = mine.drop_duplicates("run_id")
        name = figure_text(f"{arm}: {int(each['down'].sum())} of {len(each)} fell")
        ink = palette.muted if arm == "unchanged" else next(inks)
        yield _branch(mine, stem, name, ink)


def _branch(children: pd.DataFrame, stem: pd.DataFrame, name: str, ink: str) -> Trace:
    """The children of one arm as one line, with a gap between them; `stem` is the curve of the parent."""
    x = list[float]()
    y = list[float]()
    about = list[str]()
    for _, own in children.groupby("run_id", sort=False):
        fork = int(own["forked_at"].iloc[0]) - 1
        foot = float(np.interp(fork, stem["x"], stem["mean"])) if len(stem) else math.nan
        x += [fork, *own["step"].astype(float), math.nan]
        y += [foot, *own["success"].astype(float), math.nan]
        fate = f"draw {own['draw'].iloc[0]}, {'fell' if own['down'].iloc[0] else 'up'}"
        about += [fate] * (len(own) + 2)
    hover = f"{name}<br>%{{customdata}}<br>step %{{x:,.6~g}}: %{{y:.4~g}}"
    return common.line(x, y, ink, 1, hover, customdata=about, name=name, connectgaps=False)


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
    steps = known["step"].astype(int).tolist()
    heights = dict(zip(steps, known["value"].astype(float).tolist(), strict=True))
    values = list(heights.values())
    red = palette.outcomes["collapsed"]
    definition = wrapped(f"{signal.name}: {signal.definition}", 84)
    top = 55 + 15 * definition.count("<br>")
    fall = [] if signal.fall is None else _fall_shapes(signal.fall, red)
    scale = common.log_scale(signal.unit) | {"dtick": 1} if common.is_wide(values) else {}
    return common.figure(
        [
            common.line(list(heights), values, colour, 1.6),
            *_value_marks(signal, heights, colour),
            *_trouble_marks(signal, heights, red),
        ],
        palette,
        inner=340 - top - 48,
        top=top,
        bottom=48,
        hoverdistance=40,
        shapes=[vertical(chosen, palette.text, dash=None), *fall],
        annotations=[
            heading(signal.title, definition, palette),
            *([] if heights else [common.nothing(None, palette)]),
        ],
        xaxis=common.axis(AXES["step"], dtick=1 if signal.points["step"].max() < 10 else None),
        yaxis=common.axis(signal.unit) | scale,
    )


def _value_marks(signal: Signal, heights: Mapping[int, float], colour: str) -> Iterator[Trace]:
    """Yield the values of the steps with tokens, then those of the steps without."""
    with_tokens = set(signal.kept)
    size = 7 if len(heights) <= 400 else 4
    value = f"step %{{x:,}}: %{{y:.4~g}} {figure_text(signal.unit)}<br>"
    full = [_Mark(step, y, "") for step, y in heights.items() if step in with_tokens]
    empty = [_Mark(step, y, "") for step, y in heights.items() if step not in with_tokens]
    yield _mark_trace(full, "circle", size, colour, f"{value}tokens kept")
    yield _mark_trace(empty, "circle-open", size, colour, f"{value}no tokens")


def _trouble_marks(signal: Signal, heights: Mapping[int, float], red: str) -> Iterator[Trace]:
    """Yield the alarms, at the value of their step, then the steps with NaN or Inf, at the lowest value."""
    alarms = []
    for x, message in zip(signal.alarms["x"], signal.alarms["message"], strict=True):
        if x in heights:
            alarms.append(_Mark(int(x), heights[int(x)], wrapped(str(message), 60)))
    floor = min(heights.values(), default=1.0)
    broken = [
        _Mark(int(step), floor, f"NaN or Inf at step {step:,.0f}")
        for step in signal.points["broken_step"].dropna()
    ]
    yield _mark_trace(alarms, "triangle-up-open", 11, red, "%{text}", edge=1.6)
    yield _mark_trace(broken, "x-thin", 11, red, "%{text}", edge=1.6)


class _Mark(NamedTuple):
    """A mark at a step, and what the pointer tells of it."""

    step: int
    y: float
    text: str


def _mark_trace(
    marks: Sequence[_Mark], symbol: str, size: int, ink: str, hover: str, edge: float = 0
) -> Trace:
    x = [mark.step for mark in marks]
    y = [mark.y for mark in marks]
    texts = [mark.text for mark in marks]
    return common.marks(x, y, symbol, size, ink, hover, edge=edge, customdata=x, text=texts)


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
    drawn = {name: _drawable_shares(rows, name) for name in SHARES}
    known = [value for value in chain.from_iterable(drawn.values()) if value is not None]
    top = max([equal, *known])
    traces = list[Trace]()
    shapes = list[Trace]()
    layout = dict[str, Any]()
    for pane, name in zip(common.panes(2, 2, 0.04, 0), SHARES, strict=True):
        bars = _share_bars(rows, name, drawn[name], palette)
        traces += [drawing | pane.axes for drawing in (*bars, _pointer_targets(rows, top))]
        other = {"matches": "y", "showticklabels": False, "title": {"text": ""}} if pane.column else {}
        layout |= pane.placed(_share_axis(name, top), _trajectory_axis(rows, palette) | other)
        shapes.append(_equal_share(equal, pane, palette))
        shapes += _highlights(rows, chosen, pane, palette)
    return common.figure(
        traces,
        palette,
        inner=237,
        top=55,
        bottom=48,
        bargap=0.2,
        hoverdistance=400,
        shapes=shapes,
        annotations=[heading(f"Trajectories of step {step:,}", _ranking_key(palette), palette)],
        **layout,
    )


def _ranking_key(palette: Palette) -> str:
    return (
        f"{common.swatch(palette.outcomes['healthy'])} solved · {common.swatch(palette.muted)} not solved ·"
        " bold: tokens kept · dotted: an equal share"
    )


def _drawable_shares(rows: Sequence[Row], name: str) -> list[float | None]:
    """The shares of all trajectories, None where a bar would hide all others."""
    return [_drawable(row[name]) for row in rows]


def _share_axis(name: str, top: float) -> dict[str, Any]:
    form = ".0%" if top > 0.05 else ".1%"
    return common.axis(SHARES[name], range=[0, top * 1.24], nticks=5, tickformat=form)


def _equal_share(equal: float, pane: common.Pane, palette: Palette) -> dict[str, Any]:
    x, y = pane.axes.values()
    return vertical(equal, palette.muted) | {"xref": x, "yref": f"{y} domain"}


def _highlights(
    rows: Sequence[Row], chosen: int | None, pane: common.Pane, palette: Palette
) -> Iterator[dict[str, Any]]:
    """Yield the band behind the row of the chosen trajectory."""
    x, y = pane.axes.values()
    for place, row in enumerate(rows):
        if row["trajectory"] == chosen:
            yield _highlight(place, x, y, palette)


def _drawable(value: float | None) -> float | None:
    """The value, or None where a bar of it would hide all others."""
    return value if value is not None and abs(value) <= 1e9 else None


def _trajectory_axis(rows: Sequence[Row], palette: Palette) -> dict[str, Any]:
    return common.axis(
        "trajectory",
        range=[max(len(rows), 6) - 0.4, -0.6],
        tickmode="array",
        tickvals=list(range(len(rows))),
        showgrid=False,
        ticktext=[f"<b>{row['trajectory']}</b>" if row["kept"] else str(row["trajectory"]) for row in rows],
        tickfont={"color": palette.text},
    )


def _share_bars(
    rows: Sequence[Row], name: str, values: Sequence[float | None], palette: Palette
) -> Iterator[Trace]:
    """Yield the bars of one share, and the share as text at their ends."""
    places = list(range(len(rows)))
    colours = [palette.outcomes["healthy"] if row["success"] else palette.muted for row in rows]
    yield trace(type="bar", y=places, x=values, orientation="h", marker={"color": colours}, width=0.62)
    yield trace(
        y=places,
        x=[value or 0 for value in values],
        mode="text",
        textposition="middle right",
        text=[_share_label(row, name) for row in rows],
        textfont={"color": palette.muted, "size": 12},
        cliponaxis=False,
    )


def _share_label(row: Row, name: str) -> str:
    """The share as text; of a step whose gradient is 0 there is none."""
    value = row[name]
    if value is None:
        is_zero = name == "gradient_share" and row.get("step_gradient") == 0
        return " gradient is 0" if is_zero else " not measured"
    return f" {percent(value) if math.isfinite(value) else number(value)}"


def _pointer_targets(rows: Sequence[Row], top: float) -> Trace:
    """Unseen marks along each row, which meet the pointer and say what the trajectory is."""
    along = [top * share for share in (0.05, 0.3, 0.55, 0.8, 1.05)]
    places = list[int]()
    about = list[str]()
    trajectories = list[int]()
    for place, row in enumerate(rows):
        places += [place] * len(along)
        about += [_about_trajectory(row)] * len(along)
        trajectories += [int(row["trajectory"])] * len(along)
    return trace(
        "%{text}",
        x=along * len(rows),
        y=places,
        mode="markers",
        marker={"size": 14, "opacity": 0},
        text=about,
        customdata=trajectories,
    )


def _about_trajectory(row: Row) -> str:
    lines = [f"<b>trajectory {row['trajectory']}</b>, {'tokens kept' if row['kept'] else 'tokens not kept'}"]
    lines += [f"{name}: {wrapped(word(row[name]), 60)}" for name in ("question", "gold", "answer")]
    lines.append(f"largest token ratio {figure_text(number(row['ratio_max']))}")
    if row["worst_turn"] is not None:
        worst = number(row["worst_log_ratio"])
        lines.append(f"turn {row['worst_turn']} moved most: sum of log-ratios {worst} nats")
    return "<br>".join(lines)


def _highlight(place: int, x: str, y: str, palette: Palette) -> dict[str, Any]:
    """The band behind the row of the chosen trajectory."""
    return {
        "type": "rect",
        "x0": 0,
        "x1": 1,
        "xref": f"{x} domain",
        "y0": place - 0.5,
        "y1": place + 0.5,
        "yref": y,
        "fillcolor": faded(palette.text, 0.08),
        "line": {"width": 0},
        "layer": "below",
    }
