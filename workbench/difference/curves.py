"""Where a run leaves the band of runs that worked: the first step, column by column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from sorl.collapse.band import FEWEST, MARGIN, WINDOW, Band, noise_of, running_median


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
    unit = np.hypot(shared.unit, noise_of(shared.values[:, None]))
    away = running_median((shared.values - shared.mean)[:, None])[:, 0] / unit[WINDOW - 1 :]
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
