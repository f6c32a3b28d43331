"""Two arms with shared seeds: paired differences with intervals, and what so many seeds can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MOST = 60  # seeds per arm up to which `seeds_for_fisher` looks


@dataclass(frozen=True)
class Paired:
    """An estimate over pairs with its 95 % interval and, where the test is of the same kind, its p-value."""

    value: float
    low: float
    high: float
    p: float | None = None


def paired_proportions(both: int, first: int, second: int, neither: int, level: float = 0.95) -> Paired:
    """Difference of two proportions of the same n pairs, with Newcombe's score interval (1998, method 10).

    d = (first - second) / n, where `first` pairs have the event in the first arm only. Low = d - sqrt(a^2 - 2 phi a b
    + b^2) with a, b the distances to Wilson's limits, phi the pairs' correlation. Raises ValueError without pairs.
    """
    from scipy.stats import binomtest

    n = both + first + second + neither
    if n < 1 or min(both, first, second, neither) < 0:
        raise ValueError(f"{both}, {first}, {second}, {neither} are no counts of pairs")
    ones, twos = both + first, both + second
    one, two = (binomtest(k, n).proportion_ci(level, method="wilson") for k in (ones, twos))
    scale = math.sqrt(ones * (n - ones) * twos * (n - twos))
    cross = both * neither - first * second
    # Newcombe's continuity correction of a positive correlation.
    phi = 0.0 if scale == 0 else (max(cross - n / 2, 0.0) if cross > 0 else cross) / scale
    p1, p2 = ones / n, twos / n

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    low = p1 - p2 - reach(p1 - one.low, two.high - p2)
    high = p1 - p2 + reach(one.high - p1, p2 - two.low)
    return Paired(p1 - p2, max(-1.0, low), min(1.0, high))


def paired_mean(differences: Sequence[float], level: float = 0.95) -> Paired:
    """Mean of the differences within seeds, Student-t interval and two-sided paired t-test of 0.

    p is None where the differences do not vary. Raises ValueError for fewer than two.
    """
    from scipy.stats import t

    n = len(differences)
    if n < 2:
        raise ValueError(f"{n} differences have no interval")
    mean, error = float(np.mean(differences)), float(np.std(differences, ddof=1)) / math.sqrt(n)
    half = float(t.ppf(0.5 + level / 2, n - 1)) * error
    return Paired(mean, mean - half, mean + half, 2 * float(t.sf(abs(mean) / error, n - 1)) if error > 1e-12 else None)


def power_of_t(n: int, deviation: float, effect: float, alpha: float) -> float:
    """Probability that a paired t-test of n differences with this standard deviation finds a mean of `effect`."""
    from scipy.stats import nct, t

    if deviation <= 0:
        return 1.0
    shift, bound = abs(effect) / deviation * math.sqrt(n), float(t.ppf(1 - alpha / 2, n - 1))
    return float(nct.sf(bound, n - 1, shift))


@lru_cache(maxsize=256)
def _fisher(n: int) -> np.ndarray:
    """Two-sided p-values of Fisher's test for every pair of counts in two arms of n, (n + 1, n + 1)."""
    from scipy.stats import hypergeom

    table = np.ones((n + 1, n + 1))
    for total in range(2 * n + 1):
        first = np.arange(max(0, total - n), min(n, total) + 1)
        chance = hypergeom.pmf(first, 2 * n, total, n)
        table[first, total - first] = [chance[chance <= c * (1 + 1e-7)].sum() for c in chance]
    return table


def power_of_fisher(n: int, share_a: float, share_b: float, alpha: float) -> float:
    """Probability that Fisher's test of n runs against n tells these two true shares apart, by enumeration."""
    from scipy.stats import binom

    a, b = (binom.pmf(np.arange(n + 1), n, share) for share in (share_a, share_b))
    return float((np.outer(a, b) * (_fisher(n) <= alpha)).sum())


@lru_cache(maxsize=256)
def seeds_for_fisher(share_a: float, share_b: float, alpha: float, power: float = 0.8) -> int | None:
    """Fewest seeds per arm with which `power_of_fisher` is at least `power`; None above MOST."""
    return next((n for n in range(2, MOST + 1) if power_of_fisher(n, share_a, share_b, alpha) >= power), None)
