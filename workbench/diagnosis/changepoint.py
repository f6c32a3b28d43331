"""Change points: where a curve leaves its past, point by point (`first`), or by levels, noise and trend
(`Curve`).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

WINDOW = 8  # points before, that a point is judged by
FEWEST = 4  # of them, without which nothing is said
MARGIN = 6.0  # spreads away from their median
SCALE = 1.4826  # of the median absolute deviation of a normal sample to its standard deviation
_TINY = 1e-12
# Of the shipped corpus about one healthy run in twenty ever loses so much, of all runs that did not collapse
# (mild ones and those that never learned as well) one in five, and nine of ten collapses by the time that
# they are called.
LOST = 0.55
SMOOTH = 3  # points of a trailing median
# Of a Curve, from a few points to a million.
SHORTEST = 8  # points, without which nothing is said
BUCKETS = 50  # medians that it is looked at through, however long it is
SMOOTHINGS = (BUCKETS, 25, 12, 6)  # the same, where more noise has to go
TENTH = 0.1  # of a run: its begin, its end, and a share of a change
CLEAR = 4  # standard errors
SOLVED = 0.9  # of a reward that can be 1
_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean, of normal noise


@dataclass(frozen=True)
class Evidence:
    """One figure of a log: a `table.column` at a step, and what was usual before (None where nothing was)."""

    column: str
    step: int
    value: float | None
    usual: float | None = None


@dataclass(frozen=True)
class Departure(Evidence):
    """A point that its past does not explain, and the median of that past."""

    value: float
    usual: float


@dataclass(frozen=True)
class Level:
    """The median (or mean) of a stretch of a curve, with the first and the last step of that stretch.

    As a string it is what a sentence says: `0.482 (median of steps 5 to 200)`. Every number that a sentence
    gives of a curve is one of these, so that a reader, or a test, can compute it again.
    """

    value: float
    first: int
    last: int
    how: Literal["median", "mean"] = "median"

    @classmethod
    def of(cls, steps: np.ndarray, values: np.ndarray) -> Self:
        """Return the median of some points and where they lie."""
        return cls(float(np.median(values)), int(steps[0]), int(steps[-1]))

    def __str__(self) -> str:
        return self.text()

    def text(self, unit: str = "") -> str:
        """Return the value with a unit, and its steps; of unit `%` the value is a fraction."""
        if unit == "%":
            value = f"{100 * self.value:.3g} %"
        else:
            number = f"{self.value:,.0f}" if abs(self.value) >= 1000 else f"{self.value:.3g}"
            value = f"{number} {unit}".strip()
        steps = f"{self.how} of steps {self.first} to {self.last}"
        return f"{value} ({steps if self.first != self.last else f'step {self.first}'})"


def past(
    values: np.ndarray, floor: float, least: float = 0.0, window: int = WINDOW
) -> tuple[np.ndarray, np.ndarray]:
    """Median and spread of the `window` points before each point, (N,) each; NaN where fewer than FEWEST came
    before.

    The spread is the largest of the scaled median absolute deviation of those points, the median of their
    steps from one to the next, `floor` x |median|, and `least`, so that neither a flat nor a climbing stretch
    makes an event of a ripple.
    """
    usual = np.full(len(values), np.nan)
    spread = np.full(len(values), np.nan)
    for size in range(min(FEWEST, window), min(window, len(values) - 1) + 1):
        # Only the full window slides; the shorter ones are those of the first points.
        rows = sliding_window_view(values[:-1], size)[: None if size == window else 1]
        middle = np.median(rows, axis=1)
        deviation = SCALE * np.median(np.abs(rows - middle[:, None]), axis=1)
        ripple = np.median(np.abs(np.diff(rows, axis=1)), axis=1)
        least_spread = np.maximum(floor * np.abs(middle), max(least, _TINY))
        at = slice(size, size + len(rows))
        usual[at] = middle
        spread[at] = np.maximum.reduce([deviation, ripple, least_spread])
    return usual, spread


def spread(values: np.ndarray, floor: float, least: float = 0.0) -> tuple[float, float]:
    """Median and spread of two points or more, as of the past of a point that comes behind all of them."""
    usual, wide = past(np.append(values, 0.0), floor, least, len(values))
    return float(usual[-1]), float(wide[-1])


def first(
    series: pd.Series,
    when: Literal["above", "below", "either"] = "either",
    points: int = 2,
    margin: float = MARGIN,
    floor: float = 0.05,
    least: float = 0.0,
) -> Departure | None:
    """The first of `points` consecutive points that lie `margin` spreads above, below or on either side of
    the past.

    All of them are judged by the past of the first: a curve that jumps and stays has departed. NaN points are
    left out. The name of the series is the column.
    """
    clean = series[np.isfinite(series.to_numpy(float))]
    values = clean.to_numpy(float)
    if len(values) < FEWEST + points:
        return None
    usual, width = past(values, floor, least)
    ahead = sliding_window_view(values, points)
    away = (ahead - usual[: len(ahead), None]) / width[: len(ahead), None]
    departed = np.flatnonzero(_is_departure(away, when, margin))
    if not len(departed):
        return None
    i = int(departed[0])
    return Departure(str(series.name), int(clean.index[i]), float(values[i]), float(usual[i]))


def _is_departure(away: np.ndarray, when: Literal["above", "below", "either"], margin: float) -> np.ndarray:
    """Whether all points of a row (N, points) lie that many spreads away, (N,)."""
    above = (away > margin).all(axis=1)
    below = (-away > margin).all(axis=1)
    if when == "either":
        return np.asarray(above | below)
    return np.asarray(above if when == "above" else below)


def before(series: pd.Series, step: int) -> float | None:
    """Return the median of a curve before a step; None where it has no point there."""
    past = series[series.index < step]
    return None if past.empty else float(past.median())


class Slump(NamedTuple):
    """The first step at which the median of three steps of success lay `lost` (a share) below the best such
    median.
    """

    step: int
    lost: float


def smoothed(values: np.ndarray) -> np.ndarray:
    """Trailing median (T,) of SMOOTH points, of fewer at the start."""
    return pd.Series(values).rolling(SMOOTH, min_periods=1).median().to_numpy()


def slumped(success: pd.Series) -> Slump | None:
    """Return where success first slumps by LOST, None where it never does; a value that is NaN or Inf has
    lost all.
    """
    values = success.to_numpy(float)
    finite = np.isfinite(values)
    lost = np.ones(len(values))
    smooth = smoothed(values[finite])
    best = np.maximum.accumulate(smooth)
    lost[finite] = 1 - np.divide(smooth, best, out=np.ones_like(best), where=best > 0)
    reached = np.flatnonzero(lost >= LOST)
    return Slump(int(success.index[reached[0]]), float(lost[reached[0]])) if len(reached) else None


def _floor_of_score(least: float) -> float:
    """The lowest value of a score in [0, 1] or [-1, 1], by the least that it ever was."""
    return 0.0 if least >= -TENTH else -1.0


class Smoothed(NamedTuple):
    """A curve by the medians of stretches: (N + 1,) where each begins and the last ends, (N,) medians, and
    the standard error of one.
    """

    bounds: np.ndarray
    medians: np.ndarray
    error: float


class Curve:
    """The finite points of a `table.column`, (N,) steps and values, N >= SHORTEST, by step; also as a
    `series`.

    `begin`, `end`: medians of the first and last tenth, of 3 points at least (as `start_level` and
    `end_level` with their steps). `noise`: standard deviation of
    a point about its trend. `smooth`: medians of at most BUCKETS stretches of 3 points or more; `low` and
    `high` are the least and largest of these medians, `error` the standard error of one.
    `bounded`: a score in [0, 1] or [-1, 1]; then its `floor` is 0 or -1 and its `span` goes to 1, else both
    are what it ever was. `reached`: how far up its range it ends, 0 to 1.
    """

    def __init__(self, column: str, steps: np.ndarray, values: np.ndarray) -> None:
        self.column = column
        self.steps = steps
        self.values = values
        self.series = pd.Series(values, steps)
        tenth = self._points(TENTH)
        self.start_level = Level.of(steps[:tenth], values[:tenth])
        self.end_level = Level.of(steps[-tenth:], values[-tenth:])
        self.begin = self.start_level.value
        self.end = self.end_level.value
        # From second differences, in which no trend is left.
        self.noise = SCALE * float(np.median(np.abs(np.diff(values, 2)))) / np.sqrt(6)
        self.smooth = self._smoothed(BUCKETS)
        medians = self.smooth.medians
        self.low = float(medians.min())
        self.high = float(medians.max())
        self.error = self.smooth.error
        self.bounded = float(np.abs(values).max()) <= 1.01
        least = float(values.min())
        self.floor = _floor_of_score(least) if self.bounded else least
        self.span = max((1.0 if self.bounded else float(values.max())) - self.floor, _TINY)
        self.reached = (self.end - self.floor) / self.span

    @classmethod
    def of(cls, column: str, series: pd.Series) -> Self | None:
        """Return the curve of a series that is indexed by step; None where it has fewer than SHORTEST finite
        points.
        """
        clean = series[np.isfinite(series.to_numpy(float))].sort_index()
        return cls(column, clean.index.to_numpy(), clean.to_numpy(float)) if len(clean) >= SHORTEST else None

    def __len__(self) -> int:
        return len(self.values)

    def shown(self, step: int, usual: float | None = None) -> Evidence:
        """Return where the curve ends, as evidence of what began at a step; `usual` is by default where it
        began.
        """
        return Evidence(self.column, step, self.end, self.begin if usual is None else usual)

    def _points(self, share: float) -> int:
        return max(3, round(share * len(self)))

    def part(self, low: float, high: float) -> np.ndarray:
        """The points from one share of them to another, 3 at least."""
        at = min(int(low * len(self)), len(self) - 3)
        return self.values[at : max(int(high * len(self)), at + 3)]

    def around(self, step: int, share: float = TENTH) -> tuple[Level, Level]:
        """Medians of a tenth of the points before a step, and of those from it on."""
        at = int(np.searchsorted(self.steps, step))
        points = self._points(share)
        before = slice(max(0, at - points), max(at, 3))
        first_after = max(0, min(at, len(self) - 3))
        after = slice(first_after, first_after + points)
        return (
            Level.of(self.steps[before], self.values[before]),
            Level.of(self.steps[after], self.values[after]),
        )

    def lowest(self) -> Level:
        """The lowest of the smoothed points."""
        return self._level(int(self.smooth.medians.argmin()))

    def least(self) -> Level:
        """Where the curve starts, or the lowest of the smoothed points if that is lower."""
        lowest = self.lowest()
        return self.start_level if self.begin <= lowest.value else lowest

    def highest(self) -> Level:
        """The highest of the smoothed points."""
        return self._level(int(self.smooth.medians.argmax()))

    def _level(self, bucket: int) -> Level:
        part = slice(self.smooth.bounds[bucket], self.smooth.bounds[bucket + 1])
        return Level.of(self.steps[part], self.values[part])

    def _smoothed(self, buckets: int) -> "Smoothed":
        """Return the medians of at most so many stretches of 3 points or more."""
        bounds = np.linspace(0, len(self), min(buckets, len(self) // 3) + 1).astype(int)
        lengths = np.diff(bounds)
        medians = np.empty(len(lengths))
        for length in np.unique(lengths):  # two at most, which differ by a point
            alike = lengths == length
            stretches = bounds[:-1][alike][:, None] + np.arange(length)
            medians[alike] = np.median(self.values[stretches], axis=1)
        # Of its noise, or of its neighbours where noise is not white.
        change = np.diff(medians)
        white = _OF_MEDIAN * self.noise / np.sqrt(len(self) / len(medians))
        own = SCALE * float(np.median(np.abs(change - np.median(change)))) / np.sqrt(2)
        return Smoothed(bounds, medians, max(white, own))

    def course(self, unit: str = "", since: Level | None = None) -> str:
        """Return `from A (median of steps a to b) to B (median of steps c to d)`, of its start and its
        end.
        """
        return f"from {(since or self.start_level).text(unit)} to {self.end_level.text(unit)}"

    def left(self, way: Literal["up", "down"], share: float = TENTH, since: Level | None = None) -> int:
        """Return the step at which the curve left its begin (or the level `since`, and after it) for good on
        its way to its end, or to its extreme where it came back from that by more than half.

        It is the first of the smoothed points that are all `share` of the way or more from there, and CLEAR
        of noise: the same for a jump, a ramp and an exponential. Where noise hides half of the way the curve
        is smoothed more.
        """
        sign = 1 if way == "up" else -1
        start = since or self.start_level
        begun = int(np.searchsorted(self.steps, start.first))
        for buckets in SMOOTHINGS:
            smooth = self._smoothed(buckets)
            away = (smooth.medians - start.value) * sign
            first = int(np.searchsorted(smooth.bounds, begun, side="right")) - 1
            away[:first] = 0.0
            top = int(away.argmax())
            if sign * (self.end - start.value) >= away[top] / 2:
                top = len(away) - 1
            if CLEAR * smooth.error <= away[top] / 2:
                break
        mark = max(share * away[top], CLEAR * smooth.error)
        still = np.flatnonzero(away[: top + 1] < mark)
        bucket = min(int(still[-1]) + 1, len(away) - 1) if len(still) else 0
        if away[bucket] < mark:  # noise hides where
            return int(self.steps[smooth.bounds[bucket]])
        is_away = (self.values - start.value) * sign >= mark
        return int(self.steps[_boundary(is_away, smooth.bounds, bucket)])


def _boundary(is_away: np.ndarray, bounds: np.ndarray, bucket: int) -> int:
    """Return the point at which a stretch begins to be away: as many points later than the stretch as are
    not away in it, as many earlier as already are in the stretch before.
    """
    start = int(bounds[bucket])
    if not bucket:
        return start
    later = int(np.count_nonzero(~is_away[start : bounds[bucket + 1]]))
    earlier = int(np.count_nonzero(is_away[bounds[bucket - 1] : start]))
    return min(start + later - earlier, len(is_away) - 1)


@dataclass(frozen=True)
class Outcome:
    """What a score does from a step on: its level before it and at the end; changes are -1 fell, 0 held, 1
    rose. Of a step at the start, which has nothing before it, `before` is the level of the start.
    """

    before: Level
    after: Level
    change: int  # from the step on, by more than its noise and a tenth of all that it ever moved
    late: int  # the same of the second half of the run alone
    solved: bool
    from_the_start: bool = False

    @classmethod
    def of(cls, score: Curve, since: int) -> Self:
        """Judge a score from a step on."""
        least = max(CLEAR * score.error, TENTH * (score.high - score.low))
        from_the_start = int(np.searchsorted(score.steps, since)) < FEWEST
        before = score.start_level if from_the_start else score.around(since)[0]
        changes = score.end - before.value, score.end - float(np.median(score.part(0.5, 0.6)))
        change, late = (int(np.sign(change)) if abs(change) > least else 0 for change in changes)
        solved = score.bounded and score.end >= SOLVED
        return cls(before, score.end_level, change, late, solved, from_the_start)

    @property
    def gain(self) -> float:
        """What the score has gained since the step."""
        return self.after.value - self.before.value


def reward_after(score: Outcome | None) -> str:
    """Return the end of a sentence: what the reward did from a step on; nothing where none is logged."""
    if score is None:
        return ""
    if score.change < 0:
        since = "" if score.from_the_start else " after that"
        return f"; the reward falls{since}, from {score.before} to {score.after}"
    if score.change > 0:
        return f"; the reward rises all the same, from {score.before} to {score.after}"
    if score.from_the_start:
        return ""  # the first line says how the whole of it went
    return f"; the reward shows no clear change after that: {score.before}, then {score.after}"


def sure(times: float, base: float) -> float:
    """Confidence of a level that lies `times` beyond its mark: `base` at it, 0.1 more for each doubling, up
    to 0.95.
    """
    return float(min(0.95, base + 0.1 * np.log2(max(times, 1.0))))
