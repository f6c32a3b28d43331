"""Time to collapse of runs that were watched for different lengths: curves, means, medians, tests, hazard
ratios.

docs/statistics.md says what time, event and censoring are. A run that recovered has its event at its onset as
well.
"""

import math
import warnings
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sorl.analysis.stats import Estimate
from sorl.spec import UNDECIDED

Z95 = 1.959963984540054  # 97.5 % point of the normal distribution
CURVE = ["arm", "time", "at_risk", "events", "censored", "survival", "low", "high"]
HALF = 0.5 + 1e-12  # a product of fractions that is 1/2 may be stored slightly above it
CONVERGED = {"precision": 1e-14, "r_precision": 1e-14}  # lifelines' own are met some 2e-6 from the maximum
# all labellings up to this many (8 runs against 8 are 12,870), as many drawn ones beyond
PERMUTATIONS = 20_000


def observed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return run_id, arm, seed, time (steps), event (the collapse?) and recovered of each run
    that has begun.
    """
    runs = runs.reset_index(drop=True)
    steps = runs["steps"].astype(float).fillna(0)
    fell = runs["collapse_step"].astype(float).fillna(runs["detected"].astype(float))
    time = fell.fillna((steps - 1).clip(lower=0).where(runs["outcome"] == "diverged"))
    falling = runs["onset_low"].astype(float).where(runs["outcome"].isin(UNDECIDED))
    rows = runs[["run_id", "arm", "seed"]].assign(time=time.fillna(falling).fillna(steps), event=time.notna())
    rows["recovered"] = runs["outcome"] == "recovered"
    return rows[rows["event"] | (rows["time"] > 0)].reset_index(drop=True)


def collapses(rows: pd.DataFrame) -> str:
    """Say how many of `observed` runs collapsed: `3 of 10 collapsed, 1 of them recovered`."""
    back = int(rows["recovered"].sum())
    tail = f", {back} of them recovered" if back else ""
    return f"{int(rows['event'].sum())} of {len(rows)} collapsed{tail}"


def _kaplan_meier(rows: pd.DataFrame) -> Any:
    from lifelines import KaplanMeierFitter

    return KaplanMeierFitter().fit(rows["time"], rows["event"])


def curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Return Kaplan-Meier curves, one row per arm and step at which something happened, from step 0.

    survival S(t) = prod over t_j <= t of (1 - d_j / n_j), the share of runs whose collapse has not begun by
    t; low and high its 95 % interval (Greenwood's variance, log-log scale; NaN where S is 0); at_risk n_j,
    events d_j, censored.
    """
    parts = []
    for arm, group in rows.groupby("arm", sort=False):
        fitted = _kaplan_meier(group)
        table = fitted.event_table.rename(columns={"observed": "events"}).reset_index(names="time")
        table["survival"] = fitted.survival_function_.iloc[:, 0].to_numpy()
        band = fitted.confidence_interval_.to_numpy()
        table[["low", "high"]] = np.where(table[["survival"]].to_numpy() > 0, band, np.nan)
        parts.append(table.assign(arm=str(arm))[CURVE])
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=CURVE)


def median_time(rows: pd.DataFrame) -> Estimate:
    """Return the first step with S <= 1/2, and where its band gets there (Brookmeyer and Crowley); None where
    never.
    """
    steps = curve(rows)
    crossed = [steps.loc[steps[name] <= HALF, "time"].tolist() for name in ("survival", "low", "high")]
    return Estimate(*(times[0] if times and steps["events"].any() else None for times in crossed))


def common_horizon(rows: pd.DataFrame) -> float | None:
    """Return the time up to which all curves are known: for ever where the last run collapsed; None without a
    run.
    """
    if rows.empty:
        return None
    last = rows[rows["time"] == rows.groupby("arm")["time"].transform("max")]
    up = last[~last["event"]]
    return float(up["time"].min() if len(up) else rows["time"].max())


class RestrictedMean(NamedTuple):
    """The restricted mean of collapse-free steps of so many runs of an arm, and Greenwood's variance."""

    mean: float
    variance: float
    runs: int

    @property
    def sampling_variance(self) -> float:
        """Greenwood's variance times n / (n - 1): without censoring the usual variance of a mean of n."""
        return self.variance * self.runs / (self.runs - 1) if self.runs > 1 else math.inf


def restricted_mean(rows: pd.DataFrame, horizon: float) -> RestrictedMean:
    """Return the restricted mean of collapse-free steps up to `horizon`, the area under S, and its variance.

    Variance: sum over collapses at t_j <= horizon of (area under S from t_j to horizon)^2 d_j / (n_j (n_j -
    d_j)), the Greenwood form that R's survfit and survRM2 print; 0 where no collapse, or all of them at once,
    leave none.
    """
    from lifelines.utils import restricted_mean_survival_time

    fitted = _kaplan_meier(rows)
    mean = float(restricted_mean_survival_time(fitted, t=horizon))
    table = fitted.event_table[fitted.event_table.index <= horizon]
    step = np.append(table.index.to_numpy(float), horizon)
    # from each time to the next
    area = np.diff(step) * fitted.survival_function_.iloc[: len(table), 0].to_numpy()
    later = np.cumsum(area[::-1])[::-1]
    died = table["observed"].to_numpy(float)
    at_risk = table["at_risk"].to_numpy(float)
    left = at_risk - died
    # no area is left after S = 0
    weight = np.divide(died, at_risk * left, out=np.zeros_like(died), where=left > 0)
    return RestrictedMean(mean, float(np.sum(later**2 * weight)), len(rows))


def _student(value: float, variance: float, degrees: float) -> Estimate:
    """Return the value with its 95 % Student-t interval; none for a variance that is 0 or not known."""
    from scipy.stats import t

    if not 0 < variance < math.inf:
        return Estimate(value)
    half = float(t.ppf(0.975, degrees)) * math.sqrt(variance)
    return Estimate(value, value - half, value + half)


def restricted_mean_interval(rows: pd.DataFrame, horizon: float) -> Estimate:
    """Return the restricted mean of one arm with its 95 % interval, Student's t of n - 1 degrees."""
    mean = restricted_mean(rows, horizon)
    return _student(mean.mean, mean.sampling_variance, mean.runs - 1).cut(0.0, horizon)


def restricted_mean_difference(rows: pd.DataFrame, reference: str) -> tuple[Estimate, float | None]:
    """Return the collapse-free steps of the other arm minus those of the reference, up to their horizon, and
    that.

    The interval is Welch's: the variances v add up, and Student's t has (v + w)^2 / (v^2 / (n - 1) + w^2 / (m
    - 1)) degrees of freedom. None where no arm has a variance, or where one has a single run.
    """
    horizon = common_horizon(rows)
    if not horizon or rows["arm"].nunique() < 2:
        return Estimate(None), horizon
    mine = rows["arm"] == reference
    other = restricted_mean(rows[~mine], horizon)
    own = restricted_mean(rows[mine], horizon)
    gained = other.mean - own.mean
    variance = other.sampling_variance + own.sampling_variance
    if not 0 < variance < math.inf:
        return Estimate(gained), horizon
    spread = sum(arm.sampling_variance**2 / (arm.runs - 1) for arm in (other, own))
    return _student(gained, variance, variance**2 / spread).cut(-horizon, horizon), horizon


def survival_at(rows: pd.DataFrame, time: float) -> float:
    """Return the Kaplan-Meier estimate S(time): the share of runs whose collapse has not begun by `time`."""
    return float(_kaplan_meier(rows).predict(time))


def by_arm(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: watched, events, median and rmst (to the common horizon) with intervals, horizon; in
    steps.
    """
    horizon = common_horizon(rows)
    arms = []
    for arm, group in rows.groupby("arm", sort=False):
        mean = restricted_mean_interval(group, horizon) if horizon else Estimate(None)
        row = {"arm": str(arm), "watched": len(group), "events": int(group["event"].sum())}
        arms.append(row | median_time(group).columns("median") | mean.columns("rmst") | {"horizon": horizon})
    return pd.DataFrame(arms)


class Test(NamedTuple):
    """A test statistic (chi-squared), its degrees of freedom and its p-value."""

    chi2: float
    degrees: int
    p: float


def logrank(rows: pd.DataFrame) -> Test | None:
    """Return the log-rank test that all curves are one (Mantel and Haenszel; k arms, k - 1 degrees), or None.

    None for no collapse, or never two arms at risk at once. An arm that is all censored before takes no part.
    """
    from lifelines.statistics import multivariate_logrank_test

    last = rows.groupby("arm", sort=False)["time"].transform("max")
    rows = rows[last >= rows.loc[rows["event"], "time"].min()]  # none where none collapsed
    if not _mixed(rows):
        return None
    result = multivariate_logrank_test(rows["time"], rows["arm"], rows["event"])
    return Test(float(result.test_statistic), rows["arm"].nunique() - 1, float(result.p_value))


def _mixed(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The risk sets of the collapse times at which runs of more than one arm were at risk."""
    sets = (rows[rows["time"] >= time] for time in sorted(rows.loc[rows["event"], "time"].unique()))
    return [at_risk for at_risk in sets if at_risk["arm"].nunique() > 1]


def permuted_logrank(rows: pd.DataFrame, reference: str) -> float | None:
    """Return the two-sided p-value of the log-rank statistic O - E of the reference arm over all labellings,
    or None.

    Exact for few runs, where chi-squared is an approximation; supposes that censoring does not depend on the
    arm. O - E is a sum of scores (event - Nelson-Aalen hazard at the run's time).
    """
    if logrank(rows) is None:
        return None
    time = rows["time"].to_numpy()
    event = rows["event"].to_numpy(float)
    mine = (rows["arm"] == reference).to_numpy()
    times = np.sort(time[event > 0])
    at_risk = (time >= times[:, None]).sum(axis=1)
    score = event - np.array([np.sum(1 / at_risk[times <= t]) for t in time])
    n = len(score)
    k = int(mine.sum())
    drawn = 0
    if math.comb(n, k) <= PERMUTATIONS:
        sums = score[np.array(list(combinations(range(n), k)))].sum(axis=1)
    else:
        sums = np.random.default_rng(0).permuted(np.tile(score, (PERMUTATIONS, 1)), axis=1)[:, :k].sum(axis=1)
        drawn = 1  # the labels as they are count among the drawn ones, or p could be 0
    # The same labels summed in another order must not count as less extreme.
    extreme = np.abs(sums) >= abs(score[mine].sum()) - 1e-9
    return float((extreme.sum() + drawn) / (len(sums) + drawn))


def hazard_ratio(rows: pd.DataFrame, reference: str) -> tuple[Estimate, str]:
    """Return Cox's hazard ratio of the other arm to the reference (Efron's ties) with its Wald interval; else
    why not.

    Below 1: collapses less. Finite only if, while both arms are at risk, each loses a run.
    """
    from lifelines import CoxPHFitter

    other = next((str(arm) for arm in rows["arm"] if arm != reference), None)
    if other is None or reference not in set(rows["arm"]):
        return Estimate(None), "no run to compare"
    if none := [arm for arm in (other, reference) if not rows.loc[rows["arm"] == arm, "event"].any()]:
        return Estimate(None), f"no collapse in {' and '.join(none)}"
    fell = set[str]()
    for at_risk in _mixed(rows):
        # At a risk set's own time (its earliest), who collapses?
        is_now = at_risk["time"] == at_risk["time"].min()
        fell |= set(at_risk.loc[is_now & at_risk["event"], "arm"])
    for arm in (other, reference):
        if arm not in fell:
            return Estimate(None), f"no collapse in {arm} while the other arm was at risk"
    data = rows[["time", "event"]].assign(other=(rows["arm"] == other).astype(float))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of, separation, is ruled out above
        fitted = CoxPHFitter().fit(data, "time", "event", fit_options=CONVERGED)
    beta = float(fitted.params_["other"])
    error = float(fitted.standard_errors_["other"])
    return Estimate(math.exp(beta), math.exp(beta - Z95 * error), math.exp(beta + Z95 * error)), ""
