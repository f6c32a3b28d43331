"""From the database to figures: the chosen runs and steps, the points of a column, panels of curves, early alarms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import pandas as pd

from workbench.app.figures.curves import Panel
from workbench.app.store import Diagnostics, Store

CLOCKS = {"updates": "updates", "tokens": "tokens_trained"}  # x-axis -> the column of `step` that adds up to it
_POINTS = 60_000  # of a whole panel: what a browser draws without a pause
_MOST, _LEAST = 240, 24  # points of one line
_ARROWS = {"above": "↑", "below": "↓"}
_MEANS = {"minibatch": "per optimizer update: ", "turn_step": "per turn index, all turns together: "}


class Window(NamedTuple):
    """The steps that are drawn (counted from each run's origin), and how many of them share a bucket."""

    first: int
    last: int
    width: int

    @classmethod
    def over(cls, first: int, last: int, lines: int, least: int = 1) -> Self:
        """Choose the buckets of `lines` curves: fewer to each where there are many."""
        return cls.made(first, last, min(_MOST, max(_LEAST, _POINTS // max(lines, 1))), least)

    @classmethod
    def made(cls, first: int, last: int, points: int, least: int = 1) -> Self:
        """Choose at most `points` buckets of at least `least` steps."""
        return cls(first, last, max(least, math.ceil((last - first + 1) / points)))


def origins(runs: pd.DataFrame, axis: str) -> list[int]:
    """Return the step that x counts from in each run: 0, or the onset of its collapse (if none: the median onset)."""
    if axis != "onset" or runs["collapse_step"].isna().all():
        return [0] * len(runs)
    onsets = runs["collapse_step"].astype(float)
    return [round(step) for step in onsets.fillna(onsets.median())]


def extent(store: Store, runs: pd.DataFrame, starts: Sequence[int]) -> tuple[int, int]:
    """Return the first and the last recorded step of `runs`, counted from the origin of each."""
    found = store.query("extent", runs=list(runs["run_id"]), origins=list(starts)).fillna(0)
    return int(found["first"].iloc[0]), int(found["last"].iloc[0])


@dataclass(frozen=True)
class Chosen:
    """The chosen runs in the order of their arms, the step that x counts from in each, and the steps to draw."""

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
        return found.assign(**{name: self.runs[name].to_numpy()[found["run"]] for name in ("arm", "run_id", "seed")})

    def inside(self, found: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of `found` whose x lies in the chosen steps."""
        return found[found["x"].between(self.window.first, self.window.last)]

    def points(self, store: Store, table: str, column: str) -> pd.DataFrame:
        """Return a row per run and bucket of a column: arm, run_id, seed, x (middle step or clock), mean, low, high."""
        window = self.window
        where = {"runs": self.ids, "origins": self.origins, "first": window.first, "width": window.width}
        found = self.named(store.query("series", **where, last=window.last, column=column, table=table))
        if self.axis in CLOCKS:
            clock = store.query("clock", **where, column=CLOCKS[self.axis])
            return found.merge(clock, on=["run", "bucket"], how="inner")
        return found.assign(x=window.first + found["bucket"] * window.width + (window.width - 1) / 2)


def banded(points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per arm and bucket: interquartile mean over seeds, its interval, the extremes, and the mean x."""
    from workbench.analysis.stats import bands

    where = points.groupby(["arm", "bucket"], as_index=False, sort=False)["x"].mean()
    return bands(points).merge(where, on=["arm", "bucket"], how="left").sort_values(["arm", "x"], ignore_index=True)


def panel(store: Store, chosen: Chosen, known: Diagnostics, metric: str, *, bands: bool) -> Panel:
    """Return one diagnostic of the chosen runs with its thresholds and alarms, as bands over seeds or run by run."""
    row, (unit, definition) = known.rows[metric], known.words(metric)
    table, name, value, points = (row[key] for key in ("table_name", "name", "alarm_value", "alarm_baseline_points"))
    thresholds: list[tuple[str | None, float]] = []
    alarms = None
    with store.reader.together():
        found = chosen.points(store, table, name)
        if table == "step" and value is not None and points is None:
            thresholds = [(None, float(value))]
        elif table == "step" and value is not None:  # of each arm the median over its runs
            baseline = chosen.named(store.query("baseline", runs=chosen.ids, points=points, column=name))
            usual = baseline[baseline["baseline"] > 0].groupby("arm", sort=False)["baseline"].median()
            thresholds = [(str(arm), float(value * base)) for arm, base in usual.items()]
        if table == "step" and chosen.axis not in CLOCKS:
            events = store.query("events", runs=chosen.ids, origins=chosen.origins)
            mine = events[(events["kind"] == "alarm") & (events["diagnostic"] == name)]
            alarms = chosen.named(chosen.inside(mine))
    finite = found if found["mean"].notna().all() else found.dropna(subset=["mean"])
    return Panel(
        known.label(metric), unit, _MEANS.get(table, "") + definition, banded(finite) if bands else finite,
        thresholds, alarms, found[found["non_finite"] > 0],
    )  # fmt: skip


def drawn(panels: Sequence[Panel]) -> pd.DataFrame:
    """Return the points of all panels, a row a point, for the export."""
    points = (p.data.drop(columns=["run", "bucket"], errors="ignore").assign(diagnostic=p.name) for p in panels)
    return pd.concat(list(points))


def onsets(chosen: Chosen) -> pd.DataFrame:
    """Return where the chosen runs collapse (arm, run_id, x), on an axis that counts steps."""
    rows = chosen.runs[["arm", "run_id"]].assign(x=chosen.runs["collapse_step"] - chosen.origins).dropna()
    return rows.head(0) if chosen.axis in CLOCKS else chosen.inside(rows)


def first_alarms(store: Store, runs: pd.DataFrame, known: Diagnostics) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `alarm_leads` of the runs, and the leads behind it: alarm, arm, run_id, seed, lead (steps)."""
    found = store.query("leads", runs=list(runs["run_id"]))
    dots = found.dropna(subset=["lead"])
    named = {column: runs[column].to_numpy()[dots["run"]] for column in ("arm", "run_id", "seed")}
    return alarm_leads(found, known), dots.assign(alarm=dots["diagnostic"], **named)


def alarm_leads(leads: pd.DataFrame, known: Diagnostics) -> pd.DataFrame:
    """Return one row per alarm, the earliest median first and those that never warned last; `leads` answers `leads`.

    Of the `collapsed` runs an alarm warned in `before` (its first one at least a step ahead of the onset), came later
    in `after` and not at all in `never`; in `first` none came earlier (ties count for each). `lead_median`, `lead_low`
    and `lead_high` are in steps over the `before` runs. Of `steady` runs `false_alarms` raised it.
    """
    earliest = leads[leads["lead"] >= 1].groupby("run")["lead"].max()
    rows = []
    for name, part in leads.groupby("diagnostic", sort=False):
        fell, steady = part[part["collapse_step"].notna()], part[part["collapse_step"].isna()]
        warned = fell[fell["lead"] >= 1]
        low, middle, high = warned["lead"].astype(float).quantile([0.25, 0.5, 0.75])
        rows.append({
            "alarm": str(name), "collapsed": len(fell), "before": len(warned), "never": int(fell["lead"].isna().sum()),
            "after": int((fell["lead"] < 1).sum()), "lead_median": middle, "lead_low": low, "lead_high": high,
            "first": int((warned["lead"].to_numpy() == earliest.reindex(warned["run"]).to_numpy()).sum()),
            "steady": len(steady), "false_alarms": int(steady["step"].notna().sum()),
            "direction": _ARROWS.get(str(known.rows.get(f"step.{name}", {}).get("alarm_when")), ""),
        })  # fmt: skip
    found = pd.DataFrame(rows)
    return found if found.empty else found.sort_values(["lead_median", "before"], ascending=False, ignore_index=True)


def first_warning(alarms: pd.DataFrame) -> str:
    """Say which of `alarm_leads` tells the runs that collapsed from those that did not, or that none does."""
    from workbench.analysis.stats import ALPHA, fisher_exact, p_value

    warned = [row for row in alarms.to_dict("records") if row["before"]]
    if not warned:
        return "No alarm went off before an onset."
    best = max(warned, key=lambda row: row["before"] / row["collapsed"] - row["false_alarms"] / max(row["steady"], 1))
    steady, false, before, fell = (int(best[name]) for name in ("steady", "false_alarms", "before", "collapsed"))
    lead = f"{best['lead_median']:.3g} step{'' if best['lead_median'] == 1 else 's'}"
    facts = f"went off before the onset in {before} of {fell} runs that collapsed (median lead {lead})"
    if not steady:
        return f"{best['alarm']} {facts}; no run stayed up, so nothing says that it would be silent there."
    facts += f", and in {false} of {steady} that did not"
    if before * steady <= false * fell:
        return f"No alarm told them apart: {best['alarm']} {facts}."
    p = min(1.0, len(warned) * fisher_exact(before, fell, false, steady))  # the best of so many
    if p > ALPHA:
        return f"No alarm is shown to tell them apart. The nearest, {best['alarm']}, {facts} (p = {p_value(p)})."
    return f"{best['alarm']} told them apart: it {facts} (p {'' if p < 0.001 else '= '}{p_value(p)})."
