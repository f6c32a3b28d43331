"""Where a run leaves the band of runs that worked: the first step, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sorl.diagnosis.changepoint import SCALE

WINDOW = 5  # steps whose median must lie outside
FEWEST = 12  # common steps, below which nothing is said
MARGIN = 6.0  # units of noise
# Good runs, from which on their spread is known; of fewer a share of the curve's own range stands for it.
SPREAD_KNOWN = 3
SHARE_OF_RANGE = 0.25
TIMES_SPREAD = 2.0
FLOOR = 0.05  # of the median value: less is no difference
# In a column's own unit: less is no difference either.
LEAST_OF_FRACTION = 0.02
LEAST_OF_KL = 1e-3


@dataclass(frozen=True)
class Band:
    """What one column does in good runs: (T,) steps, mean over runs and unit, of which MARGIN are normal.

    The unit is the noise of a curve about its trend. To that comes, of fewer than SPREAD_KNOWN runs, a share
    of the range of the curve, because nobody knows how far two seeds of this recipe lie apart; of more runs
    it is at least TIMES_SPREAD the largest spread between them up to that step.
    """

    column: str
    steps: np.ndarray
    mean: np.ndarray
    unit: np.ndarray
    runs: int

    @classmethod
    def of(cls, column: str, curves: Sequence[pd.Series]) -> Self | None:
        """Return the band of some curves, each by step; None where they share too few finite steps."""
        table = pd.concat(
            [curve[~curve.index.duplicated()] for curve in curves], axis=1, join="inner"
        ).sort_index()
        table = table[np.isfinite(table.to_numpy(float)).all(axis=1)]
        if len(table) < FEWEST:
            return None
        values = table.to_numpy(float)  # (T, runs)
        mean = values.mean(axis=1)
        floor = FLOOR * float(np.median(np.abs(mean)))
        noise = max(float(np.sqrt(np.mean(_noise(values) ** 2))), floor, _least(column))
        if len(curves) < SPREAD_KNOWN:
            allowance = SHARE_OF_RANGE * float(np.ptp(_smooth(mean[:, None])))
            unit = np.full(len(mean), noise + allowance)
        else:
            between = np.sqrt(np.maximum.accumulate(_smooth(values).var(axis=1, ddof=1)))
            between = np.concatenate([np.repeat(between[0], WINDOW - 1), between])
            unit = np.maximum(noise, TIMES_SPREAD * np.sqrt(1 + 1 / len(curves)) * between)
        return cls(column, table.index.to_numpy(), mean, unit, len(curves))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as a saved baseline holds it."""
        arrays = {name: getattr(self, name).tolist() for name in ("steps", "mean", "unit")}
        return {"column": self.column, "runs": self.runs, **arrays}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Self:
        """Return the band of `as_dict`. Raises KeyError, TypeError or ValueError for other data."""
        steps, mean, unit = (np.asarray(told[name], float) for name in ("steps", "mean", "unit"))
        if not len(steps) == len(mean) == len(unit):
            raise ValueError("a band has as many means and units as steps")
        return cls(str(told["column"]), steps.astype(int), mean, unit, int(told["runs"]))


class Parting(NamedTuple):
    """Where a column of the bad run leaves the band for the first time, for WINDOW steps."""

    column: str
    step: int
    value: float  # median of the bad run over those steps
    usual: float  # of the good ones
    low: float  # end of the band there
    high: float
    units: float  # how far outside it ever is


def parting(band: Band, curve: pd.Series) -> Parting | None:
    """Return where a curve (by step) leaves a band; None where it never does, or shares too few steps.

    The curve leaves at the first step from which on the median of WINDOW steps lies more than MARGIN units
    from the mean; the noise of the curve itself counts as well.
    """
    clean = curve[np.isfinite(curve.to_numpy(float))]
    clean = clean[~clean.index.duplicated()].sort_index()
    shared = _shared(band, clean)
    if len(shared.steps) < FEWEST:
        return None
    unit = np.hypot(shared.unit, _noise(shared.values[:, None]))
    away = _smooth((shared.values - shared.mean)[:, None])[:, 0] / unit[WINDOW - 1 :]
    outside = np.flatnonzero(np.abs(away) > MARGIN)
    if not len(outside):
        return None
    first = int(outside[0])
    window = slice(first, first + WINDOW)
    usual = float(np.median(shared.mean[window]))
    width = MARGIN * float(unit[window].max())
    least, most = (0.0, 1.0) if band.column.endswith("_frac") else (-np.inf, np.inf)
    return Parting(
        band.column,
        int(shared.steps[first]),
        float(np.median(shared.values[window])),
        usual,
        max(usual - width, least),
        min(usual + width, most),
        float(np.abs(away).max()),
    )


class _Shared(NamedTuple):
    """The steps that a band and a curve share, (T,) each."""

    steps: np.ndarray
    mean: np.ndarray
    unit: np.ndarray
    values: np.ndarray


def _shared(band: Band, curve: pd.Series) -> _Shared:
    steps, in_band, in_curve = np.intersect1d(band.steps, curve.index.to_numpy(), return_indices=True)
    return _Shared(steps, band.mean[in_band], band.unit[in_band], curve.to_numpy(float)[in_curve])


def _noise(values: np.ndarray) -> np.ndarray:
    """Standard deviation (runs,) of the points (T, runs) about their trends, from second differences."""
    return np.asarray(SCALE * np.median(np.abs(np.diff(values, 2, axis=0)), axis=0) / np.sqrt(6))


def _smooth(values: np.ndarray) -> np.ndarray:
    """Medians of WINDOW steps, (T - WINDOW + 1, runs) of (T, runs)."""
    windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW, axis=0)
    return np.asarray(np.median(windows, axis=-1))


def _least(column: str) -> float:
    """Return what is no difference in the unit of a column."""
    if column.endswith("_frac"):
        return LEAST_OF_FRACTION
    if "kl" in column.rpartition(".")[2].split("_"):
        return LEAST_OF_KL
    return 1e-9
