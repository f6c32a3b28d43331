"""The band of an arm: interquartile mean over its seeds at every point, with an interval and the extremes."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement
from math import factorial, prod

import numpy as np
import pandas as pd

_EXACT = 7  # seeds up to which every resample is counted: 1716 of them
_DRAWS = 1000


def bands(values: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """One row per `arm` and `bucket` of `values` (a row per seed with `mean`, `low`, `high`; further columns ignored).

    `middle` = interquartile mean of the seeds' `mean`; [`lower`, `upper`] = its percentile bootstrap interval over
    seeds, exact up to seven seeds, NaN for one; `low`, `high` = extremes over seeds; `n` = seeds.
    """
    found = []
    for arm, rows in values.dropna(subset=["mean"]).groupby("arm", sort=False):
        grouped = rows.sort_values(["bucket", "mean"]).groupby("bucket", sort=True)
        n = grouped.size().to_numpy()
        frame = pd.DataFrame(
            {"arm": arm, "bucket": list(grouped.groups), "n": n, "low": grouped["low"].min().to_numpy(),
             "high": grouped["high"].max().to_numpy()}
        )  # fmt: skip
        means = rows.sort_values(["bucket", "mean"])["mean"].to_numpy()
        first = np.cumsum(n) - n
        columns = np.full((3, len(n)), np.nan)
        for size in np.unique(n):
            where = np.flatnonzero(n == size)
            seeds = means[first[where][:, None] + np.arange(size)]  # (points, seeds), ascending
            columns[:, where] = _intervals(seeds, level)
        frame[["middle", "lower", "upper"]] = columns.T
        found.append(frame)
    names = ["arm", "bucket", "n", "low", "high", "middle", "lower", "upper"]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=names)


def _intervals(seeds: np.ndarray, level: float) -> np.ndarray:
    """Interquartile mean and its interval of each row of `seeds` (ascending), (3, points)."""
    n = seeds.shape[1]
    middle = seeds @ _weights(np.ones((1, n)))[0]
    if n == 1:
        return np.stack([middle, np.full_like(middle, np.nan), np.full_like(middle, np.nan)])
    weights, chance = _resamples(n)
    drawn = seeds @ weights.T  # (points, resamples)
    order = np.argsort(drawn, axis=1)
    below = np.cumsum(chance[order], axis=1)
    tail = (1 - level) / 2
    ends = []
    for quantile in (tail, 1 - tail):
        place = np.minimum((below < quantile - 1e-12).sum(axis=1), drawn.shape[1] - 1)
        ends.append(np.take_along_axis(drawn, np.take_along_axis(order, place[:, None], 1), 1)[:, 0])
    return np.stack([middle, *ends])


@lru_cache(maxsize=32)
def _resamples(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the sorted seeds in the interquartile mean of each resample, (R, n), and its probability, (R,)."""
    if n <= _EXACT:
        drawn = [np.bincount(c, minlength=n) for c in combinations_with_replacement(range(n), n)]
        counts = np.array(drawn, dtype=float)
        chance = np.array([factorial(n) / prod(factorial(int(k)) for k in row) / n**n for row in counts])
    else:
        counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_DRAWS).astype(float)
        chance = np.full(_DRAWS, 1 / _DRAWS)
    return _weights(counts), chance


def _weights(counts: np.ndarray) -> np.ndarray:
    """The weight of each sorted value in the interquartile mean, when it occurs `counts` times; rows sum to 1.

    A quarter of the values, rounded down, is left out at either end. The mean is linear in the sorted values, and a
    resample keeps their order.
    """
    n = counts.sum(axis=1, keepdims=True)
    cut = np.floor(n / 4)
    end = np.cumsum(counts, axis=1)
    inside = np.minimum(end, n - cut) - np.maximum(end - counts, cut)
    return np.maximum(inside, 0) / (n - 2 * cut)
