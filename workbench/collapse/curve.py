"""The scores of a run so far: their means, their noise, and the best stretch of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sorl.spec import Outcome

WINDOW = 5  # steps of the shortest window that can be the best
Z = 1.28  # of bounds: 90 %, one-sided
PRIOR = 5  # steps that the prior of phi counts as
FINAL = 10  # steps that the final success is the mean of
SATURATED = 0.9  # success at the start and at the end of a run that had no room to rise
LEAST_GAIN = 0.15  # of success: smaller ones are not looked for where it is said that there was none
Z_HIDDEN = 2.0  # standard errors that a gain may hide in
TINY = 1e-9


class Stretch(NamedTuple):
    """Scores from window[0] up to, not including, window[1]; (0, 0): held out before training."""

    bound: float = -math.inf  # lower bound of the mean
    mean: float = math.nan
    window: tuple[int, int] = (0, 0)


class Curve:
    """The scores so far: their means, their noise, and the best stretch of them."""

    def __init__(self, episodes: int | None, group: int, enough: float) -> None:
        self.episodes = episodes
        self.group = group
        self.enough = enough
        self.n = float(episodes or 1)
        self.steps: list[int] = []
        self.scores: list[float] = []
        self.sums = [0.0]
        # held-out success before training, and of how many episodes
        self.untrained: tuple[float, int] | None = None
        # the best that begins with the run, the best of all
        self.start = Stretch()
        self.top = Stretch()
        self._jumps: list[float] = []  # squared differences of neighbours over their binomial variance
        # of these, how many phi counts, and their sum
        self._known = 0
        self._total = 0.0

    def add(self, step: int, score: float) -> None:
        """Add the score of a step."""
        if self.scores:
            before = self.scores[-1]
            p = min(max((score + before) / 2, 0.5 / self.n), 1 - 0.5 / self.n)
            self._jumps.append((score - before) ** 2 / (2 * (p * (1 - p) / self.n if self.episodes else 1.0)))
        self.steps.append(step)
        self.scores.append(score)
        self.sums.append(self.sums[-1] + score)

    @property
    def phi(self) -> float:
        """How many times the binomial variance a step has; of a score of unknown size its variance."""
        if self.episodes:
            return max(1.0, (PRIOR * (1 + self.group) / 2 + self._total) / (PRIOR + self._known))
        return max(self._total / max(self._known, 1), TINY)

    def mean(self, first: int, last: int | None = None) -> float:
        """Mean of the scores from index `first` up to, not including, `last`."""
        last = len(self.scores) if last is None else last
        return (self.sums[last] - self.sums[first]) / (last - first)

    def spread(self, mean: float, steps: int) -> float:
        """Standard error of the mean of so many steps; never 0, also of a mean of 0 or 1."""
        n = self.n * steps / self.phi
        p = (mean * n + 0.5) / (n + 1)
        return math.sqrt((p * (1 - p) if self.episodes else 1.0) / n)

    def gain(self, score: float | np.ndarray, p: float | np.ndarray, q: float) -> float | np.ndarray:
        """Log-likelihood ratio of mean p over mean q for one step."""
        if not self.episodes:
            return self.n / self.phi * ((score - q) ** 2 - (score - p) ** 2) / 2
        p = np.clip(p, TINY, 1 - TINY)
        q = min(max(q, TINY), 1 - TINY)
        return self.n / self.phi * (score * np.log(p / q) + (1 - score) * np.log((1 - p) / (1 - q)))

    def at(self, loss: float, of: float) -> float:
        """`of` less a share of it; of a score that can be negative, less that share of the way above its
        start.
        """
        return of - loss * max(abs(of), of - min(0.0, self.scores[0]))

    def keep_best(self, settled: bool) -> None:
        """Look whether a window that ends here is the best so far; when `settled`, no fall is under way, for
        phi.
        """
        if settled:
            self._total += sum(self._jumps[self._known :])
            self._known = len(self._jumps)
        end = len(self.scores)
        length = WINDOW
        if not self.episodes and self._known < WINDOW - 1:
            return  # the noise is not known yet
        if end < WINDOW and not self.untrained:
            self._offer(0, end, 3.0)
        while length <= end:
            self._offer(end - length, end, math.sqrt(2 * math.log(1 + end / WINDOW)) if length < end else Z)
            length *= 2

    def _offer(self, first: int, end: int, z: float) -> None:
        mean = self.mean(first, end)
        found = Stretch(self.bound(mean, self.n * (end - first) / self.phi, z), mean, (first, end))
        self.start = max(self.start, found) if first == 0 else self.start
        self.top = max(self.top, found)

    def bound(self, mean: float, n: float, z: float) -> float:
        """Lower bound of a mean of n independent episodes (of scores of unknown size: of n variances)."""
        if not self.episodes:
            return mean - z / math.sqrt(n)
        centre = mean + z * z / (2 * n)
        half = z * math.sqrt(mean * (1 - mean) / n + (z / (2 * n)) ** 2)
        return max(0.0, (centre - half) / (1 + z * z / n))

    @property
    def best(self) -> Stretch:
        """The best stretch of a run that seems to have learned; of any other what it began with: its top is
        luck.
        """
        return self.top if self.gained >= self.enough else self.start

    def apart(self, stretch: Stretch, level: float, steps: int) -> float:
        """Log-likelihood ratio of two means, of a stretch and of `level` over so many steps, over a common
        one.
        """
        first, last = stretch.window
        size = float(last - first)
        if not last and self.untrained:
            size = self.untrained[1] * self.phi / self.n
        common = (size * stretch.mean + steps * level) / (size + steps)
        own = ((size, stretch.mean), (steps, level))
        return sum(weight * float(self.gain(mean, mean, common)) for weight, mean in own)

    def flat_word(self) -> Outcome:
        """Return the word for a curve without a gain: whether it had room to rise, and whether a rise would
        have shown.
        """
        head = min(WINDOW, len(self.scores))
        tail = min(FINAL, len(self.scores))
        end = self.mean(len(self.scores) - tail)
        begin = self.mean(0, head)
        if not self.episodes:
            return "no_learning"  # of unknown size: `sorl.collapse.unsized` knows more
        if min(begin, end) >= SATURATED:
            return "saturated"
        error = math.hypot(self.spread(begin, head), self.spread(end, tail))
        hidden = end - begin + Z_HIDDEN * error
        return "no_clear_change" if hidden >= LEAST_GAIN else "no_learning"

    @property
    def luck(self) -> float:
        """Nats by which the top flatters: it is the most of about one window in five steps."""
        return math.log(max(1.0, len(self.scores) / WINDOW))

    @property
    def gained(self) -> float:
        """Evidence in nats, z^2 / 2, that the top lies above the start (held out, else the
        first five steps).
        """
        first, last = self.top.window
        head = min(WINDOW, len(self.scores))
        if not last:
            return 0.0
        if self.untrained:
            start, asked = self.untrained
            error = math.sqrt(max(start * (1 - start), 0.25 / asked) / asked)
        else:
            error = self.spread(start := self.mean(0, head), head)
        gain = max(0.0, self.top.mean - start)
        return gain**2 / (error**2 + self.spread(self.top.mean, last - first) ** 2) / 2
