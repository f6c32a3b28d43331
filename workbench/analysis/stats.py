"""Statistics over few seeds: exact intervals, robust means, exact tests, power. Plain numbers in, plain
numbers out.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations_with_replacement
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import scipy  # its parts are loaded when they are used

from sorl.spec.evidence import ALPHA

LEVEL = 0.95
# the ends of the interval then move by less than a hundredth of its width from seed to seed
RESAMPLES = 10_000
# `bands` counts every resample of up to 7 seeds (1716 of them), and draws so many beyond
EXACT = 7
DRAWS = 1000
SPREAD = 3  # seeds from which on `bands` gives an interval: that of two would be the two


class Estimate(NamedTuple):
    """A figure with its 95 % interval and, where the test is of the same kind, its p-value; None: not
    estimable.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None

    def cut(self, low: float, high: float) -> Self:
        """Return the same figure with its interval cut to what is possible."""
        if self.low is None or self.high is None:
            return self
        return self._replace(low=max(low, self.low), high=min(high, self.high))

    def columns(self, name: str) -> dict[str, float | None]:
        """Return the figure as the columns `name`, `name_low` and `name_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def spanned(row: Mapping[Hashable, Any], name: str, form: str = ".2f") -> str:
    """`29.4 [22.0, -]` from the columns of an Estimate; a dash for what is missing, no brackets without
    either end.
    """
    value, low, high = (row[key] for key in (name, f"{name}_low", f"{name}_high"))
    if pd.isna(value):
        return "-"
    ends = ["-" if pd.isna(end) else format(end, form) for end in (low, high)]
    return format(value, form) if ends == ["-", "-"] else f"{format(value, form)} [{ends[0]}, {ends[1]}]"


def percent(fraction: float) -> str:
    """`12 %`."""
    return f"{100 * fraction:.0f} %"


def p_value(value: float | None) -> str:
    """`< 0.001`, `0.023`, `0.16`; a dash where nothing was tested."""
    if value is None:
        return "-"
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def clopper_pearson(count: int, n: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a proportion (Clopper and Pearson 1934); ValueError unless 0 <= count
    <= n.
    """
    interval = scipy.stats.binomtest(count, n).proportion_ci(LEVEL, method="exact")
    return float(interval.low), float(interval.high)


def fisher_exact(collapsed_a: int, n_a: int, collapsed_b: int, n_b: int) -> float:
    """Two-sided p-value of Fisher's exact test that two arms collapse equally often; ValueError for bad
    counts.
    """
    return float(
        scipy.stats.fisher_exact([[collapsed_a, n_a - collapsed_a], [collapsed_b, n_b - collapsed_b]]).pvalue
    )


def smallest_p(n_a: int, n_b: int) -> float:
    """The smallest two-sided p-value that permuting the runs can give: 1 / C(n_a + n_b, n_a), doubled for
    equal n.
    """
    return min(1.0, (2 if n_a == n_b else 1) / math.comb(n_a + n_b, n_a))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's p-values: the i-th smallest of m times (m - i + 1), never falling, at most 1; None stays
    None.
    """
    known = pd.Series(np.array(p_values, dtype=float)).dropna().sort_values()
    corrected = (known * np.arange(len(known), 0, -1)).cummax().clip(upper=1.0).to_dict()
    return [corrected.get(i) for i in range(len(p_values))]


def mean_interval(values: Sequence[float] | pd.Series) -> Estimate:
    """Return the mean with its Student-t interval and the t-test of 0 (of differences within seeds: the
    paired test).

    None without a value; no interval for one, no p-value where the values do not vary.
    """
    n = len(values)
    mean = float(sum(values)) / n if n else None
    if mean is None or n < 2:
        return Estimate(mean)
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
    half = float(scipy.stats.t.ppf(0.5 + LEVEL / 2, n - 1)) * error
    p = 2 * float(scipy.stats.t.sf(abs(mean) / error, n - 1)) if error > 1e-12 else None
    return Estimate(mean, mean - half, mean + half, p)


def interquartile_mean(strata: Sequence[Sequence[float] | pd.Series]) -> Estimate:
    """Return the mean of all values without the lowest and the highest floor(n / 4), as in rliable, with its
    interval.

    Percentile bootstrap inside each stratum (a condition with its seeds) from a fixed random stream. None
    without any value, NaN if any value is NaN; no interval where a stratum has fewer than two values.
    """
    every = [*chain.from_iterable(strata)]
    known = [sorted(stratum) for stratum in strata]
    if not every or any(map(math.isnan, every)):
        return Estimate(math.nan if every else None)
    middle = float(scipy.stats.trim_mean(every, 0.25))
    if any(len(stratum) < 2 for stratum in known):
        return Estimate(middle)

    def pooled(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(scipy.stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis))

    how = {"n_resamples": RESAMPLES, "confidence_level": LEVEL, "method": "percentile"}
    bootstrapped = scipy.stats.bootstrap(known, pooled, rng=np.random.default_rng(0), **how)
    # Interpolated between equal values, the lower end can come out one rounding above the upper.
    low, high = sorted(map(float, bootstrapped.confidence_interval))
    return Estimate(middle, low, high)


def chance_higher(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the chance that a value of `first` is above one of `second`, ties half: Mann-Whitney's U over
    the number of pairs.

    The interval is Newcombe's method 5 (Statistics in Medicine 2006), which holds for few values and at the
    ends; p-value of the two-sided Mann-Whitney test. No interval without a value on both sides.
    """
    n = len(first)
    m = len(second)
    if not n or not m:
        return Estimate(None)
    tested = scipy.stats.mannwhitneyu(first, second)
    chance = float(tested.statistic) / (n * m)
    z = float(scipy.stats.norm.ppf(0.5 + LEVEL / 2))

    def surplus(true: float) -> float:
        spread = 1 + ((n + m) / 2 - 1) * ((1 - true) / (2 - true) + true / (1 + true))
        return abs(chance - true) - z * math.sqrt(true * (1 - true) * spread / (n * m))

    edge = 1e-9  # at 0 and 1 itself the spread is none
    low = float(scipy.optimize.brentq(surplus, 0.0, min(chance, 1 - edge))) if chance > 0 else 0.0
    high = float(scipy.optimize.brentq(surplus, max(chance, edge), 1.0)) if chance < 1 else 1.0
    return Estimate(chance, low, high, float(tested.pvalue))


def collapses_needed(hazard_ratio: float, power: float = 0.8, alpha: float = ALPHA) -> float:
    """Collapses, of both arms together, that show `hazard_ratio` with this power: 4 (z_{1-a/2} + z_power)^2 /
    log^2 HR.

    Schoenfeld's d = (z + z)^2 / (p1 p2 log^2 HR) at p1 = p2 = 1/2, for a ratio that is positive and not 1.
    """
    z = scipy.stats.norm.ppf
    return 4 * (float(z(1 - alpha / 2) + z(power)) / math.log(hazard_ratio)) ** 2


def collapses_expected(hazard_ratio: float, incidence: float) -> float:
    """Collapses per seed of each arm: p of the reference and 1 - (1 - p)^HR of the other."""
    return incidence + 1 - (1 - incidence) ** hazard_ratio


def seeds_needed(hazard_ratio: float, incidence: float, power: float = 0.8, alpha: float = ALPHA) -> int:
    """Seeds per arm that yield `collapses_needed`, when a share `incidence` of the reference arm's runs
    collapses.
    """
    return math.ceil(
        collapses_needed(hazard_ratio, power, alpha) / collapses_expected(hazard_ratio, incidence) - 1e-9
    )


def power_of(seeds: int, hazard_ratio: float, incidence: float) -> float:
    """Probability that the test with `seeds` per arm finds `hazard_ratio`: Phi(sqrt(d / 4) |log HR| -
    z_{1-a/2}).
    """
    effect = math.sqrt(seeds * collapses_expected(hazard_ratio, incidence) / 4) * abs(math.log(hazard_ratio))
    return float(scipy.stats.norm.cdf(effect - scipy.stats.norm.ppf(1 - ALPHA / 2)))


def detectable(seeds: int, incidence: float, power: float = 0.8) -> float:
    """Return the hazard ratio nearest to 1, below it, that `seeds` per arm find with this power."""

    def surplus(log_ratio: float) -> float:
        return power_of(seeds, math.exp(log_ratio), incidence) - power

    low = -1.0  # power falls from 1 (log HR -> -inf) to alpha / 2 (log HR -> 0)
    while surplus(low) < 0:
        low *= 2
    return math.exp(float(scipy.optimize.brentq(surplus, low, -1e-9)))


def bands(values: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (arm, bucket) of `values`, which has a row per seed with `mean`, `low`, `high`.

    middle: interquartile mean of the seeds' `mean`; [lower, upper]: its percentile bootstrap interval over
    seeds, exact up to seven, NaN below SPREAD; low, high: extremes over seeds; n: seeds.
    """
    rows = values.dropna(subset=["mean"])
    rows = rows.assign(place=pd.factorize(rows["arm"])[0]).sort_values(["place", "bucket", "mean"])
    groups = rows.groupby(["place", "bucket"], sort=False)
    points = groups.agg(arm=("arm", "first"), n=("mean", "size"), low=("low", "min"), high=("high", "max"))
    n = points["n"].to_numpy()
    seeds = rows["mean"].to_numpy()
    first = np.cumsum(n) - n
    middle, lower, upper = np.full((3, len(n)), np.nan)
    for size in np.unique(n):
        at = np.flatnonzero(n == size)
        ascending = seeds[first[at][:, None] + np.arange(size)]  # (points, seeds)
        middle[at] = ascending @ _weights(np.ones((1, size)))[0]
        if size >= SPREAD:
            lower[at], upper[at] = _bootstrap_interval(ascending)
    return points.reset_index().drop(columns="place").assign(middle=middle, lower=lower, upper=upper)


def _bootstrap_interval(ascending: np.ndarray) -> list[np.ndarray]:
    """Ends of the percentile interval of the interquartile mean; the values are (points, seeds), sorted."""
    weights, chance = _resamples(ascending.shape[1])
    drawn = ascending @ weights.T  # (points, resamples)
    order = np.argsort(drawn, axis=1)
    below = np.cumsum(chance[order], axis=1)
    ends = []
    for quantile in ((1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2):
        place = np.minimum((below < quantile - 1e-12).sum(axis=1, keepdims=True), drawn.shape[1] - 1)
        ends.append(np.take_along_axis(drawn, np.take_along_axis(order, place, 1), 1)[:, 0])
    return ends


@lru_cache(maxsize=32)
def _resamples(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the sorted seeds in the interquartile mean of each resample, (R, n), and its probability,
    (R,).
    """
    if n <= EXACT:
        counts = np.array(
            [np.bincount(c, minlength=n) for c in combinations_with_replacement(range(n), n)], float
        )
        return _weights(counts), np.array([_orderings(row) for row in counts]) / n**n
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(float)
    return _weights(drawn), np.full(DRAWS, 1 / DRAWS)


def _orderings(counts: np.ndarray) -> float:
    """In how many orders a resample with these counts can be drawn."""
    repeats = math.prod(math.factorial(int(count)) for count in counts)
    return math.factorial(int(counts.sum())) / repeats


def _weights(counts: np.ndarray) -> np.ndarray:
    """Return each sorted value's weight in the interquartile mean where it occurs `counts` times (rows sum to
    1).
    """
    n = counts.sum(axis=1, keepdims=True)
    cut = np.floor(n / 4)
    end = np.cumsum(counts, axis=1)
    inside = np.minimum(end, n - cut) - np.maximum(end - counts, cut)
    return np.maximum(inside, 0) / (n - 2 * cut)
