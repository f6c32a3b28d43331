"""The verdict on a finished curve of which nobody knows how many episodes are behind a step.

The noise is estimated from the curve itself, in two ways. Each has a bias of its own, and a fall must stand
out by one of them:

- **Variogram.** Half the mean squared difference at lags 1 to K is sd^2 (1 - rho^k) of an AR(1) process. A
  level that shifts once enters few differences, and the largest fifth is left out, so falls and heavy tails
  hardly touch it. Sure where a run is long against its correlation.
- **Residuals** of the best fit that rises, falls and rises again, each part monotone, with the noise that
  such a fit swallows put back. Needed below some 150 steps, where lags are as long as the phases of a run. It
  is trusted only where residuals hardly correlate.

The statistic is the largest drop from one window to a later one, over four lengths of windows, in standard
errors of such a difference. `bench/unsized_curves.py` measures how often curves that lose nothing reach the
limits, and which falls are found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from sorl.collapse.curve import FINAL, SATURATED, WINDOW
from sorl.collapse.events import HARD, Event, RuleWatch
from sorl.collapse.rule import Drop, Verdict
from sorl.spec import Outcome

FEWEST = 12  # points, below which no verdict is given
POINTS = 240  # that a curve is averaged into, if it is longer
PARTS = (1 / 24, 1 / 12, 1 / 6, 1 / 4)  # lengths of windows, as shares of the curve
SHORTEST = 3  # points of a window: two outliers of heavy tails must not be one
SEVERE = 0.5  # share of the gain that a collapse loses
MILD = 0.2  # share of the gain that a mild fall loses
BACK = 0.3  # share of the gain that may be missing at the end of a run that recovered
EFFECT = 0.7  # standard deviations of a step that the least fall loses
EFFECT_WITHOUT_GAIN = 2.0  # the same that a collapse loses, where no gain was shown
LIMIT = 5.0  # of a fall by the variogram
RESIDUAL_LIMIT = 6.0  # of a fall by the residuals, at SHORT points and more
SHORT = 100  # points, below which that limit rises, to RESIDUAL_LIMIT + 1 at 60 points
GAIN_LIMIT = 4.5  # of a gain, by either: one that is no gain does less harm
UNCORRELATED = 0.25  # autocorrelation up to which residuals are trusted
LAGS = 12
KEPT = 0.8  # of the squared differences of a lag, the smallest
KEPT_SHARE = 2.285  # mean square of a normal variable over that of its KEPT smallest squares
CLIPPED = 3.0  # standard deviations from the running median, beyond which a value is cut
PHASES = 12  # places at which the monotone fit may turn
# Nats below the best split, within which the true one lies in 95 %: -ln(1 - sqrt(.95)) (Hansen 2000).
COVERED = 3.675
BLIND = 1.5  # standard deviations of a step that a gain may have where it is said that there was none
SIGN = 2.0  # standard errors of a gain that is a sign of one, though none that is clear


class Noise(NamedTuple):
    """The noise of a curve as an AR(1) process: its standard deviation and the correlation of neighbours."""

    deviation: float
    correlation: float

    def error(self, length: int) -> float:
        """Return the standard error of the mean of `length` points."""
        lags = np.arange(1, length)
        inflation = 1 + 2 * float(((1 - lags / length) * self.correlation**lags).sum())
        return self.deviation * math.sqrt(inflation / length)


class Change(NamedTuple):
    """The largest change between two windows of a curve, in points of it."""

    score: float  # in standard errors of such a difference
    length: int  # of a window
    first: int  # where the first window begins
    second: int  # where the later one begins
    ends: tuple[int, ...] = ()  # points at which a window ends that is so much lower than one before it


class Window(NamedTuple):
    """The mean of a stretch of scores, with its first and last step."""

    mean: float
    first: int
    last: int


class Split(NamedTuple):
    """The last point before a fall, and the ends of its 95 % interval."""

    low: int
    at: int
    high: int


def judge_unsized(scores: Sequence[float], steps: Sequence[int]) -> Verdict:
    """Return the verdict on the scores of a finished run, whose sizes and noise are unknown.

    The words do not depend on the scale of the scores, nor on where it has its zero: a collapse loses half of
    the gain that the curve has shown. Only `saturated` asks for scores in [0, 1].
    """
    return UnsizedCurve(scores, steps).verdict


class UnsizedWatch:
    """Judges an imported log: it is fed every step once, as `Watch` is, and speaks of falls at the end."""

    def __init__(self) -> None:
        self.diverged = False
        self._critical = False
        self._hard = RuleWatch(HARD)
        self._scores: list[float] = []
        self._steps: list[int] = []

    def step(self, step: int, measured: Mapping[str, float | None]) -> list[Event]:
        """Return the hard events of `step`, whose row of table `step` is `measured`."""
        events = self._hard.step(step, measured)
        score = measured.get("success")
        if score is not None and not math.isfinite(score):
            message = f"success is {score}: nothing can be measured any more"
            events.append(Event(step, "non_finite", "critical", message, "success", score))
        elif score is not None:
            self._scores.append(float(score))
            self._steps.append(step)
        self._critical |= any(event.severity == "critical" for event in events)
        self.diverged |= any(event.kind == "non_finite" for event in events)
        return events

    def crashed(self, step: int, message: str) -> Event:
        """Return the event of a run that could not go on: its outcome is diverged."""
        self.diverged = True
        return Event(step, "diverged", "critical", message)

    @cached_property
    def _curve(self) -> UnsizedCurve:
        return UnsizedCurve(self._scores, self._steps)

    @property
    def verdict(self) -> Verdict:
        """What the steps show; a critical event makes a healthy run a mild one."""
        found = self._curve.verdict
        if self.diverged:
            return replace(found, outcome="diverged")
        if self._critical and found.outcome == "healthy":
            return replace(found, outcome="mild")
        return found

    def falls(self) -> list[Event]:
        """Return the events of the fall that the finished curve shows."""
        fall = self._curve.fall
        outcome = self._curve.verdict.outcome
        if fall is None or outcome not in ("mild", "collapsed", "recovered"):
            return []
        first, last = fall.best_steps or (fall.onset, fall.onset)
        message = f"success fell from {fall.best:.3f} (steps {first} to {last}) to {fall.level:.3f}; "
        message += f"the fall began after step {fall.onset}"
        where = ("success", fall.level, fall.best)
        if outcome == "mild":
            return [Event(fall.detection, "mild", "warning", message, *where)]
        found = [Event(fall.detection, "collapse", "critical", message, *where)]
        if outcome == "recovered":
            back = f"success is back near its best of {fall.best:.3f}"
            final = self._curve.verdict.final
            found.append(Event(self._steps[-1], "recovered", "info", back, "success", final, fall.best))
        return found


class UnsizedCurve:
    """A curve in points: means of so many steps each, if it is long. Scores that are no numbers are left
    out.
    """

    def __init__(self, scores: Sequence[float], steps: Sequence[int]) -> None:
        known = [(score, step) for score, step in zip(scores, steps, strict=True) if math.isfinite(score)]
        self.values = np.array([score for score, _ in known], dtype=float)
        self.steps = [step for _, step in known]
        self.width = max(1, -(-len(known) // POINTS))  # steps of a point
        self.skipped = len(known) % self.width  # at the start, so that the end counts
        self.points = self.values[self.skipped :].reshape(-1, self.width).mean(axis=1)

    @cached_property
    def noises(self) -> tuple[Noise, Noise]:
        """The noise of the points, by the variogram and by the residuals."""
        return variogram_noise(self.points), residual_noise(self.points)

    @cached_property
    def change(self) -> Change | None:
        """The largest fall of the points, if it is none of noise."""
        if len(self.points) < FEWEST or not np.ptp(self.points):
            return None
        return self._largest(self.points, LIMIT, residual_limit(len(self.points)))

    @cached_property
    def fall(self) -> Drop | None:
        """The fall in steps, with its onset and the 95 % interval of that."""
        return None if self.change is None else self._drop(self.change)

    @cached_property
    def verdict(self) -> Verdict:
        """What the curve shows."""
        outcome = self._outcome()
        severe = self.fall is not None and outcome in ("collapsed", "recovered")
        drops = (self.fall,) if severe and self.fall is not None else ()
        return Verdict(outcome, drops, None, self._peak(), self._final())

    def _outcome(self) -> Outcome | None:
        if len(self.points) < FEWEST:
            return None
        if self.change is not None and self.fall is not None:
            return self._word(self.change, self.fall)
        return "healthy" if self.gain is not None else self._flat_word()

    @cached_property
    def gain(self) -> Change | None:
        """The largest rise of the points, if it is none of noise."""
        return self._gain_of(self.points)

    def _gain_of(self, points: np.ndarray) -> Change | None:
        if len(points) < FEWEST or not np.ptp(points):
            return None
        return self._largest(-points, GAIN_LIMIT, GAIN_LIMIT)

    def _flat_word(self) -> Outcome:
        """Return the word for a curve without a clear change: whether it had room to rise, and whether a rise
        would have shown.
        """
        bounded = float(self.values.min()) >= 0 and float(self.values.max()) <= 1
        if bounded and float(np.median(self.values)) >= SATURATED:
            return "saturated"
        gain, error = self.drift
        deviation = self.noises[0].deviation
        if gain > SIGN * error or gain + SIGN * error > BLIND * deviation:
            return "no_clear_change"
        return "no_learning"

    @cached_property
    def drift(self) -> tuple[float, float]:
        """What the last quarter of the points lies above the first, and the standard error of that."""
        quarter = max(SHORTEST, len(self.points) // 4)
        gain = float(self.points[-quarter:].mean() - self.points[:quarter].mean())
        return gain, math.sqrt(2) * self.noises[0].error(quarter)

    @property
    def deviation(self) -> float:
        """Standard deviation of a step, if steps are independent."""
        return self.noises[0].deviation * math.sqrt(self.width)

    def window(self, first: int, length: int) -> Window:
        """Return the mean of some points, and the first and the last step that it is the mean of."""
        start = self.skipped + first * self.width
        end = start + length * self.width
        return Window(float(self.values[start:end].mean()), self.steps[start], self.steps[end - 1])

    def _largest(self, points: np.ndarray, limit: float, residual: float) -> Change | None:
        """Return the largest fall of some points that is above its limit by one of the two noises."""
        by_variogram, by_residuals = self.noises
        limits = [(by_variogram, limit)]
        if by_residuals.correlation <= UNCORRELATED:
            limits.append((by_residuals, residual))
        for noise, least in limits:
            found = largest_fall(points, noise)
            if found is not None and found.score > least:
                return found._replace(ends=ends_of_falls(points, noise, least))
        return None

    def _word(self, change: Change, fall: Drop) -> Outcome:
        """Return how bad a fall is: by the gain that it takes, or where none was shown by the noise."""
        before = self.points[: change.first + change.length]
        lost = fall.best - fall.level
        has_gained = self._gain_of(before) is not None
        reference = fall.best - float(_means(before, change.length).min()) if has_gained else lost
        if lost < EFFECT * self.deviation or lost < MILD * reference:
            return "healthy" if self.gain is not None else self._flat_word()
        if lost < SEVERE * reference or (not has_gained and lost < EFFECT_WITHOUT_GAIN * self.deviation):
            return "mild"
        end = float(self.points[-change.length :].mean())
        return "recovered" if fall.best - end < BACK * reference else "collapsed"

    def _drop(self, fall: Change) -> Drop:
        best = float(self.points[fall.first : fall.first + fall.length].mean())
        level = float(self.points[fall.second : fall.second + fall.length].mean())
        low, at, high = self._split(fall)
        certain = min(end for end in fall.ends if end > at)
        return Drop(
            best=best,
            best_steps=(self._step(fall.first), self._step(fall.first + fall.length - 1)),
            onset=self._step(at),
            onset_low=self._first_step(low),
            onset_high=self._last_step_before(high + 1),
            detection=self._step(certain),
            level=level,
        )

    def _split(self, fall: Change) -> Split:
        """Return the split of two levels with the smallest sum of squares, from the best window to the low
        one.
        """
        points = self.points[fall.first : fall.second + fall.length]
        size = len(points)
        sums = np.cumsum(points)
        lengths = np.arange(1, size)
        gains = (sums[:-1] - lengths * sums[-1] / size) ** 2 * size / (lengths * (size - lengths))
        at = int(gains.argmax())
        left = float(((points - points.mean()) ** 2).sum()) - float(gains[at])
        variance = max(left / max(size - 2, 1), 1e-18)
        near = np.flatnonzero(gains >= gains[at] - 2 * COVERED * variance)
        return Split(fall.first + int(near[0]), fall.first + at, fall.first + int(near[-1]))

    def _step(self, point: int) -> int:
        """Return the last step of a point."""
        return self._step_at(self.skipped + (point + 1) * self.width - 1)

    def _first_step(self, point: int) -> int:
        """Return the first step of a point: a fall may begin inside of one."""
        return self._step_at(self.skipped + point * self.width)

    def _last_step_before(self, point: int) -> int:
        """Return the last step before the whole of a point is lower."""
        return self._step_at(self.skipped + (point + 1) * self.width - 2)

    def _step_at(self, index: int) -> int:
        return self.steps[min(max(index, 0), len(self.steps) - 1)]

    def _peak(self) -> float | None:
        """Return the highest median of five steps."""
        scores = self.values.tolist()
        ends = range(max(1, min(WINDOW, len(scores))), len(scores) + 1)
        return max((median(scores[max(0, end - WINDOW) : end]) for end in ends), default=None)

    def _final(self) -> float | None:
        return fmean(self.values[-FINAL:].tolist()) if len(self.values) else None


def residual_limit(points: int) -> float:
    """Return the limit of the statistic by the residuals, which err more on a short curve."""
    return RESIDUAL_LIMIT + max(0.0, (SHORT - points) / (SHORT - 60))


def variogram_noise(points: np.ndarray) -> Noise:
    """Return the AR(1) process whose differences are those of the curve, by least squares over its lags."""
    lags = np.arange(1, min(LAGS, max(2, len(points) // 5)) + 1)
    halves = np.array([_trimmed_mean_square(points[lag:] - points[:-lag]) / 2 for lag in lags])
    correlations = np.linspace(0, 0.98, 50)
    shapes = 1 - correlations[:, None] ** lags
    weights = 1 / np.sqrt(lags)
    variances = (halves * shapes * weights).sum(1) / (shapes**2 * weights).sum(1)
    errors = ((halves - variances[:, None] * shapes) ** 2 * weights).sum(1)
    best = int(errors.argmin())
    floor = 1e-9 * float(np.ptp(points)) ** 2
    return Noise(math.sqrt(max(float(variances[best]), floor)), float(correlations[best]))


def _trimmed_mean_square(differences: np.ndarray) -> float:
    squares = np.sort(differences**2)
    return float(squares[: max(1, round(KEPT * len(squares)))].mean()) * KEPT_SHARE


def residual_noise(points: np.ndarray) -> Noise:
    """Return the noise around the best fit that rises, falls and rises, with what the fit takes put back.

    The fit lowers the correlation of neighbours and the deviation; both are corrected by what simulations of
    AR(1) processes of 60 and 200 points show on average (`bench/unsized_curves.py --bias`).
    """
    residuals = points - fit_up_down_up(points)
    total = float((residuals**2).sum())
    if total <= 0:
        return Noise(1e-9 * float(np.ptp(points)), 0.0)
    raw = float((residuals[1:] * residuals[:-1]).sum()) / total
    longer = min(1.0, max(0.0, (len(points) - 60) / 140))
    correlation = min(max((raw + 0.13 * 60 / len(points)) / (0.63 + 0.25 * longer), 0.0), 0.98)
    kept = 0.85 + 0.09 * longer - (0.42 - 0.11 * longer) * correlation**3
    return Noise(math.sqrt(total / len(points)) / kept, correlation)


def fit_up_down_up(points: np.ndarray) -> np.ndarray:
    """Return the least-squares fit of three monotone parts, up, down and up, of which each may be empty."""
    size = len(points)
    turns = np.unique(np.linspace(0, size, PHASES + 1).astype(int)).tolist()
    rising = {turn: fit_rising(points[:turn]) for turn in turns}
    ending = {turn: fit_rising(points[turn:]) for turn in turns}
    best = math.inf
    found = points
    for index, first in enumerate(turns):
        for second in turns[index:]:
            falling = -fit_rising(-points[first:second])
            fitted = np.concatenate([rising[first], falling, ending[second]])
            error = float(((points - fitted) ** 2).sum())
            if error < best:
                best = error
                found = fitted
    return found


def fit_rising(points: np.ndarray) -> np.ndarray:
    """Return the isotonic regression of points of equal weight: pool adjacent violators."""
    means: list[float] = []
    sizes: list[int] = []
    for point in points.tolist():
        mean = point
        size = 1
        while means and means[-1] >= mean:
            earlier = sizes.pop()
            mean = (means.pop() * earlier + mean * size) / (earlier + size)
            size += earlier
        means.append(mean)
        sizes.append(size)
    return np.repeat(means, sizes) if means else points


def largest_fall(points: np.ndarray, noise: Noise) -> Change | None:
    """Return the largest drop from one window to a later one, in standard errors; None of too few points."""
    clipped = _clipped(points, noise.deviation)
    best: Change | None = None
    for length in window_lengths(len(points)):
        means = _means(clipped, length)
        if len(means) <= length:
            continue
        tops = np.maximum.accumulate(means)[:-length]
        drops = tops - means[length:]
        at = int(drops.argmax())
        score = float(drops[at]) / (math.sqrt(2) * noise.error(length))
        if best is None or score > best.score:
            best = Change(score, length, int(means[: at + 1].argmax()), at + length)
    return best


def ends_of_falls(points: np.ndarray, noise: Noise, limit: float) -> tuple[int, ...]:
    """Return the points at which a window ends whose drop from an earlier one is above `limit`, ascending."""
    clipped = _clipped(points, noise.deviation)
    ends: set[int] = set()
    for length in window_lengths(len(points)):
        means = _means(clipped, length)
        if len(means) <= length:
            continue
        drops = np.maximum.accumulate(means)[:-length] - means[length:]
        below = np.flatnonzero(drops > limit * math.sqrt(2) * noise.error(length))
        ends |= set((below + 2 * length - 1).tolist())
    return tuple(sorted(ends))


def window_lengths(points: int) -> list[int]:
    """Return the lengths of the windows that are compared."""
    return sorted({max(SHORTEST, round(part * points)) for part in PARTS})


def _means(points: np.ndarray, length: int) -> np.ndarray:
    """Return the running means of `length` points."""
    sums = np.concatenate([[0.0], np.cumsum(points)])
    return (sums[length:] - sums[:-length]) / length


def _clipped(points: np.ndarray, deviation: float) -> np.ndarray:
    """Return the points, those far from the median of their neighbours cut: one outlier moves no window."""
    padded = np.pad(points, 3, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7), axis=1)
    return np.clip(points, middle - CLIPPED * deviation, middle + CLIPPED * deviation)
