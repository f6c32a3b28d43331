"""One scalar of a log as a curve: levels, noise and departures that hold from 20 points to a million."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from workbench.diagnosis.changepoint import SCALE

FEWEST = 8  # points, without which nothing is said
BUCKETS = 50  # medians that a curve is looked at through, however long it is
TENTH = 0.1  # of a run: its begin and its end
_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean, of normal noise
Way = Literal["up", "down"]


@dataclass(frozen=True)
class Curve:
    """The finite points of a series, (N,) steps and values, N >= FEWEST, by step."""

    steps: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, series: pd.Series) -> Curve | None:
        """Return the curve of a series that is indexed by step; None where it has fewer than FEWEST finite points."""
        clean = series[np.isfinite(series.to_numpy(float))].sort_index()
        return cls(clean.index.to_numpy(), clean.to_numpy(float)) if len(clean) >= FEWEST else None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def series(self) -> pd.Series:
        """The points by step."""
        return pd.Series(self.values, self.steps)

    def times(self, weight: float) -> Curve:
        """Return the curve in other units."""
        return Curve(self.steps, weight * self.values)

    @cached_property
    def reached(self) -> float:
        """How far up its range a score ends, 0 to 1."""
        return (self.end - self.floor) / max(self.span, 1e-12)

    @property
    def bounded(self) -> bool:
        """Whether a score lies in [0, 1] or [-1, 1], so that it is known how far it can rise."""
        return float(self.values.min()) >= -1.01 and float(self.values.max()) <= 1.01

    @property
    def floor(self) -> float:
        """Lower end of the range of a score: 0 or -1 where all of it lies in [0, 1] or [-1, 1], else its smallest."""
        low = float(self.values.min())
        return low if not self.bounded else 0.0 if low >= -0.01 else -1.0

    @property
    def span(self) -> float:
        """Width of the range of a score: to 1 where it lies in [0, 1] or [-1, 1], else to its largest."""
        return (1.0 if self.bounded else float(self.values.max())) - self.floor

    @cached_property
    def noise(self) -> float:
        """Standard deviation of a point about its trend: from second differences, in which no trend is left."""
        return SCALE * float(np.median(np.abs(np.diff(self.values, 2)))) / np.sqrt(6)

    @cached_property
    def smooth(self) -> tuple[np.ndarray, np.ndarray]:
        """First step and median of each of at most BUCKETS stretches of 3 points or more."""
        at = np.linspace(0, len(self), min(BUCKETS, len(self) // 3) + 1).astype(int)[:-1]
        ends = np.append(at[1:], len(self))
        return self.steps[at], np.array([np.median(self.values[a:b]) for a, b in zip(at, ends, strict=True)])

    @cached_property
    def error(self) -> float:
        """Standard error of a point of `smooth`: of its noise, or of its neighbours where noise is not white."""
        _, medians = self.smooth
        white = _OF_MEDIAN * self.noise / np.sqrt(len(self) / len(medians))
        step = np.diff(medians)
        return max(white, SCALE * float(np.median(np.abs(step - np.median(step)))) / np.sqrt(2))

    def level(self, low: float, high: float) -> float:
        """Median of the points from one share of the run (by steps) to another; NaN where none is there."""
        first, last = float(self.steps[0]), float(self.steps[-1])
        span = last - first
        here = (self.steps >= first + low * span) & (self.steps <= first + high * span)
        return float(np.median(self.values[here])) if here.any() else float("nan")

    def mean(self, low: float, high: float) -> tuple[float, float]:
        """Mean of the points of a stretch (shares of the points), and its standard error."""
        part = self.values[int(low * len(self)) : max(int(high * len(self)), int(low * len(self)) + 3)]
        return float(part.mean()), float(part.std() / np.sqrt(len(part)))

    @cached_property
    def begin(self) -> float:
        """Median of the first tenth, of 3 points at least."""
        return float(np.median(self.values[: max(3, round(TENTH * len(self)))]))

    @cached_property
    def end(self) -> float:
        """Median of the last tenth, of 3 points at least."""
        return float(np.median(self.values[-max(3, round(TENTH * len(self))) :]))

    @cached_property
    def high(self) -> float:
        """Largest of the smoothed points."""
        return float(self.smooth[1].max())

    @cached_property
    def low(self) -> float:
        """Smallest of the smoothed points."""
        return float(self.smooth[1].min())

    def left(self, way: Way, share: float = TENTH) -> int:
        """Return the step at which the curve left its first level for good on its way to its extreme.

        That is the first smoothed point behind the last that has gone less than `share` of the way, or less than four
        standard errors: an estimate that serves a jump, a ramp and an exponential alike.
        """
        steps, medians = self.smooth
        away = (medians - self.begin) * (1 if way == "up" else -1)
        top = int(np.argmax(away))
        still = np.flatnonzero(away[: top + 1] < max(share * away[top], 4 * self.error))
        return int(steps[min(int(still[-1]) + 1, len(steps) - 1)] if len(still) else steps[0])

    def around(self, step: int, share: float = TENTH) -> tuple[float, float]:
        """Medians of the points of a tenth of the run before a step and after it (of 3 points at least)."""
        at = int(np.searchsorted(self.steps, step))
        n = max(3, round(share * len(self)))
        before, after = self.values[max(0, at - n) : max(at, 3)], self.values[min(at, len(self) - 3) : at + n]
        return float(np.median(before)), float(np.median(after))


@dataclass(frozen=True)
class Outcome:
    """What a score does from a step on: its level there and at the end, and whether that is a change."""

    before: float
    after: float
    change: int  # -1 fell, 0 held, 1 rose, by more than noise and a tenth of all that it ever moved
    late: int  # the same of the last 40 % of the run alone
    solved: bool  # at the ceiling of a score between 0 and 1

    @property
    def said(self) -> str:
        """The change in words, behind "the reward"."""
        told = {-1: "falls since", 0: "has not risen since", 1: "rises all the same"}[self.change]
        return f"{told} ({self.before:.3g} -> {self.after:.3g})"


SOLVED = 0.9


def outcome(score: Curve, since: int) -> Outcome:
    """Judge a score from a step on."""
    least = max(4 * score.error, TENTH * (score.high - score.low))

    def sign(change: float) -> int:
        return int(np.sign(change)) if abs(change) > least else 0

    before = score.around(since)[0]
    bounded = float(score.values.min()) >= -0.01 and float(score.values.max()) <= 1.01
    return Outcome(
        before, score.end, sign(score.end - before), sign(score.end - score.level(0.5, 0.6)),
        bounded and score.end >= SOLVED,
    )  # fmt: skip


def told(score: Outcome | None) -> str:
    """The end of a sentence: what the reward did; nothing where none is logged."""
    return "" if score is None else f"; the reward {score.said}"


def sure(times: float, base: float = 0.65) -> float:
    """Confidence of a level that lies `times` beyond its mark: `base` at it, 0.1 more for each doubling, up to 0.95."""
    return float(min(0.95, base + 0.1 * np.log2(max(times, 1.0))))
