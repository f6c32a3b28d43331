"""From the database to figures: the chosen runs and steps, the points of a column, panels of curves, early
alarms.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sorl.app.figures.curves import Panel
from sorl.app.store import Diagnostics, Store
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
    def over(cls, first: int, last: int, lines: int = 1, least: int = 1, most: int = 240) -> Self:
        """Choose buckets of at least `least` steps, at most `most` to a line and fewer where `lines` are
        many.
        """
        # 60,000 a panel are drawn without a pause; 24 are a curve
        points = min(most, max(24, 60_000 // max(lines, 1)))
        return cls(first, last, max(least, math.ceil((last - first + 1) / points)))


def ended(run: Row) -> str:
    """Return the outcome of a run in words, its status while it has none."""
    if isinstance(outcome := run["outcome"], str):
        return STATES.get(outcome, outcome)
    return "falling" if pd.notna(run.get("slump")) else str(run["status"]).replace("finished", "undecided")


def fall_of(run: Row) -> tuple[int, int] | None:
    """Return the 95 % interval of the step after which a run (a row of table `run`) fell; None of one that
    did not.
    """
    steps = [
        int(run[name]) for name in ("onset_low", "collapse_step", "onset_high") if pd.notna(run.get(name))
    ]
    return (min(steps), max(steps)) if steps else None


def fell(run: Row) -> str:
    """Name the last step before the fall of a run, where that is not known the interval; nothing of one that
    stood.
    """
    if pd.notna(run.get("slump")):
        return f"since step {run['slump']:,.0f}"
    if pd.notna(run.get("collapse_step")):
        return f"after step {run['collapse_step']:,.0f}"
    first, last = fall_of(run) or (None, None)
    return (
        ""
        if first is None
        else f"after step {first:,}"
        if first == last
        else f"after steps {first:,} to {last:,}"
    )


def stands(run: Row) -> str:
    """Say how a run ended and after which step it fell, as in `collapsed after step 17`."""
    end = ended(run)
    after = fell(run)
    return (
        f"{end}{' ' if end in ('collapsed', 'falling', 'mild fall') else ', fell '}{after}" if after else end
    )


def onset_of(runs: pd.DataFrame) -> pd.Series:
    """Return the step at which each run began to fall, also of one that was falling at its end; NaN of the
    others.
    """
    known = runs.reindex(columns=["collapse_step", "onset_low", "onset_high"]).astype(float)
    return known["collapse_step"].fillna(((known["onset_low"] + known["onset_high"]) / 2).round())


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
    found = store.query("extent", runs=list(runs["run_id"]), origins=list(starts)).fillna(0)
    return int(found["first"].iloc[0]), int(found["last"].iloc[0])


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
        """Return a row per run and bucket of a column: arm, run_id, seed, x (middle step or clock), mean,
        low, high.
        """
        window = self.window
        where = {"runs": self.ids, "origins": self.origins, "first": window.first, "width": window.width}
        found = self.named(store.query("series", **where, last=window.last, column=column, table=table))
        if self.axis in CLOCKS:
            clock = store.query("clock", **where, column=CLOCKS[self.axis])
            return found.merge(clock, on=["run", "bucket"], how="inner")
        return found.assign(x=window.first + found["bucket"] * window.width + (window.width - 1) / 2)

    def whole(
        self, store: Store, points: pd.DataFrame, table: str, name: str
    ) -> tuple[pd.DataFrame, list[str]]:
        """Return `points` with what stopped runs would have had, and the arms that lack a run in all chosen
        steps.
        """
        steps = pd.to_numeric(self.runs.get("steps", pd.Series(index=self.runs.index))).to_numpy(
            float, na_value=0
        )
        starts = np.array(self.origins)
        gone = (steps > 0) & (steps - starts <= self.window.first)
        ended = stopped(self.runs).to_numpy()
        absent = gone | ((steps > 0) & (-starts > self.window.last))
        if table != "step" or name not in CARRIED:
            return points, list(self.runs["arm"][absent])
        if (before := gone & ended).any():  # their last values stand before the first of the chosen steps
            start = -max(self.origins)
            width = self.window.width
            window = Window(start, self.window.first - 1, width)
            past = replace(self, window=window, runs=self.runs[before], origins=starts[before].tolist())
            last = past.points(store, table, name).dropna(subset=["mean"]).groupby("run").tail(1)
            places = before.nonzero()[0]
            points = pd.concat([points, last.assign(bucket=-1, run=places[last["run"]])], ignore_index=True)
        points = carried(points, ended.nonzero()[0])
        return points[points["bucket"] >= 0], list(self.runs["arm"][absent & ~(gone & ended)])


def carried(points: pd.DataFrame, ended: Collection[int]) -> pd.DataFrame:
    """Carry the runs `ended` on at their last value, to the last bucket of their arm; these
    rows have no x.
    """
    ends = points.groupby("arm")["bucket"].max()
    last = points[points["run"].isin(ended)].sort_values("bucket").groupby("run").tail(1)
    if last.empty:
        return points
    later = [range(b + 1, ends[arm] + 1) for arm, b in zip(last["arm"], last["bucket"], strict=True)]
    more = last.assign(low=last["mean"], high=last["mean"], non_finite=0, x=math.nan)
    more = more.assign(bucket=pd.Series(later, last.index)).explode("bucket").dropna(subset=["bucket"])
    return pd.concat([points, more.astype({"bucket": int})], ignore_index=True) if len(more) else points


def banded(points: pd.DataFrame, partial: Collection[str] = ()) -> pd.DataFrame:
    """Return mean x, interquartile mean, interval, extremes and n by arm and bucket, where it has all its
    seeds.

    Of the `partial` arms a run is missing from `points`.
    """
    from sorl.analysis.stats import bands

    where = points.groupby(["arm", "bucket"], as_index=False, sort=False)["x"].mean()
    found = (
        bands(points)
        .merge(where, on=["arm", "bucket"], how="left")
        .sort_values(["arm", "x"], ignore_index=True)
    )
    seeds = points.groupby("arm")["run"].nunique()
    return found[(found["n"] == found["arm"].map(seeds)) & ~found["arm"].isin(partial)].reset_index(drop=True)


def lone(points: pd.DataFrame, bands: pd.DataFrame) -> pd.DataFrame:
    """Return the points that are drawn seed by seed: of arms without an interval, and where an arm has no
    line.
    """
    from sorl.analysis.stats import SPREAD

    recorded = points.dropna(subset=["x"])
    drawn = pd.MultiIndex.from_frame(bands.loc[bands["n"] >= SPREAD, ["arm", "bucket"]])
    return recorded[~pd.MultiIndex.from_frame(recorded[["arm", "bucket"]]).isin(drawn)]


def minus(points: pd.DataFrame, bands: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Return `points` less the line of `arm` in the same bucket of steps, where it has one."""
    less = points["bucket"].map(bands.loc[bands["arm"] == arm].set_index("bucket")["middle"]).astype(float)
    return points.assign(**{name: points[name] - less for name in ("mean", "low", "high")})[less.notna()]


def panel(
    store: Store, chosen: Chosen, known: Diagnostics, metric: str, *, bands: bool, baseline: str | None = None
) -> Panel:
    """Return one diagnostic of the chosen runs, as bands over seeds or run by run, with its thresholds and
    alarms.

    With `baseline` it is instead the differences to the line of that arm at the same step.
    """
    row = known.rows[metric]
    unit, definition = known.words(metric)
    table, name, value, points = (
        row[key] for key in ("table_name", "name", "alarm_value", "alarm_baseline_points")
    )
    thresholds: list[tuple[str | None, float]] = []
    alarms = None
    judged = table == "step" and baseline is None
    with store.reader.together():
        found = chosen.points(store, table, name)
        if judged and value is not None and points is None:
            thresholds = [(None, float(value))]
        elif judged and value is not None:  # of each arm the median over its runs
            starts = chosen.named(store.query("baseline", runs=chosen.ids, points=points, column=name))
            usual = starts[starts["baseline"] > 0].groupby("arm", sort=False)["baseline"].median()
            thresholds = [(str(arm), float(value * base)) for arm, base in usual.items()]
        if judged and chosen.axis not in CLOCKS:
            events = store.query("events", runs=chosen.ids, origins=chosen.origins)
            alarms = chosen.named(
                chosen.inside(events[(events["kind"] == "alarm") & (events["diagnostic"] == name)])
            )
        finite = found if found["mean"].notna().all() else found.dropna(subset=["mean"])
        whole, partial = (
            chosen.whole(store, finite, table, name) if bands or baseline is not None else (finite, [])
        )
    if baseline is not None:
        lines = banded(whole, partial)
        finite = minus(finite, lines, baseline)
        whole = minus(whole, lines, baseline)
        unit = f"{unit}, minus {baseline}".lstrip(", ")
    data = banded(whole, partial) if bands else finite
    return Panel(
        known.label(metric),
        unit,
        _MEANS.get(table, "") + definition,
        data,
        thresholds,
        alarms,
        found[found["non_finite"] > 0],
        lone(finite, data) if bands else None,
    )


def drawn(panels: Sequence[Panel]) -> pd.DataFrame:
    """Return the points of all panels, a row a point, for the export: lines of arms, and seeds that are drawn
    alone.
    """
    both = ((p, part) for p in panels for part in (p.data, p.seeds) if part is not None)
    every = pd.concat([part.assign(diagnostic=p.name, unit=p.unit) for p, part in both])
    return every.drop(columns=["run", "bucket"], errors="ignore")


def onsets(chosen: Chosen) -> pd.DataFrame:
    """Return where the chosen runs begin to fall (arm, run_id, x), on an axis that counts steps."""
    rows = chosen.runs[["arm", "run_id"]].assign(x=onset_of(chosen.runs) - chosen.origins).dropna()
    return rows.head(0) if chosen.axis in CLOCKS else chosen.inside(rows)


def alarmed(store: Store, runs: pd.DataFrame) -> pd.DataFrame:
    """Return those of the runs whose alarms were recorded: silence of the others tells nothing."""
    return runs[runs["run_id"].isin(store.query("watched", runs=list(runs["run_id"]))["run_id"])]


def first_alarms(store: Store, runs: pd.DataFrame, known: Diagnostics) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `alarm_leads` of the `alarmed` runs, and the leads behind it: alarm, arm, run_id, seed, lead
    (steps).
    """
    runs = alarmed(store, runs)
    found = store.query("leads", runs=list(runs["run_id"]))
    dots = found.dropna(subset=["lead"])
    named = {column: runs[column].to_numpy()[dots["run"]] for column in ("arm", "run_id", "seed")}
    return alarm_leads(found, known), dots.assign(alarm=dots["diagnostic"], **named)


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


def first_warning(alarms: pd.DataFrame) -> str:
    """Say of many runs which of `alarm_leads` tells those that collapsed from those that did not, or that
    none does.
    """
    from sorl.analysis.stats import fisher_exact, p_value
    from sorl.spec.evidence import ALPHA

    warned = [row for row in alarms.to_dict("records") if row["before"]]
    if not warned:
        return "No alarm went off before an onset."
    best = max(
        warned, key=lambda row: row["before"] / row["collapsed"] - row["false_alarms"] / max(row["steady"], 1)
    )
    steady, false, before, fell = (
        int(best[name]) for name in ("steady", "false_alarms", "before", "collapsed")
    )
    lead = f"{best['lead_median']:.3g} step{'' if best['lead_median'] == 1 else 's'}"
    facts = f"went off before the onset in {before} of {fell} runs that collapsed (median lead {lead})"
    if not steady:
        return f"{best['alarm']} {facts}; no run stayed up, so nothing says that it would be silent there."
    facts += f", and in {false} of {steady} that did not"
    if before * steady <= false * fell:
        return f"No alarm told them apart: {best['alarm']} {facts}."
    p = min(1.0, len(warned) * fisher_exact(before, fell, false, steady))  # the best of so many
    if p > ALPHA:
        return (
            f"No alarm tells them apart beyond chance. The nearest, {best['alarm']}, {facts} (p ="
            f" {p_value(p)})."
        )
    return f"{best['alarm']} told them apart: it {facts} (p {'' if p < 0.001 else '= '}{p_value(p)})."
