"""Change points: a robust score of each point of a curve against the points before it."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

WINDOW = 8  # points before, that a point is judged by
FEWEST = 4  # of them, without which nothing is said
MARGIN = 6.0  # spreads away from their median
SCALE = 1.4826  # of the median absolute deviation of a normal sample to its standard deviation
_TINY = 1e-12
# Of the shipped corpus about one healthy run in twenty ever loses so much, of all runs that did not collapse (mild ones
# and those that never learned as well) one in five, and nine of ten collapses by the time that they are called.
LOST = 0.55
SMOOTH = 3  # points of a trailing median


@final
@dataclass(frozen=True)
class Departure:
    """A point that its past does not explain: `score` spreads above (or below, negative) the median of its past."""

    step: int
    value: float
    usual: float
    score: float


def past(values: np.ndarray, floor: float, least: float = 0.0, window: int = WINDOW) -> tuple[np.ndarray, np.ndarray]:
    """Median and spread of the `window` points before each point, (N,) each; NaN where fewer than FEWEST came before.

    The spread is the largest of the scaled median absolute deviation of those points, the median of their steps from
    one to the next, `floor` x |median|, and `least`, so that neither a flat nor a climbing stretch makes an event of a
    ripple.
    """
    usual, spread = np.full(len(values), np.nan), np.full(len(values), np.nan)
    for size in range(min(FEWEST, window), min(window, len(values) - 1) + 1):
        # Only the full window slides; the shorter ones are those of the first points.
        rows = sliding_window_view(values[:-1], size)[: None if size == window else 1]
        middle = np.median(rows, axis=1)
        deviation = SCALE * np.median(np.abs(rows - middle[:, None]), axis=1)
        ripple = np.median(np.abs(np.diff(rows, axis=1)), axis=1)
        least_spread = np.maximum(floor * np.abs(middle), max(least, _TINY))
        at = slice(size, size + len(rows))
        usual[at], spread[at] = middle, np.maximum.reduce([deviation, ripple, least_spread])
    return usual, spread


def spread(values: np.ndarray, floor: float, least: float = 0.0) -> tuple[float, float]:
    """Median and spread of two points or more, as of the past of a point that comes behind all of them."""
    usual, wide = past(np.append(values, 0.0), floor, least, len(values))
    return float(usual[-1]), float(wide[-1])


def first(
    series: pd.Series, when: Literal["above", "below", "either"] = "either", points: int = 2, margin: float = MARGIN,
    floor: float = 0.05, least: float = 0.0,
) -> Departure | None:  # fmt: skip
    """The first of `points` consecutive points that lie `margin` spreads above, below or on either side of the past.

    All of them are judged by the past of the first: a curve that jumps and stays has departed. NaN points are left out.
    """
    clean = series[np.isfinite(series.to_numpy(float))]
    values = clean.to_numpy(float)
    if len(values) < FEWEST + points:
        return None
    usual, spread = past(values, floor, least)
    ahead = sliding_window_view(values, points)
    usual, spread = usual[: len(ahead)], spread[: len(ahead)]
    away = (ahead - usual[:, None]) / spread[:, None]
    above, below = (away > margin).all(axis=1), (away < -margin).all(axis=1)
    found = np.flatnonzero({"above": above, "below": below, "either": above | below}[when])
    if not len(found):
        return None
    i = int(found[0])
    return Departure(int(clean.index[i]), float(values[i]), float(usual[i]), float(away[i, 0]))


def before(series: pd.Series, step: int) -> float | None:
    """Return the median of a curve before a step; None where it has no point there."""
    past = series[series.index < step]
    return None if past.empty else float(past.median())


@dataclass(frozen=True)
class Slump:
    """The first step at which the median of three steps of success lay `lost` (a share) below the best such median."""

    step: int
    lost: float


def smoothed(values: np.ndarray) -> np.ndarray:
    """Trailing median (T,) of SMOOTH points, of fewer at the start."""
    return pd.Series(values).rolling(SMOOTH, min_periods=1).median().to_numpy()


def slumped(success: pd.Series) -> Slump | None:
    """Return where success first slumps by LOST, None where it never does; a value that is NaN or Inf has lost all."""
    values = success.to_numpy(float)
    finite, lost = np.isfinite(values), np.ones(len(values))
    smooth = smoothed(values[finite])
    best = np.maximum.accumulate(smooth)
    lost[finite] = 1 - np.divide(smooth, best, out=np.ones_like(best), where=best > 0)
    reached = np.flatnonzero(lost >= LOST)
    return Slump(int(success.index[reached[0]]), float(lost[reached[0]])) if len(reached) else None
