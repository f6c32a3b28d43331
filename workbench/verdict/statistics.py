"""Statistics over few seeds: exact intervals, robust means, exact tests. Plain numbers in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median


def clopper_pearson(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval of a proportion from `count` successes in `n` trials (Clopper and Pearson 1934).

    Low = Beta(alpha/2; k, n - k + 1), high = Beta(1 - alpha/2; k + 1, n - k), alpha = 1 - level; fractions.
    Raises ValueError unless 0 <= count <= n and n >= 1.
    """
    from scipy.stats import beta

    if not 0 <= count <= n or n < 1:
        raise ValueError(f"{count} of {n} is no proportion")
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, n - count + 1))
    high = 1.0 if count == n else float(beta.ppf(1 - tail, count + 1, n - count))
    return low, high


def fisher_exact(collapsed_a: int, n_a: int, collapsed_b: int, n_b: int) -> float:
    """Two-sided p-value that two arms collapse equally often (Fisher's exact test on the 2 x 2 table of counts).

    Raises ValueError unless each count lies between 0 and its n.
    """
    from scipy.stats import fisher_exact as exact

    if not (0 <= collapsed_a <= n_a and 0 <= collapsed_b <= n_b):
        raise ValueError(f"{collapsed_a} of {n_a} and {collapsed_b} of {n_b} are no counts")
    return float(exact([[collapsed_a, n_a - collapsed_a], [collapsed_b, n_b - collapsed_b]]).pvalue)


def median_onset(onsets: Sequence[int | None]) -> float | None:
    """Median step of onset over the runs that collapsed; None (no collapse) entries are left out, None without any."""
    known = [onset for onset in onsets if onset is not None]
    return float(median(known)) if known else None


def median_survival(onsets: Sequence[int | None], lengths: Sequence[int]) -> float | None:
    """Kaplan-Meier median of the step of onset: runs without a collapse are censored at their length.

    The first step at which the survival estimate S(t) = prod (1 - d_i / n_i) is at most 1/2; None when it never is.
    """
    times = [
        (length if onset is None else onset, onset is not None) for onset, length in zip(onsets, lengths, strict=True)
    ]
    survival = 1.0
    for step in sorted({time for time, died in times if died}):
        at_risk = sum(time >= step for time, _ in times)
        deaths = sum(time == step and died for time, died in times)
        survival *= 1 - deaths / at_risk
        if survival <= 0.5 + 1e-12:
            return float(step)
    return None


def interquartile_mean(values: Sequence[float | None]) -> float | None:
    """Mean of the middle half of `values`, values at its edges weighted by the part that lies inside (rliable).

    None entries (not measured) are left out; None without any value; NaN if any value is NaN.
    """
    known = sorted((v for v in values if v is not None), key=lambda v: (math.isnan(v), v))
    if not known:
        return None
    if math.isnan(known[-1]):
        return math.nan
    n = len(known)
    low, high = n / 4, 3 * n / 4
    weights = [max(0.0, min(i + 1, high) - max(i, low)) for i in range(n)]
    return sum(w * v for w, v in zip(weights, known, strict=True)) / (high - low)
