"""Two arms, seed by seed: how often they collapse, or by what factor a measurement differs.

`more` is the arm in which the claim expects more (collapses, clipping, growth): an effect in the claim's direction is a
difference above 0 or a factor above 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from workbench.analysis.paired import Paired, paired_mean, paired_proportions
from workbench.analysis.runs import KEPT, NOT_DEAD, survived
from workbench.analysis.statistics import clopper_pearson, fisher_exact
from workbench.spec import UNDECIDED

MIN_SEEDS = 5  # nothing is said of fewer
COLLAPSE, FACTOR = "collapse", "factor"


@dataclass(frozen=True)
class Control:
    """An arm that offers another explanation: its own collapses with their 95 % interval, of as many seeds."""

    arm: str
    collapsed: int
    n: int
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One tested hypothesis of a claim; effect, interval and test are None below MIN_SEEDS.

    effect: collapses of `more` minus those of `less` as shares of runs, or the factor of `more` over `less`; in_favour
    counts the seeds on the claim's side of none; counts: collapses of `more` and of `less`. smallest_p: what the test
    gives where `less` does all that the claim expects of it; deviation: of the log factors, in nats; left_out: seeds
    that one arm has and no pair could use.
    """

    measure: str
    more: str
    less: str
    seeds: int
    told: str = ""
    counts: tuple[int, int] | None = None
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    in_favour: int = 0
    p: float | None = None
    smallest_p: float | None = None
    deviation: float | None = None
    left_out: int = 0
    controls: tuple[Control, ...] = field(default=())
    reading: str = ""  # which reading of the paper ran


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """The finished runs, one per arm and seed: of several the first that was judged."""
    over = runs[runs["status"] == "finished"]
    over = over.assign(undecided=over["outcome"].isna()).sort_values(["undecided", "run_id"])
    return over.drop_duplicates(["arm", "seed"]).drop(columns="undecided")


def judged(runs: pd.DataFrame, survival: str = NOT_DEAD) -> pd.DataFrame:
    """The finished runs that can be called survivors or not, with `dead`; one per arm and seed.

    A run that never learned cannot fall: it is no evidence of either, nor is one that is too short for the rule or was
    falling at its end. With KEPT, a run that never learned or lost some of it is no survivor.
    """
    over = finished(runs)
    neither = UNDECIDED if survival == KEPT else ("no_learning", *UNDECIDED)
    over = over[over["outcome"].notna() & ~over["outcome"].isin(neither)]
    return over.assign(dead=~survived(over["outcome"], survival))


def collapses(over: pd.DataFrame, more: str, less: str) -> Comparison:
    """Compare collapses on the seeds that both arms have; `over` as `judged` gives it.

    The test is Fisher's, which passes over the pairing: where seeds make runs alike it only errs on the safe side, and
    an exact test within pairs could not reach 0.05 below six seeds whatever happens.
    """
    dead = {arm: dict(zip(rows["seed"], rows["dead"], strict=True)) for arm, rows in over.groupby("arm")}
    one, other = dead.get(more, {}), dead.get(less, {})
    seeds = sorted(set(one) & set(other))
    n, left_out = len(seeds), len(set(one) ^ set(other))
    if n < MIN_SEEDS:
        return Comparison(COLLAPSE, more, less, n, left_out=left_out)
    falls = [(bool(one[s]), bool(other[s])) for s in seeds]
    first, second = falls.count((True, False)), falls.count((False, True))
    a, b = sum(f for f, _ in falls), sum(s for _, s in falls)
    found = paired_proportions(falls.count((True, True)), first, second, falls.count((False, False)))
    return Comparison(
        COLLAPSE, more, less, n, f"{a}/{n} against {b}/{n}", (a, b), found.value, found.low, found.high, first,
        fisher_exact(a, n, b, n), fisher_exact(a, n, 0, n), left_out=left_out,
    )  # fmt: skip


def of_factors(logs: Mapping[Any, float], more: str, less: str, told: str = "", left_out: int = 0) -> Comparison:
    """Compare by the logarithms of the factors within seeds: geometric mean, t-interval and paired t-test on logs."""
    values = [logs[seed] for seed in sorted(logs)]
    n = len(values)
    if n < MIN_SEEDS:
        return Comparison(FACTOR, more, less, n, left_out=left_out)
    found: Paired = paired_mean(values)
    effect, low, high = (math.exp(max(-500.0, min(500.0, v))) for v in (found.value, found.low, found.high))
    deviation = float(pd.Series(values).std())
    return Comparison(
        FACTOR, more, less, n, told, None, effect, low, high, sum(v > 0 for v in values), found.p, 0.0, deviation,
        left_out=left_out,
    )  # fmt: skip


def control(over: pd.DataFrame, arm: str, seeds: Sequence[Any]) -> Control | None:
    """The collapses of an arm on these seeds; None below MIN_SEEDS."""
    mine = over[(over["arm"] == arm) & over["seed"].isin(list(seeds))]
    if len(mine) < MIN_SEEDS:
        return None
    k = int(mine["dead"].sum())
    return Control(arm, k, len(mine), *clopper_pearson(k, len(mine)))
