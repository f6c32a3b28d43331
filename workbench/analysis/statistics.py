"""Statistics over few seeds: exact intervals, robust means, exact tests. Plain numbers in, plain numbers out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

RESAMPLES = 10_000  # the ends of the interval then move by less than a hundredth of its width from seed to seed


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


def interquartile_mean(values: Sequence[float | None]) -> float | None:
    """Mean without the lowest and the highest floor(n / 4) values, as in rliable; below four values the plain mean.

    None entries (not measured) are left out; None without any value; NaN if any value is NaN.
    """
    from scipy.stats import trim_mean

    known = [v for v in values if v is not None]
    if not known:
        return None
    # Sorting puts NaN last, where it would be trimmed away.
    return math.nan if any(math.isnan(v) for v in known) else float(trim_mean(known, 0.25))


def interquartile_mean_interval(
    strata: Sequence[Sequence[float | None]], level: float = 0.95
) -> tuple[float | None, float | None]:
    """Percentile interval of the IQM of all values pooled, by a bootstrap that resamples inside each stratum.

    A stratum is a condition or a task with its seeds; one stratum is the plain bootstrap. The random stream is fixed,
    so the same values give the same interval. None entries are left out. No interval (None, None) where a stratum has
    fewer than two values: what differs between its seeds is then unknown; nor where a value is NaN.
    """
    import numpy as np
    from scipy.stats import bootstrap, trim_mean

    known = [sorted(v for v in stratum if v is not None) for stratum in strata]
    if not known or any(len(v) < 2 for v in known) or any(math.isnan(x) for v in known for x in v):
        return None, None

    def pooled(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis))

    found = bootstrap(
        known,
        pooled,
        n_resamples=RESAMPLES,
        confidence_level=level,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    # Interpolated between equal values, the lower end can come out one rounding above the upper.
    low, high = sorted((float(found.low), float(found.high)))
    return low, high


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down p-values of a family of tests: the i-th smallest times (m - i + 1), never decreasing, at most 1.

    None entries (no test was possible) belong to no family and stay None.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        corrected[i] = highest
    return corrected


def smallest_p(n_a: int, n_b: int) -> float:
    """The smallest two-sided p-value that a test which permutes `n_a` and `n_b` runs can give, Fisher's among them.

    1 / C(n_a + n_b, n_a), and twice that for arms of one size, where the mirrored split is as extreme.
    """
    return min(1.0, (2 if n_a == n_b else 1) / math.comb(n_a + n_b, n_a))
