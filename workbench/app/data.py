"""From the database to figures: the chosen runs and steps, the points of a column, panels of curves, early
alarms.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sorl.app.figures.curves import Marks, Panel, Threshold
from sorl.app.queries import Diagnostics, Store
from sorl.app.smoothing import UNSMOOTHED, Smoothing, smooth
from sorl.diagnosis.standing import counted, from_onset

# x-axis -> the column of `step` that adds up to it
CLOCKS = {"updates": "updates", "tokens": "tokens_trained", "seconds": "seconds_total"}
# of table `step`: a run that was stopped after its collapse keeps its last value
CARRIED = ("success", "reward")
_ARROWS = {"above": "↑", "below": "↓"}
STATES = {
    "no_learning": "did not rise",
    "no_clear_change": "no clear change",
    "saturated": "saturated",
    "mild": "mild fall",
}  # outcomes in words; the others are words
_MEANS = {"minibatch": "per optimizer update: ", "turn_step": "per turn index, all turns together: "}
Row = Mapping[Any, Any]


class Window(NamedTuple):
    """The steps that are drawn (counted from each run's origin), and how many of them share a bucket."""

    first: int
    last: int
    width: int

    @classmethod
    def over(cls, first: int, last: int, lines: int = 1, most: int = 240) -> Self:
        """Choose buckets of as few steps as leave at most `most` to a line, fewer where `lines` are many."""
        # 60,000 a panel are drawn without a pause; 24 are a curve
        points = min(most, max(24, 60_000 // max(lines, 1)))
        return cls(first, last, max(1, math.ceil((last - first + 1) / points)))


def ended(run: Row) -> str:
    """Return the outcome of a run in words, its status while it has none."""
    if isinstance(outcome := run["outcome"], str):
        return STATES.get(outcome, outcome)
    return "falling" if pd.notna(run.get("slump")) else str(run["status"]).replace("finished", "undecided")


class Fall(NamedTuple):
    """The step after which a run fell, and its 95 % interval."""

    low: int
    high: int
    step: int

    def in_words(self) -> str:
        """Name the steps of the fall: `at the fall (after step 11)`, `about the fall (95 %: after steps 11 to
        12)`.
        """
        if self.low == self.high:
            return f"at the fall (after step {self.step:,})"
        return f"about the fall (95 %: after steps {self.low:,} to {self.high:,})"


def fall_of(run: Row) -> Fall | None:
    """Return when a run (a row of table `run`) fell; None of one that did not.

    Where the run ended while it fell only the interval is known: its first step is taken, as everywhere.
    """
    steps = [
        int(run[name]) for name in ("onset_low", "collapse_step", "onset_high") if pd.notna(run.get(name))
    ]
    if not steps:
        return None
    is_one = pd.notna(run.get("collapse_step"))
    return Fall(min(steps), max(steps), int(run["collapse_step"]) if is_one else min(steps))


def fell(run: Row) -> str:
    """Name the last step before the fall of a run, where that is not known the interval; nothing of one that
    stood.
    """
    if pd.notna(run.get("slump")):
        return f"since step {run['slump']:,.0f}"
    if pd.notna(run.get("collapse_step")):
        return f"after step {run['collapse_step']:,.0f}"
    fall = fall_of(run)
    if fall is None:
        return ""
    is_one = fall.low == fall.high
    return f"after step {fall.low:,}" if is_one else f"after steps {fall.low:,} to {fall.high:,}"


def stands(run: Row) -> str:
    """Say how a run ended and after which step it fell, as in `collapsed after step 17`."""
    end = ended(run)
    after = fell(run)
    if not after:
        return end
    says_fall = end in ("collapsed", "falling", "mild fall")
    return f"{end} {after}" if says_fall else f"{end}, fell {after}"


def onset_of(runs: pd.DataFrame) -> pd.Series:
    """Return the step after which each run fell (`Fall.step`), also of one that was falling at its end; NaN
    of the others.
    """
    known = runs.reindex(columns=["collapse_step", "onset_low"]).astype(float)
    return known["collapse_step"].fillna(known["onset_low"])


def origins(runs: pd.DataFrame, axis: str) -> list[int]:
    """Return the step that x counts from in each run: 0, its fork, or the onset of its fall (if none: the
    median).
    """
    if axis == "fork":
        return [0 if pd.isna(step) else int(step) for step in runs["forked_at"]]
    steps = onset_of(runs)
    if axis != "onset" or steps.isna().all():
        return [0] * len(runs)
    return [round(step) for step in steps.fillna(steps.median())]


def stopped(runs: pd.DataFrame) -> pd.Series:
    """Tell which runs ended before their planned steps since they had collapsed: what they would have done is
    known.
    """
    fell = runs.reindex(columns=["detected", "collapse_step", "onset_low"]).notna().any(axis=1)
    steps, planned = (
        pd.to_numeric(runs.get(name, pd.Series(index=runs.index))) for name in ("steps", "planned")
    )
    return fell & (runs.get("status") == "finished") & (steps < planned).fillna(False).astype(bool)


def clocks(store: Store, runs: pd.DataFrame) -> list[str]:
    """Return the clocks that any of the runs recorded."""
    every = {
        "runs": list(runs["run_id"]),
        "origins": [0] * len(runs),
        "first": 0,
        "last": 2**40,
        "width": 2**41,
    }
    return [
        c for c, column in CLOCKS.items() if len(store.query("series", **every, column=column, table="step"))
    ]


def extent(store: Store, runs: pd.DataFrame, starts: Sequence[int]) -> tuple[int, int]:
    """Return the first and the last recorded step of `runs`, counted from the origin of each."""
    ends = store.query("extent", runs=list(runs["run_id"]), origins=list(starts)).fillna(0)
    return int(ends["first"].iloc[0]), int(ends["last"].iloc[0])


class _Presence(NamedTuple):
    """Which runs have no step among the chosen ones, a truth value a run."""

    is_over: np.ndarray  # they ended before the first
    is_to_come: np.ndarray  # they begin after the last


@dataclass(frozen=True)
class Chosen:
    """The chosen runs in the order of their arms, the step that x counts from in each, and the
    steps to draw.
    """

    runs: pd.DataFrame
    axis: str
    origins: list[int]
    window: Window

    @property
    def ids(self) -> list[str]:
        """Run ids, in order; queries answer with positions in this list."""
        return list(self.runs["run_id"])

    def named(self, found: pd.DataFrame) -> pd.DataFrame:
        """Return `found` with arm, run_id and seed of each `run`."""
        return found.assign(
            **{name: self.runs[name].to_numpy()[found["run"]] for name in ("arm", "run_id", "seed")}
        )

    def inside(self, found: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of `found` whose x lies in the chosen steps."""
        return found[found["x"].between(self.window.first, self.window.last)]

    def points(self, store: Store, table: str, column: str) -> pd.DataFrame:
        """Return a row per run and bucket of a column: arm, run_id, seed, x (mean of its measured steps, or
        the clock), mean, low, high.
        """
        window = self.window
        where = {"runs": self.ids, "origins": self.origins, "first": window.first, "width": window.width}
        found = self.named(store.query("series", **where, last=window.last, column=column, table=table))
        if self.axis in CLOCKS:
            clock = store.query("clock", **where, column=CLOCKS[self.axis])
            return found.drop(columns="x").merge(clock, on=["run", "bucket"], how="inner")
        return found

    def whole(
        self, store: Store, points: pd.DataFrame, table: str, name: str
    ) -> tuple[pd.DataFrame, list[str]]:
        """Return `points` with what stopped runs would have had, and the arms that lack a run in all chosen
        steps.
        """
        presence = self._presence()
        absent = presence.is_over | presence.is_to_come
        if table != "step" or name not in CARRIED:
            return points, list(self.runs["arm"][absent])
        is_stopped = stopped(self.runs).to_numpy()
        before = presence.is_over & is_stopped
        if before.any():  # their last values stand before the first of the chosen steps
            points = pd.concat([points, self._last_points(store, before, table, name)], ignore_index=True)
        points = carried(points, is_stopped.nonzero()[0])
        return points[points["bucket"] >= 0], list(self.runs["arm"][absent & ~before])

    def _presence(self) -> _Presence:
        """Tell which runs have no step among the chosen ones."""
        recorded = self.runs.get("steps", pd.Series(index=self.runs.index))
        steps = pd.to_numeric(recorded).to_numpy(float, na_value=0)
        starts = np.array(self.origins)
        return _Presence(
            is_over=(steps > 0) & (steps - starts <= self.window.first),
            is_to_come=(steps > 0) & (-starts > self.window.last),
        )

    def _last_points(self, store: Store, before: np.ndarray, table: str, name: str) -> pd.DataFrame:
        """Return the last points of the runs `before` the chosen steps, in a bucket of their own, -1."""
        window = Window(-max(self.origins), self.window.first - 1, self.window.width)
        origins = np.array(self.origins)[before].tolist()
        past = replace(self, window=window, runs=self.runs[before], origins=origins)
        last = past.points(store, table, name).dropna(subset=["mean"]).groupby("run").tail(1)
        places = before.nonzero()[0]
        return last.assign(bucket=-1, run=places[last["run"]])


def carried(points: pd.DataFrame, ended: Collection[int]) -> pd.DataFrame:
    """Carry the runs `ended` on at their last value, to the last bucket of their arm; these
    rows have no x.
    """
    ends = points.groupby("arm")["bucket"].max()
    last = points[points["run"].isin(ended)].sort_values("bucket").groupby("run").tail(1)
    last = last.dropna(subset=["mean"])
    if last.empty:
        return points
    later = [range(b + 1, ends[arm] + 1) for arm, b in zip(last["arm"], last["bucket"], strict=True)]
    more = last.assign(low=last["mean"], high=last["mean"], non_finite=0, x=math.nan)
    more = more.assign(bucket=pd.Series(later, last.index)).explode("bucket").dropna(subset=["bucket"])
    return pd.concat([points, more.astype({"bucket": int})], ignore_index=True) if len(more) else points


def banded(points: pd.DataFrame, partial: Collection[str] = ()) -> pd.DataFrame:
    """Return mean x, interquartile mean, interval, extremes and n by arm and bucket, where it has all its
    seeds; `piece` counts the gaps, where some seed has no number.

    Of the `partial` arms a run is missing from `points`.
    """
    from sorl.analysis.stats import bands

    where = points.groupby(["arm", "bucket"], as_index=False, sort=False)["x"].mean()
    every = where.merge(bands(points), on=["arm", "bucket"], how="left").sort_values(["arm", "bucket"])
    seeds = points.groupby("arm")["run"].nunique()
    is_whole = (every["n"] == every["arm"].map(seeds)) & ~every["arm"].isin(partial)
    every["piece"] = (~is_whole).groupby(every["arm"]).cumsum()
    lines = every[is_whole].astype({"n": int})
    return lines.sort_values(["arm", "x"], ignore_index=True)


def lone(points: pd.DataFrame, bands: pd.DataFrame) -> pd.DataFrame:
    """Return the points that are drawn seed by seed: of arms without an interval, and where an arm has no
    line; `piece` counts the points of the line before, over which no seed is joined.
    """
    from sorl.analysis.stats import SPREAD

    recorded = points.dropna(subset=["x"])
    wide = bands.loc[bands["n"] >= SPREAD, ["arm", "bucket"]]
    alone = recorded[
        ~pd.MultiIndex.from_frame(recorded[["arm", "bucket"]]).isin(pd.MultiIndex.from_frame(wide))
    ]
    buckets = {arm: np.sort(part.to_numpy()) for arm, part in wide.groupby("arm")["bucket"]}
    piece = pd.Series(0, index=alone.index)
    for arm, part in alone.groupby("arm")["bucket"]:
        piece[part.index] = np.searchsorted(buckets.get(arm, np.empty(0)), part)
    return alone.assign(piece=piece)


def minus(points: pd.DataFrame, bands: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Return `points` less the line of `arm` in the same bucket of steps, where it has one."""
    less = points["bucket"].map(bands.loc[bands["arm"] == arm].set_index("bucket")["middle"]).astype(float)
    return points.assign(**{name: points[name] - less for name in ("mean", "low", "high")})[less.notna()]


class _Lines(NamedTuple):
    """What a panel draws: points by arm or by run, and the seeds that stand alone beside arms."""

    data: pd.DataFrame
    seeds: pd.DataFrame | None


@dataclass(frozen=True)
class Drawing:
    """How the points of a panel become lines."""

    bands: bool  # lines of arms, not of runs
    baseline: str | None = None  # the arm whose line is taken off
    smoothing: Smoothing = UNSMOOTHED


def panel(store: Store, chosen: Chosen, known: Diagnostics, metric: str, drawing: Drawing) -> Panel:
    """Return one diagnostic of the chosen runs, as bands over seeds or run by run, with its thresholds and
    alarms.

    With a baseline it is instead the differences to the line of that arm at the same step.
    """
    row = known.rows[metric]
    unit, definition = known.words(metric)
    table = row["table_name"]
    baseline = drawing.baseline
    with store.reader.together():
        found = chosen.points(store, table, row["name"])
        marks = _marks(store, chosen, row, found) if table == "step" and baseline is None else Marks()
        smoothed = smooth(found, drawing.smoothing, chosen.window.width)
        lines = _lines(store, chosen, row, smoothed, drawing)
        raw = None if smoothed is found else _lines(store, chosen, row, found, drawing)
    if baseline is not None:
        unit = f"{unit}, minus {baseline}".lstrip(", ")
    return Panel(
        known.label(metric),
        unit,
        _MEANS.get(table, "") + definition,
        lines.data,
        marks,
        found[found["non_finite"] > 0],
        lines.seeds,
        raw.data if raw is not None else None,
    )


def _lines(store: Store, chosen: Chosen, row: Row, points: pd.DataFrame, drawing: Drawing) -> _Lines:
    """Make points into the lines of a panel; what is NaN or Inf leaves a gap."""
    whole = points
    partial: list[str] = []
    if drawing.bands or drawing.baseline is not None:
        whole, partial = chosen.whole(store, points, row["table_name"], row["name"])
    if drawing.baseline is not None:
        line = banded(whole, partial)
        points = minus(points, line, drawing.baseline)
        whole = minus(whole, line, drawing.baseline)
    if not drawing.bands:
        return _Lines(points, None)
    data = banded(whole, partial)
    return _Lines(data, lone(points, data))


def _marks(store: Store, chosen: Chosen, row: Row, found: pd.DataFrame) -> Marks:
    """Return thresholds and alarms of a column of `step`, and the runs that fell before it could ring."""
    value = row["alarm_value"]
    points = row["alarm_baseline_points"]
    alarms = None
    if chosen.axis not in CLOCKS:
        events = store.query("events", runs=chosen.ids, origins=chosen.origins)
        mine = events[(events["kind"] == "alarm") & (events["diagnostic"] == row["name"])]
        alarms = chosen.named(chosen.inside(mine))
    if value is None:
        return Marks((), alarms)
    if points is None:
        return Marks((Threshold(None, float(value)),), alarms)
    starts = chosen.named(store.query("baseline", runs=chosen.ids, points=points, column=row["name"]))
    early = fell_unwatched(starts, onset_of(chosen.runs).to_numpy())
    starts = starts[(starts["baseline"] > 0) & starts["ready"].notna()]
    starts = starts.assign(first=_places_of(chosen, starts, found))
    thresholds = [
        Threshold(str(arm), float(value * mine["baseline"].median()), float(mine["first"].max()))
        for arm, mine in starts.groupby("arm", sort=False)
    ]
    return Marks(thresholds, alarms, early, int(points))


def fell_unwatched(starts: pd.DataFrame, onsets: np.ndarray) -> list[str]:
    """Return the runs that began to fall before a rule on their own first points could warn of it.

    `starts` answers `baseline`; `onsets` has the onset of every chosen run, NaN of one that stood. A warning
    comes at least a step before the onset.
    """
    onset = onsets[starts["run"].to_numpy(int)]
    watched = (starts["ready"].to_numpy(float) < onset) & (starts["baseline"].to_numpy(float) > 0)
    return list(starts.loc[~np.isnan(onset) & ~watched, "run_id"])


def _places_of(chosen: Chosen, starts: pd.DataFrame, found: pd.DataFrame) -> list[float]:
    """Return the x from which the rule of each of these runs can ring."""
    steps = starts["ready"] - np.array(chosen.origins)[starts["run"].to_numpy(int)]
    if chosen.axis not in CLOCKS:
        return list(steps.astype(float))
    places = []
    for run, step in zip(starts["run"], steps, strict=True):
        bucket = (step - chosen.window.first) // chosen.window.width
        later = found.loc[(found["run"] == run) & (found["bucket"] >= bucket), "x"]
        places.append(float(later.min()) if len(later) else math.inf)
    return places


def drawn(panels: Sequence[Panel]) -> pd.DataFrame:
    """Return the points of all panels, a row a point, for the export: lines of arms, and seeds that are drawn
    alone.
    """
    both = []
    for panel in panels:
        both += [(panel, part) for part in (panel.data, panel.seeds) if part is not None]
    every = pd.concat([part.assign(diagnostic=p.name, unit=p.unit) for p, part in both])
    return every.drop(columns=["run", "bucket", "piece"], errors="ignore")


def onsets(chosen: Chosen) -> pd.DataFrame:
    """Return where the chosen runs begin to fall (arm, run_id, x), on an axis that counts steps."""
    rows = chosen.runs[["arm", "run_id"]].assign(x=onset_of(chosen.runs) - chosen.origins).dropna()
    return rows.head(0) if chosen.axis in CLOCKS else chosen.inside(rows)


def alarmed(store: Store, runs: pd.DataFrame) -> pd.DataFrame:
    """Return those of the runs whose alarms were recorded: silence of the others tells nothing."""
    return runs[runs["run_id"].isin(store.query("watched", runs=list(runs["run_id"]))["run_id"])]


class FirstAlarms(NamedTuple):
    """The first alarms of many runs."""

    leads: pd.DataFrame  # `alarm_leads`
    dots: pd.DataFrame  # the leads behind it: alarm, arm, run_id, seed, lead (steps)
    unwatched: dict[str, list[str]]  # alarm -> the collapsed runs whose fall began before it could ring


def first_alarms(store: Store, runs: pd.DataFrame, known: Diagnostics) -> FirstAlarms:
    """Return the first alarms of the `alarmed` runs, and which of these fell before a rule could ring."""
    runs = alarmed(store, runs)
    found = store.query("leads", runs=list(runs["run_id"]))
    dots = found.dropna(subset=["lead"])
    named = {column: runs[column].to_numpy()[dots["run"]] for column in ("arm", "run_id", "seed")}
    return FirstAlarms(
        alarm_leads(found, known),
        dots.assign(alarm=dots["diagnostic"], **named),
        unwatched_runs(store, runs, known),
    )


def unwatched_runs(store: Store, runs: pd.DataFrame, known: Diagnostics) -> dict[str, list[str]]:
    """Return, by alarm, the collapsed runs whose fall began before its rule, on a run's own first points,
    could warn.
    """
    ids = list(runs["run_id"])
    onsets = runs["collapse_step"].astype(float).to_numpy()
    unwatched = {}
    for row in known.rows.values():
        if row["table_name"] != "step" or row["alarm_baseline_points"] is None or not len(ids):
            continue
        points = int(row["alarm_baseline_points"])
        starts = store.query("baseline", runs=ids, points=points, column=row["name"])
        early = fell_unwatched(starts.assign(run_id=np.array(ids, dtype=object)[starts["run"]]), onsets)
        if early:
            unwatched[str(row["name"])] = early
    return unwatched


def alarm_leads(leads: pd.DataFrame, known: Diagnostics) -> pd.DataFrame:
    """Return one row per alarm, the earliest median first and those that never warned last; `leads` answers
    `leads`.

    Of the `collapsed` runs an alarm warned in `before` (its first one at least a step ahead of the onset),
    came later in `after` and not at all in `never`; in `first` none came earlier (ties count for each).
    `lead_median`, `lead_low` and `lead_high` are in steps over the `before` runs. Of `steady` runs
    `false_alarms` raised it.
    """
    earliest = leads[leads["lead"] >= 1].groupby("run")["lead"].max()
    rows = []
    for name, part in leads.groupby("diagnostic", sort=False):
        fell = part[part["collapse_step"].notna()]
        steady = part[part["collapse_step"].isna()]
        warned = fell[fell["lead"] >= 1]
        low, middle, high = warned["lead"].astype(float).quantile([0.25, 0.5, 0.75])
        rows.append(
            {
                "alarm": str(name),
                "collapsed": len(fell),
                "before": len(warned),
                "never": int(fell["lead"].isna().sum()),
                "after": int((fell["lead"] < 1).sum()),
                "lead_median": middle,
                "lead_low": low,
                "lead_high": high,
                "first": int((warned["lead"].to_numpy() == earliest.reindex(warned["run"]).to_numpy()).sum()),
                "steady": len(steady),
                "false_alarms": int(steady["step"].notna().sum()),
                "direction": _ARROWS.get(str(known.rows.get(f"step.{name}", {}).get("alarm_when")), ""),
            }
        )
    found = pd.DataFrame(rows)
    return (
        found
        if found.empty
        else found.sort_values(["lead_median", "before"], ascending=False, ignore_index=True)
    )


def first_alarm(rung: Mapping[str, int], onset: int | None, rings: Mapping[Any, int], up: int) -> str:
    """Say which alarms of a run (`rung`: name -> first step) came first; they rang in `rings` of `up` healthy
    runs.
    """
    if not rung:
        return "No alarm went off."
    first = min(rung.values())
    names = [name for name, step in rung.items() if step == first]
    said = f"First alarm: {' and '.join(names)} at step {first:,}"
    if onset is not None:
        said += f", {from_onset(first, onset)}" + ("" if first < onset else ", so no warning")
    if later := len(rung) - len(names):
        said += f"; {counted(later, 'more kind')} of alarm later"
    if not up:
        return f"{said}."
    count = {name: rings.get(name, 0) for name in names}
    if min(count.values()) == up:
        runs = f"all {up} other runs" if up > 1 else "the only other run"
        it = "It also rang" if len(names) == 1 else "They also rang"
        return (
            f"{said}. {it} in {runs} that stayed up, so {'it tells' if len(names) == 1 else 'they tell'}"
            " nothing."
        )
    rang = " and ".join(f"{name} rang in {n}" for name, n in count.items())
    return f"{said}. Of the {counted(up, 'other run')} that stayed up, {rang}."
