"""The onset of a fall: the most likely last point before it, and its 95 % interval."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sorl.collapse.curve import TINY, Curve

RAMPS = (*range(1, 8), *range(8, 32, 2), *range(32, 65, 8))  # points in which a fall may happen


class Onset(NamedTuple):
    """Index of the last point before a fall; low to high is its 95 % interval."""

    low: int
    estimate: int
    high: int


def find_onset(curve: Curve, first: int, at: int, end: int, best: float) -> Onset:
    """Find where the fall detected at index `at` begins.

    Model: scores are at a level a up to point t, fall to b along a straight line of r points, and stay there.
    Every t in [first, at), before the detection, and r of RAMPS is tried on the scores up to `end`, with a
    the mean of what comes before (of fewer than three points `best`: what was known of the run before them)
    and b that of what follows. The estimate has the highest likelihood; the interval is every t whose best r
    comes within 1.92 nats of it (profile likelihood, half the 95 % point of chi-squared with one degree of
    freedom).
    """
    scores = np.asarray(curve.scores[first:end])
    likelihood = _likelihood_by_point(curve, scores, best)[: max(1, at - first)]
    near = np.flatnonzero(likelihood >= likelihood.max() - 1.92)
    return Onset(first + int(near[0]), first + int(likelihood.argmax()), first + int(near[-1]))


def _likelihood_by_point(curve: Curve, scores: np.ndarray, best: float) -> np.ndarray:
    """Log-likelihood of a fall after each point, with the ramp that suits it best, in nats over staying."""
    likelihood = np.full(len(scores), -math.inf)
    likelihood[0] = TINY  # of one point
    before = scores.cumsum() / np.arange(1, len(scores) + 1)
    top = np.where(np.arange(len(scores)) < 2, best, before)
    # a gain asks for the mean of the points only
    stay = np.arange(1, len(scores) + 1) * curve.gain(before, top, best)
    left = np.arange(len(scores), 0, -1)  # points from each on
    after = scores[::-1].cumsum()[::-1] / left
    for r in (r for r in RAMPS if r < len(scores)):
        high = top[: len(scores) - r]
        level = np.minimum(after[r:], high)
        by_ramp = stay[: len(level)] + left[r:] * curve.gain(after[r:], level, best)
        if r > 1:
            slope = sliding_window_view(scores[1:-1], r - 1)
            line = high[:, None] + (level - high)[:, None] * np.arange(1, r) / r
            by_ramp = by_ramp + np.sum(curve.gain(slope, line, best), axis=1)
        likelihood[: len(level)] = np.maximum(likelihood[: len(level)], by_ramp)
    return likelihood
