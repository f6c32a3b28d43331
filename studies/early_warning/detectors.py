"""Detectors: a curve in, a score per step out that speaks of the steps up to it and never of later ones.

An alarm goes off at the first step whose score reaches a threshold, and the threshold is found on runs whose
end is known. Where nothing was measured there is no score (NaN), which reaches no threshold: NULL is not
healthy, and a detector that has seen nothing was not tried. A value that is NaN or Inf is the worst that
there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from sorl.diagnosis.changepoint import SCALE, past, smoothed

Side = Literal["above", "below"]
_BOTH: tuple[Side, ...] = ("above", "below")

SIGNALS: dict[str, tuple[Side, ...]] = {
    "success": ("below",),
    "reward": ("below",),
    "entropy": _BOTH,
    "grad_norm_max": ("above",),
    "grad_norm_mean": ("above",),
    "clip_frac": ("above",),
    "out_of_range_frac": ("above",),
    "ess_frac": ("below",),
    "ess_frac_min": ("below",),
    "chi2": ("above",),
    "ratio_max": ("above",),
    "approx_kl": ("above",),
    "kl_k3": ("above",),
    "kl_ref": ("above",),
    "mismatch_kl": _BOTH,
    "clip_bias_norm": ("above",),
    "value_mae": ("above",),
    "explained_variance": ("below",),
    "advantage_std": _BOTH,
    "group_reward_std": ("below",),
    "zero_advantage_frac": ("above",),
    "valid_action_frac": ("below",),
    "answered_frac": ("below",),
    "truncated_frac": ("above",),
    "turns": _BOTH,
    "response_tokens": _BOTH,
    "repetition_frac": ("above",),
    "duplicate_turn_frac": ("above",),
}

BASELINE = 5  # first measured points, that a run is compared with
SLACK = 1.0  # spreads a step, that CUSUM forgives
WORST = 1e6  # the score of a value that is no number, and the most that any has
_TINY = 1e-12

Detector = Callable[[np.ndarray, Side], np.ndarray]


def sided(away: np.ndarray, side: Side) -> np.ndarray:
    """A deviation seen from the side on which trouble lies."""
    return away if side == "above" else -away


def level(values: np.ndarray, side: Side) -> np.ndarray:
    """x_t itself, -x_t where trouble lies below: a constant threshold, to compare with. Not
    self-baselined.
    """
    return -values if side == "below" else values


def start(values: np.ndarray, side: Side) -> np.ndarray:
    """x_t over the first point, which the policy before any update made: x_t / x_0, or 1 - x_t / x_0 below.

    The same for a x, a > 0; no score where the first point is not positive, nor at that point.
    """
    found = np.full(len(values), np.nan)
    if values[0] > 0:
        share = values[1:] / values[0]
        found[1:] = 1.0 - share if side == "below" else share
    return found


def baseline(values: np.ndarray, side: Side) -> np.ndarray:
    """(x_t - median) / spread of the run's first five points (BASELINE); none before.

    The same for a x + b, a > 0.
    The spread is the larger of 1.4826 MAD and the median step from one of these points to the next.
    """
    start = values[:BASELINE]
    away = np.full(len(values), np.nan)
    if len(values) > BASELINE:
        middle = np.median(start)
        spread = max(SCALE * np.median(np.abs(start - middle)), np.median(np.abs(np.diff(start))))
        away[BASELINE:] = (values[BASELINE:] - middle) / max(spread, _TINY)
    return sided(away, side)


def cusum(values: np.ndarray, side: Side) -> np.ndarray:
    """S_t = max(0, S_{t-1} + z_t - 1), z the score of `baseline`, 1 the SLACK (Page 1954).

    The same for a x + b.
    """
    scores = baseline(values, side)
    total = 0.0
    found = np.full(len(scores), np.nan)
    for i, z in enumerate(scores):
        if not np.isnan(z):
            total = max(0.0, total + min(float(z), WORST) - SLACK)
            found[i] = total
    return found


def departure(values: np.ndarray, side: Side) -> np.ndarray:
    """(x_t - median) / spread of the eight points before t: a change wherever it begins. The same for a x +
    b.
    """
    usual, spread = past(values, floor=0.0)
    return sided((values - usual) / spread, side)


def peak(values: np.ndarray, side: Side) -> np.ndarray:
    """Lost of the best so far: 1 - x_t / max x where trouble lies below, else x_t / min x. The same for a x,
    a > 0.
    """
    best = (np.maximum if side == "below" else np.minimum).accumulate(values)
    share = np.divide(values, best, out=np.full(len(values), np.nan), where=best > 0)
    return 1.0 - share if side == "below" else share


def slump(values: np.ndarray, side: Side) -> np.ndarray:
    """`peak` of the median of the last three points, of fewer at the start. The same for a x, a > 0."""
    return peak(smoothed(values), side)


DETECTORS: dict[str, Detector] = {
    "level": level,
    "start": start,
    "baseline": baseline,
    "cusum": cusum,
    "departure": departure,
    "peak": peak,
    "slump": slump,
}


def score(name: str, values: np.ndarray, side: Side, known: np.ndarray | None = None) -> np.ndarray:
    """The scores (T,) of a detector on a curve (T,) that was measured where `known` (T,), by default
    everywhere.
    """
    measured = np.ones(len(values), bool) if known is None else known
    finite = measured & np.isfinite(values)
    found = np.full(len(values), np.nan)
    if finite.any():
        scores = DETECTORS[name](values[finite].astype(float), side)
        found[finite] = np.clip(scores, -WORST, WORST)  # NaN stays
    found[measured & ~finite] = WORST
    return found
