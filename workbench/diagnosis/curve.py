"""One scalar of a log as a curve: levels, noise and departures that hold from a few points to a million."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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


@dataclass(frozen=True)
class Curve:
    """The finite points of a `table.column`, (N,) steps and values, N >= FEWEST, by step."""

    column: str
    steps: np.ndarray
    values: np.ndarray

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

    @cached_property
    def noise(self) -> float:
        """Standard deviation of a point about its trend: from second differences, in which no trend is left."""
        return SCALE * float(np.median(np.abs(np.diff(self.values, 2)))) / np.sqrt(6)

    @cached_property
    def smooth(self) -> tuple[np.ndarray, np.ndarray]:
        """First step and median of each of at most BUCKETS stretches, of 3 points or more."""
        bounds = np.linspace(0, len(self), min(BUCKETS, len(self) // 3) + 1).astype(int)
        medians = [np.median(self.values[a:b]) for a, b in pairwise(bounds)]
        return self.steps[bounds[:-1]], np.array(medians)

    @cached_property
    def error(self) -> float:
        """Standard error of a point of `smooth`: of its noise, or of its neighbours where noise is not white."""
        medians = self.smooth[1]
        step = np.diff(medians)
        white = _OF_MEDIAN * self.noise / np.sqrt(len(self) / len(medians))
        return max(white, SCALE * float(np.median(np.abs(step - np.median(step)))) / np.sqrt(2))

    @cached_property
    def high(self) -> float:
        """Largest of the smoothed points."""
        return float(self.smooth[1].max())

    @cached_property
    def low(self) -> float:
        """Smallest of the smoothed points."""
        return float(self.smooth[1].min())

    @cached_property
    def begin(self) -> float:
        """Median of the first tenth, of 3 points at least."""
        return float(np.median(self.values[: self._points(TENTH)]))

    @cached_property
    def end(self) -> float:
        """Median of the last tenth, of 3 points at least."""
        return float(np.median(self.values[-self._points(TENTH) :]))

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

    @cached_property
    def bounded(self) -> bool:
        """Whether a score lies in [0, 1] or [-1, 1], so that it is known how far it can rise."""
        return float(np.abs(self.values).max()) <= 1.01

    @cached_property
    def floor(self) -> float:
        """The least that a score can be: 0 or -1 if it is bounded, else the least that it was."""
        least = float(self.values.min())
        return least if not self.bounded else 0.0 if least >= -TENTH else -1.0

    @cached_property
    def span(self) -> float:
        """How far a score can rise from its floor: to 1 if it is bounded, else to the most that it was."""
        return max((1.0 if self.bounded else float(self.values.max())) - self.floor, _TINY)

    @property
    def reached(self) -> float:
        """How far up its range a score ends, 0 to 1."""
        return (self.end - self.floor) / self.span


@dataclass(frozen=True)
class Outcome:
    """What a score does from a step on: its level before it and at the end; changes are -1 fell, 0 held, 1 rose."""

    before: float
    after: float
    change: int  # from the step on, by more than its noise and a tenth of all that it ever moved
    late: int  # the same of the second half of the run alone
    solved: bool

    def __str__(self) -> str:
        word = {-1: "falls since", 0: "has not risen since", 1: "rises all the same"}[self.change]
        return f"the reward {word} ({self.before:.3g} -> {self.after:.3g})"


def outcome(score: Curve, since: int) -> Outcome:
    """Judge a score from a step on."""
    least = max(CLEAR * score.error, TENTH * (score.high - score.low))

    def sign(change: float) -> int:
        return int(np.sign(change)) if abs(change) > least else 0

    before, middle = score.before(since), float(np.median(score.part(0.5, 0.6)))
    solved = score.bounded and score.end >= SOLVED
    return Outcome(before, score.end, sign(score.end - before), sign(score.end - middle), solved)


def told(score: Outcome | None) -> str:
    """Return the end of a sentence: what the reward did; nothing where none is logged."""
    return "" if score is None else f"; {score}"


def sure(times: float, base: float) -> float:
    """Confidence of a level that lies `times` beyond its mark: `base` at it, 0.1 more for each doubling, up to 0.95."""
    return float(min(0.95, base + 0.1 * np.log2(max(times, 1.0))))
