"""Time to collapse of runs that were watched for different lengths: who was watched, curves, means, medians.

Time counts iterations trained. A run whose collapse begins at step t has the event at t: the policy that t iterations
made was the last good one. A run without a collapse is censored at the number of steps it has done, so one of 36 steps
at 36, however it ended: finished, failed, interrupted, stopped by a budget, still running. A run that diverged (NaN,
Inf) has the event at its last step, unless it had collapsed before; one that recovered had collapsed. A run that was
falling at its end is censored at the first step at which that fall may have begun. At a tie the collapse comes first: a
run censored at t was still at risk at t.

An onset is an estimate with an interval (`onset_low`, `onset_high`); the curves take the estimate. A run that never
learned cannot fall and counts as up; look how many of them there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.spec import UNDECIDED

if TYPE_CHECKING:
    from lifelines import KaplanMeierFitter

Z95 = 1.959963984540054  # 97.5 % point of the normal distribution
HALF = 0.5 + 1e-12  # a product of fractions that is 1/2 may be stored slightly above it


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; None where it cannot be estimated."""

    value: float | None
    low: float | None = None
    high: float | None = None


def observed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run that has begun: run_id, arm, seed, time (steps) and event (whether that is the collapse).

    `runs` has one row per run: run_id, arm, seed, outcome, collapse_step, onset_low, steps (done), and detected: the
    step at which a collapse was reported, which stands in for the onset while a run is in training and its row does not
    say it yet.
    """
    runs = runs.reset_index(drop=True)
    onset = runs["collapse_step"].astype(float)
    last = (runs["steps"].fillna(0).astype(float) - 1).clip(lower=0)
    fell = onset.fillna(runs["detected"].astype(float))
    time = fell.fillna(last.where(runs["outcome"] == "diverged"))
    up = runs["onset_low"].astype(float).where(runs["outcome"].isin(UNDECIDED))
    rows = pd.DataFrame(
        {
            "run_id": runs["run_id"], "arm": runs["arm"], "seed": runs["seed"],
            "time": time.fillna(up).fillna(runs["steps"].fillna(0)).astype(float), "event": time.notna(),
        }
    )  # fmt: skip
    return rows[rows["event"] | (rows["time"] > 0)].reset_index(drop=True)


def curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Kaplan-Meier curves, one row per arm and step at which something happened, from step 0.

    survival S(t) = prod over t_j <= t of (1 - d_j / n_j), the share of runs whose collapse has not begun by t; low and
    high its 95 % interval (Greenwood's variance, log-log scale; NaN where S is 0); at_risk n_j, events d_j, censored.
    """
    parts = [_curve(str(arm), group) for arm, group in rows.groupby("arm", sort=False)]
    columns = ["arm", "time", "at_risk", "events", "censored", "survival", "low", "high"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _curve(arm: str, rows: pd.DataFrame) -> pd.DataFrame:
    fitted = _kaplan_meier(rows)
    table, band = fitted.event_table, fitted.confidence_interval_
    survival = fitted.survival_function_.iloc[:, 0].to_numpy()
    low, high = (np.where(survival > 0, band.iloc[:, end].to_numpy(), np.nan) for end in (0, 1))
    return pd.DataFrame(
        {
            "arm": arm, "time": table.index.to_numpy(), "at_risk": table["at_risk"].to_numpy(),
            "events": table["observed"].to_numpy(), "censored": table["censored"].to_numpy(),
            "survival": survival, "low": low, "high": high,
        }
    )  # fmt: skip


def _kaplan_meier(rows: pd.DataFrame) -> KaplanMeierFitter:
    from lifelines import KaplanMeierFitter

    return KaplanMeierFitter().fit(rows["time"], rows["event"])


def median_time(rows: pd.DataFrame) -> Estimate:
    """Step by which half of the runs have collapsed: the first t with S(t) <= 1/2; None when it is never reached.

    The interval is where the curve's own 95 % band crosses 1/2 (Brookmeyer and Crowley); None for an end that the runs
    are too short or too few to have.
    """
    if not rows["event"].any():
        return Estimate(None)
    steps = _curve("", rows)

    def crossing(name: str) -> float | None:
        below = steps.loc[steps[name] <= HALF, "time"]
        return float(below.iloc[0]) if len(below) else None

    return Estimate(crossing("survival"), crossing("low"), crossing("high"))


def common_horizon(rows: pd.DataFrame) -> float | None:
    """Return the longest time up to which every arm's curve is known: the shortest, over arms, of its longest run.

    An arm whose last run collapsed has a curve that ends at 0 and is known for ever. None without a run.
    """
    if rows.empty:
        return None
    ends = []
    for _, group in rows.groupby("arm", sort=False):
        last = group["time"].max()
        if not group.loc[group["time"] == last, "event"].all():
            ends.append(last)
    return float(min(ends)) if ends else float(rows["time"].max())


def restricted_mean(rows: pd.DataFrame, horizon: float) -> tuple[float, float]:
    """Restricted mean collapse-free steps up to `horizon`, the area under S, and the variance of that estimate.

    Variance: sum over collapses at t_j <= horizon of (area under S from t_j to horizon)^2 d_j / (n_j (n_j - d_j)), the
    Greenwood form that R's survfit and survRM2 print; 0 where no collapse, or all of them at once, leave none to
    estimate.
    """
    from lifelines.utils import restricted_mean_survival_time

    fitted = _kaplan_meier(rows)
    mean = float(restricted_mean_survival_time(fitted, t=horizon))
    table = fitted.event_table[fitted.event_table.index <= horizon]
    step = np.append(table.index.to_numpy(float), horizon)
    area = np.diff(step) * fitted.survival_function_.iloc[: len(table), 0].to_numpy()  # from each time to the next
    later = np.cumsum(area[::-1])[::-1]
    died, at_risk = table["observed"].to_numpy(float), table["at_risk"].to_numpy(float)
    left = at_risk - died
    weight = np.divide(died, at_risk * left, out=np.zeros_like(died), where=left > 0)  # no area is left after S = 0
    return mean, float(np.sum(later**2 * weight))


def restricted_mean_interval(rows: pd.DataFrame, horizon: float) -> Estimate:
    """The restricted mean with mean +- 1.96 standard errors, cut to [0, horizon]; no interval for a variance of 0."""
    mean, variance = restricted_mean(rows, horizon)
    if variance <= 0:
        return Estimate(mean)
    half = Z95 * variance**0.5
    return Estimate(mean, max(0.0, mean - half), min(horizon, mean + half))


def survival_at(rows: pd.DataFrame, time: float) -> float:
    """Return the Kaplan-Meier estimate S(time): the share of runs whose collapse has not begun by `time`."""
    return float(_kaplan_meier(rows).predict(time))


def by_arm(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: watched (runs), events (collapses), median and restricted mean (rmst) with intervals, horizon.

    All times in steps; the restricted means of all arms end at their common horizon.
    """
    horizon = common_horizon(rows)
    return pd.DataFrame([_arm(str(arm), group, horizon) for arm, group in rows.groupby("arm", sort=False)])


def _arm(arm: str, rows: pd.DataFrame, horizon: float | None) -> dict[str, Any]:
    median = median_time(rows)
    mean = restricted_mean_interval(rows, horizon) if horizon else Estimate(None)
    return {
        "arm": arm,
        "watched": len(rows),
        "events": int(rows["event"].sum()),
        "median": median.value, "median_low": median.low, "median_high": median.high,
        "rmst": mean.value, "rmst_low": mean.low, "rmst_high": mean.high,
        "horizon": horizon,
    }  # fmt: skip
