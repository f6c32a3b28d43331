"""One arm against another: do they collapse equally often (Fisher) and equally soon (log-rank, Cox, restricted means).

Rows are those of survival.observed; the reference arm is always the one that the other is divided by or subtracted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.statistics import fisher_exact, holm, smallest_p
from workbench.analysis.survival import Z95, Estimate, common_horizon, restricted_mean

ALPHA = 0.05
CONVERGED = {"precision": 1e-14, "r_precision": 1e-14}  # lifelines' own are met some 2e-6 from the maximum
PERMUTATIONS = 20_000  # all labellings up to this many (8 runs against 8 are 12,870), as many drawn ones beyond


@dataclass(frozen=True)
class Test:
    """A test statistic (chi-squared), its degrees of freedom and its p-value."""

    chi2: float
    degrees: int
    p: float


def logrank(rows: pd.DataFrame) -> Test | None:
    """The log-rank test that the curves of all arms are one (Mantel and Haenszel; k arms, k - 1 degrees of freedom).

    None where nothing can be tested: no collapse, or never two arms at risk at once. An arm that no collapse finds at
    risk, because its runs are censored before the first one, takes no part.
    """
    from lifelines.statistics import multivariate_logrank_test

    fell = rows.loc[rows["event"], "time"]
    taking_part = rows.groupby("arm", sort=False)["time"].transform("max") >= fell.min() if len(fell) else fell
    rows = rows[taking_part] if len(fell) else rows.iloc[:0]
    arms = rows["arm"].nunique()
    if arms < 2 or not _mixed(rows):
        return None
    result = multivariate_logrank_test(rows["time"], rows["arm"], rows["event"])
    return Test(float(result.test_statistic), arms - 1, float(result.p_value))


def _mixed(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The risk sets of the collapse times at which runs of more than one arm were at risk."""
    sets = (rows[rows["time"] >= time] for time in sorted(rows.loc[rows["event"], "time"].unique()))
    return [at_risk for at_risk in sets if at_risk["arm"].nunique() > 1]


def permuted_logrank(rows: pd.DataFrame, reference: str) -> float | None:
    """Two-sided p-value of the log-rank statistic O - E of the reference arm over all ways to label the runs.

    Exact for few runs, where the chi-squared distribution of `logrank` is only an approximation; it supposes that
    censoring has nothing to do with the arm. O - E is a sum of scores (event - Nelson-Aalen hazard of all runs at the
    run's time), so only the labels move. None where `logrank` is None.
    """
    if logrank(rows) is None:
        return None
    times = np.sort(rows.loc[rows["event"], "time"].to_numpy())
    at_risk = np.array([(rows["time"] >= t).sum() for t in times])
    hazard = np.array([np.sum(1 / at_risk[times <= t]) for t in rows["time"]])
    score = rows["event"].to_numpy(float) - hazard
    mine = (rows["arm"] == reference).to_numpy()
    n, k = len(score), int(mine.sum())
    if math.comb(n, k) <= PERMUTATIONS:
        sums = score[np.array(list(combinations(range(n), k)))].sum(axis=1)
        drawn = 0
    else:
        stream = np.random.default_rng(0)
        sums = stream.permuted(np.tile(score, (PERMUTATIONS, 1)), axis=1)[:, :k].sum(axis=1)
        drawn = 1  # the labels as they are count among the drawn ones, or p could be 0
    # The same labels summed in another order must not count as less extreme.
    extreme = np.abs(sums) >= abs(score[mine].sum()) - 1e-9
    return float((extreme.sum() + drawn) / (len(sums) + drawn))


@dataclass(frozen=True)
class HazardRatio:
    """Hazard of an arm over the reference's, or, where it cannot be estimated, why not."""

    ratio: Estimate
    reason: str = ""


def hazard_ratio(rows: pd.DataFrame, reference: str) -> HazardRatio:
    """Cox's hazard ratio of the other arm to the reference (Efron's ties), with its 95 % Wald interval.

    Below 1: collapses less. It has a finite estimate only if, among the collapse times with both arms at risk, some
    lose a run of the one and some a run of the other; else the likelihood rises for ever, and no number is given.
    """
    from lifelines import CoxPHFitter

    arms = list(dict.fromkeys(rows["arm"]))
    if len(arms) < 2:
        return HazardRatio(Estimate(None), "no run to compare")
    other = next(arm for arm in arms if arm != reference)
    none = [arm for arm in (other, reference) if not rows.loc[rows["arm"] == arm, "event"].any()]
    if none:
        return HazardRatio(Estimate(None), f"no collapse in {' and '.join(none)}")
    # At a risk set's own time (its earliest), who collapses?
    fell = [set(s.loc[(s["time"] == s["time"].min()) & s["event"], "arm"]) for s in _mixed(rows)]
    for arm in (other, reference):
        if not any(arm in arms_lost for arms_lost in fell):
            return HazardRatio(Estimate(None), f"no collapse in {arm} while the other arm was at risk")
    data = pd.DataFrame({"time": rows["time"], "event": rows["event"], "other": (rows["arm"] == other).astype(float)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of, separation, is ruled out above
        fitted = CoxPHFitter().fit(data, "time", "event", fit_options=CONVERGED)
    beta, error = float(fitted.params_["other"]), float(fitted.standard_errors_["other"])
    return HazardRatio(Estimate(math.exp(beta), math.exp(beta - Z95 * error), math.exp(beta + Z95 * error)))


def restricted_mean_difference(rows: pd.DataFrame, reference: str) -> tuple[Estimate, float | None]:
    """Collapse-free steps of the other arm minus those of the reference, up to the horizon that both have; the horizon.

    Interval: difference +- 1.96 sqrt(sum of both variances), cut to what is possible; an arm without a collapse adds
    no variance, so its interval is too narrow, and there is none where both variances are 0.
    """
    horizon = common_horizon(rows)
    parts = {bool(mine): group for mine, group in rows.groupby(rows["arm"] == reference)}
    if not horizon or len(parts) < 2:
        return Estimate(None), horizon
    (other, variance), (own, more) = (restricted_mean(parts[mine], horizon) for mine in (False, True))
    half = Z95 * math.sqrt(variance + more)
    if half == 0:
        return Estimate(other - own), horizon
    low, high = max(-horizon, other - own - half), min(horizon, other - own + half)
    return Estimate(other - own, low, high), horizon


TESTS = ("fisher", "logrank", "permuted")


def against(arms: pd.DataFrame, rows: pd.DataFrame, reference: str) -> pd.DataFrame:
    """One row per other arm, compared with arm `reference`.

    `arms` has the incidences (arm, collapsed, judged), `rows` the runs of survival.observed. fisher_p: of the
    incidences; logrank_chi2, logrank_p and permuted_p: of the curves; each p-value with Holm's correction over the
    comparisons (`_holm`). hazard_ratio and rmst_difference (steps, up to horizon) with intervals, hazard_ratio_reason
    where there is no ratio. smallest_p is what the fewest runs allow a permutation to give, and undecidable says
    that even with it no corrected p-value could reach 0.05: no difference seen is then no evidence of none.
    """
    incidence = {row["arm"]: row for row in arms.to_dict(orient="records")}
    found = [
        _pair(row, incidence[reference], rows[rows["arm"].isin([arm, reference])])
        for arm, row in incidence.items()
        if arm != reference
    ]
    if not found:
        return pd.DataFrame()
    frame = pd.DataFrame(found).astype({f"{test}_p": object for test in TESTS})
    for test in TESTS:
        frame[f"{test}_holm"] = pd.Series(holm([_known(p) for p in frame[f"{test}_p"]]), dtype=object)
    best = holm([_known(p) for p in frame["smallest_p"]])
    frame["undecidable"] = [p is not None and p > ALPHA for p in best]
    return frame


def _known(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _pair(mine: dict[Hashable, Any], theirs: dict[Hashable, Any], rows: pd.DataFrame) -> dict[str, Any]:
    arm, reference = mine["arm"], theirs["arm"]
    judged = (int(mine["judged"]), int(theirs["judged"]))
    watched = (int((rows["arm"] == arm).sum()), int((rows["arm"] == reference).sum()))
    test, ratio = logrank(rows), hazard_ratio(rows, reference)
    difference, horizon = restricted_mean_difference(rows, reference)
    # Of the two kinds of n the larger: one test that could decide is enough.
    floors = [smallest_p(*n) for n in (judged, watched) if all(n)]
    fisher = None
    if all(judged):
        fisher = fisher_exact(int(mine["collapsed"]), judged[0], int(theirs["collapsed"]), judged[1])
    return {
        "arm": arm,
        "reference": reference,
        "fisher_p": fisher,
        "logrank_chi2": test and test.chi2,
        "logrank_p": test and test.p,
        "permuted_p": permuted_logrank(rows, reference),
        "hazard_ratio": ratio.ratio.value,
        "hazard_ratio_low": ratio.ratio.low,
        "hazard_ratio_high": ratio.ratio.high,
        "hazard_ratio_reason": ratio.reason or None,
        "rmst_difference": difference.value,
        "rmst_difference_low": difference.low,
        "rmst_difference_high": difference.high,
        "pair_horizon": horizon,
        "smallest_p": min(floors) if floors else None,
    }
