"""One scalar of a log as a curve: levels, noise and departures that hold from a few points to a million."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd

from workbench.diagnosis.changepoint import SCALE

FEWEST = 8  # points, without which nothing is said
BUCKETS = 50  # medians that a curve is looked at through, however long it is
TENTH = 0.1  # of a run: its begin, its end, and a share of a change
CLEAR = 4  # standard errors
SOLVED = 0.9  # of a reward that can be 1
_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean, of normal noise
_TINY = 1e-12


class Curve:
    """The finite points of a `table.column`, (N,) steps and values, N >= FEWEST, by step.

    `begin`, `end`: medians of the first and last tenth, of 3 points at least. `noise`: standard deviation of a point
    about its trend. `smooth`: first step and median of each of at most BUCKETS stretches of 3 points or more; `low` and
    `high` are the least and largest of these medians, `error` the standard error of one. `bounded`: a score in [0, 1]
    or [-1, 1]; then its `floor` is 0 or -1 and its `span` goes to 1, else both are what it ever was. `reached`: how far
    up its range it ends, 0 to 1.
    """

    def __init__(self, column: str, steps: np.ndarray, values: np.ndarray) -> None:
        self.column, self.steps, self.values = column, steps, values
        self.begin = float(np.median(values[: self._points(TENTH)]))
        self.end = float(np.median(values[-self._points(TENTH) :]))
        # From second differences, in which no trend is left.
        self.noise = SCALE * float(np.median(np.abs(np.diff(values, 2)))) / np.sqrt(6)
        bounds = np.linspace(0, len(self), min(BUCKETS, len(self) // 3) + 1).astype(int)
        medians = np.array([np.median(values[a:b]) for a, b in pairwise(bounds)])
        self.smooth, self.low, self.high = (steps[bounds[:-1]], medians), float(medians.min()), float(medians.max())
        # Of its noise, or of its neighbours where noise is not white.
        step = np.diff(medians)
        white = _OF_MEDIAN * self.noise / np.sqrt(len(self) / len(medians))
        self.error = max(white, SCALE * float(np.median(np.abs(step - np.median(step)))) / np.sqrt(2))
        self.bounded = float(np.abs(values).max()) <= 1.01
        least = float(values.min())
        self.floor = least if not self.bounded else 0.0 if least >= -TENTH else -1.0
        self.span = max((1.0 if self.bounded else float(values.max())) - self.floor, _TINY)
        self.reached = (self.end - self.floor) / self.span

    @classmethod
    def of(cls, column: str, series: pd.Series) -> Curve | None:
        """Return the curve of a series that is indexed by step; None where it has fewer than FEWEST finite points."""
        clean = series[np.isfinite(series.to_numpy(float))].sort_index()
        return cls(column, clean.index.to_numpy(), clean.to_numpy(float)) if len(clean) >= FEWEST else None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def series(self) -> pd.Series:
        """The points by step."""
        return pd.Series(self.values, self.steps)

    def _points(self, share: float) -> int:
        return max(3, round(share * len(self)))

    def part(self, low: float, high: float) -> np.ndarray:
        """The points from one share of them to another, 3 at least."""
        at = min(int(low * len(self)), len(self) - 3)
        return self.values[at : max(int(high * len(self)), at + 3)]

    def before(self, step: int, share: float = TENTH) -> float:
        """Median of a tenth of the points, those before a step."""
        at = int(np.searchsorted(self.steps, step))
        return float(np.median(self.values[max(0, at - self._points(share)) : max(at, 3)]))

    def after(self, step: int, share: float = TENTH) -> float:
        """Median of a tenth of the points, those from a step on."""
        at = min(int(np.searchsorted(self.steps, step)), len(self) - 3)
        return float(np.median(self.values[at : at + self._points(share)]))

    def left(self, way: Literal["up", "down"], share: float = TENTH) -> int:
        """Return the step at which the curve left its begin for good on its way to its extreme.

        It is the first of the smoothed points that are all `share` of the way or more from the begin, and CLEAR of
        noise, up to the extreme: the same for a jump, a ramp and an exponential.
        """
        steps, medians = self.smooth
        away = (medians - self.begin) * (1 if way == "up" else -1)
        top = int(away.argmax())
        still = np.flatnonzero(away[: top + 1] < max(share * away[top], CLEAR * self.error))
        return int(steps[min(int(still[-1]) + 1, len(steps) - 1)] if len(still) else steps[0])


@dataclass(frozen=True)
class Outcome:
    """What a score does from a step on: its level before it and at the end; changes are -1 fell, 0 held, 1 rose."""

    before: float
    after: float
    change: int  # from the step on, by more than its noise and a tenth of all that it ever moved
    late: int  # the same of the second half of the run alone
    solved: bool

    @classmethod
    def of(cls, score: Curve, since: int) -> Outcome:
        """Judge a score from a step on."""
        least, before = max(CLEAR * score.error, TENTH * (score.high - score.low)), score.before(since)
        changes = score.end - before, score.end - float(np.median(score.part(0.5, 0.6)))
        change, late = (int(np.sign(change)) if abs(change) > least else 0 for change in changes)
        return cls(before, score.end, change, late, score.bounded and score.end >= SOLVED)


def told(score: Outcome | None) -> str:
    """Return the end of a sentence: what the reward did; nothing where none is logged."""
    if score is None:
        return ""
    word = {-1: "falls since", 0: "has not risen since", 1: "rises all the same"}[score.change]
    return f"; the reward {word} ({score.before:.3g} -> {score.after:.3g})"


def sure(times: float, base: float) -> float:
    """Confidence of a level that lies `times` beyond its mark: `base` at it, 0.1 more for each doubling, up to 0.95."""
    return float(min(0.95, base + 0.1 * np.log2(max(times, 1.0))))
