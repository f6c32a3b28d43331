"""The collapse rule: by the counts behind success, has a run lost what it had, since when, and did it come
back.

`collapse_rule` says the rule in words: docs/collapse.md and the app's glossary show it. The rule is
causal: a live run and its log get the same verdict. Only the onset looks both ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sorl.measures.rules import HARD, Event, RuleWatch, Severity
from sorl.spec import MEANINGS, Outcome
from sorl.spec.markdown import markdown_table

if TYPE_CHECKING:
    from sorl.spec import CollapseSettings

WINDOW = 5  # steps of the shortest window that can be the best
Z = 1.28  # of bounds: 90 %, one-sided
PRIOR = 5  # steps that the prior of phi counts as
FINAL = 10  # steps that the final success is the mean of
SATURATED = 0.9  # success at the start and at the end of a run that had no room to rise
LEAST_GAIN = 0.15  # of success: smaller ones are not looked for where it is said that there was none
Z_HIDDEN = 2.0  # standard errors that a gain may hide in
LATEST = (1, 2, 3, 4, 5, 7, 10)  # lengths of the last stretch that may be down
# steps before a fall shows and after it was detected that its onset is judged by
FAR = 64
LATER = 24
RAMPS = (*range(1, 8), *range(8, 32, 2), *range(32, 65, 8))  # points in which a fall may happen
TINY = 1e-9


@dataclass(frozen=True)
class Drop:
    """One fall from the best; all but the two means are steps."""

    best: float  # mean success of the best window, or of the held-out evaluation before training
    best_steps: tuple[int, int] | None  # first and last step of that window; None for the evaluation
    onset: int  # last step before the fall; onset_low to onset_high is its 95 % interval
    onset_low: int
    onset_high: int
    detection: int
    level: float  # mean since the fall, when it was detected
    recovered: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What the rule says of a run; `outcome` is None while there are too few points to say."""

    outcome: Outcome | None
    drops: tuple[Drop, ...]  # severe falls, in order
    falling: Drop | None  # the fall that a run called `falling` is in
    peak: float | None  # highest median of five steps, or the start that was lost where none came up to it
    final: float | None  # mean score of the last ten steps

    @property
    def onset(self) -> int | None:
        """Step after which the first collapse begins."""
        return self.drops[0].onset if self.drops else None

    @property
    def detection(self) -> int | None:
        """First step at which the collapse rule holds."""
        return self.drops[0].detection if self.drops else None

    def columns(self) -> dict[str, float | int | str | None]:
        """Return the verdict as columns of table `run`. A falling run has an onset interval and no collapse
        step.
        """
        fall = self.drops[0] if self.drops else self.falling
        return {
            "outcome": self.outcome,
            "collapse_step": self.onset,
            "detection_step": self.detection,
            "onset_low": fall.onset_low if fall else None,
            "onset_high": fall.onset_high if fall else None,
            "peak_success": self.peak,
            "final_success": self.final,
        }


class _Stretch(NamedTuple):
    """Scores from window[0] up to, not including, window[1]; (0, 0): held out before training."""

    bound: float = -math.inf  # lower bound of the mean
    mean: float = math.nan
    window: tuple[int, int] = (0, 0)


class _Curve:
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
        self.start = _Stretch()
        self.top = _Stretch()
        self._jumps: list[float] = []  # squared differences of neighbours over their binomial variance
        # of these, how many phi counts, and their sum
        self._known = 0
        self._total = 0.0

    def add(self, step: int, score: float) -> None:
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
        found = _Stretch(self.bound(mean, self.n * (end - first) / self.phi, z), mean, (first, end))
        self.start = max(self.start, found) if first == 0 else self.start
        self.top = max(self.top, found)

    def bound(self, mean: float, n: float, z: float) -> float:
        if not self.episodes:
            return mean - z / math.sqrt(n)
        centre = mean + z * z / (2 * n)
        half = z * math.sqrt(mean * (1 - mean) / n + (z / (2 * n)) ** 2)
        return max(0.0, (centre - half) / (1 + z * z / n))

    @property
    def best(self) -> _Stretch:
        """The best stretch of a run that seems to have learned; of any other what it began with: its top is
        luck.
        """
        return self.top if self.gained >= self.enough else self.start

    def apart(self, stretch: _Stretch, level: float, steps: int) -> float:
        """Log-likelihood ratio of two means, of a stretch and of `level` over so many steps, over a common
        one.
        """
        first, last = stretch.window
        size = last - first if last else self.untrained[1] * self.phi / self.n if self.untrained else 0.0
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
            return "no_learning"  # of unknown size: `sorl.measures.unsized` knows more
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


@dataclass
class _Cusum:
    """A CUSUM: the evidence for a change, in nats, and the index at which it most likely began."""

    value: float = -math.inf
    since: int = 0
    most: float = math.inf  # that one point may add

    def add(self, at: int, gain: float, floor: float, wanted: float) -> None:
        """Add the log-likelihood ratio of point `at`; a sum below `floor` starts there again."""
        if self.value <= floor:
            # two steps may do
            self.value = floor
            self.since = at
            self.most = (wanted - floor) / 2 + TINY
        self.value += min(gain, self.most)


class _FallRule:
    """The rule at one loss: at most one open fall, and those before it."""

    def __init__(self, curve: _Curve, settings: CollapseSettings, loss: float) -> None:
        self.curve = curve
        self.settings = settings
        self.loss = loss
        self.wanted = -math.log(settings.false_collapse)
        self.enough = -math.log(settings.false_ending)
        self.down = (_Cusum(), _Cusum())
        self.up = _Cusum()
        self.closed: list[Drop] = []
        self.open: Drop | None = None  # as it was when it was detected
        # where the open fall's evidence begins; where it was last back near its best
        self.since = 0
        self.up_since = 0

    def advance(self) -> Literal["", "fell", "recovered"]:
        curve = self.curve
        at = len(self.curve.scores) - 1
        if (bound := curve.best.bound) == -math.inf:
            return ""
        score = curve.scores[-1]
        low = curve.at(self.loss, bound)
        if self.open:
            self.up.add(at, float(curve.gain(score, bound, low)), 0.0, self.wanted)
            if self.up.value < self.wanted or not self._back():
                return ""
            self.closed.append(replace(self.dated(self.open, self.since), recovered=curve.steps[-1]))
            self.open = None
            self.down = (_Cusum(), _Cusum())
            self.up_since = self.up.since
            return "recovered"
        for cusum, level in zip(self.down, (low, curve.at(0.9, bound)), strict=True):
            cusum.add(at, float(curve.gain(score, level, bound)), self._floor, self.wanted)
        found = max(self.down, key=lambda cusum: cusum.value)
        if found.value < self.wanted or not self._lost(found.since):
            return ""
        self.since = found.since
        self.up = _Cusum()
        self.open = self._drop(found.since)
        return "fell"

    @property
    def _floor(self) -> float:
        return -math.log(2 * len(self.curve.scores))

    @property
    def settled(self) -> bool:
        """Whether no fall is under way and nothing speaks for one."""
        return not self.open and not any(cusum.value > self._floor for cusum in self.down)

    def _lost(self, since: int) -> bool:
        curve = self.curve
        end = len(self.curve.scores)
        first = max(since, min((since + end) // 2, end - WINDOW))
        error = curve.spread(level := curve.mean(first), end - first)
        return level + (Z if end - first < WINDOW else -1.0) * error <= curve.at(self.loss, curve.best.mean)

    def _back(self) -> bool:
        curve = self.curve
        points = len(self.curve.scores) - self.up.since
        error = curve.spread(level := curve.mean(self.up.since), points)
        return level + error >= curve.at(self.settings.mild, curve.best.mean)

    @property
    def climbed(self) -> bool:
        """Whether the run, at its end, is back near its best by the weaker evidence that suffices there."""
        return self.up.value >= self.enough and self._back()

    def fading(self) -> Drop | None:
        """Return the fall that the last steps show: a stretch at the loss or below, unlikely at the best's
        own rate.
        """
        curve = self.curve
        end = len(self.curve.scores)
        for length in (n for n in LATEST if n <= end and curve.best.bound > -math.inf):
            level = curve.mean(end - length)
            for best, luck in ((curve.best, 0.0), (curve.top, curve.luck)):
                evidence = curve.apart(best, level, length) - luck
                if level <= curve.at(self.loss, best.mean) and evidence >= self.enough:
                    return self._drop(end - length)
        return None

    def _drop(self, since: int) -> Drop:
        curve = self.curve
        first, last = self.curve.best.window
        now = self.curve.steps[-1]
        window = (curve.steps[first], curve.steps[last - 1]) if last else None
        return self.dated(Drop(curve.best.mean, window, now, now, now, now, curve.mean(since)), since)

    def dated(self, fall: Drop, since: int) -> Drop:
        """`fall`, whose evidence begins at index `since`, with its onset by what is known now."""
        curve = self.curve
        at = self.curve.steps.index(fall.detection)
        first = min(since, curve.steps.index(fall.best_steps[0]) if fall.best_steps else 0)
        end = min(len(curve.scores), 2 * at - since + LATER)
        low, middle, high = onset(curve, max(first, self.up_since, 2 * since - at - FAR), at, end, fall.best)
        return replace(
            fall, onset=curve.steps[middle], onset_low=curve.steps[low], onset_high=curve.steps[high]
        )


def onset(curve: _Curve, first: int, at: int, end: int, best: float) -> tuple[int, int, int]:
    """Return where a fall begins: (low, estimate, high), indices of the last point before it; low to high is
    95 %.

    Model: scores are at a level a up to point t, fall to b along a straight line of r points, and stay there.
    Every t in [first, at), before the detection, and r of RAMPS is tried on the scores up to `end`, with a
    the mean of what comes before (of fewer than three points `best`: what was known of the run before them)
    and b that of what follows. The estimate has the highest likelihood; the interval is every t whose best r
    comes within 1.92 nats of it (profile likelihood, half the 95 % point of chi-squared with one degree of
    freedom).
    """
    scores = np.asarray(curve.scores[first:end])
    found = np.full(len(scores), -math.inf)
    found[0] = TINY  # of one point
    before = scores.cumsum() / np.arange(1, len(scores) + 1)
    top = np.where(np.arange(len(scores)) < 2, best, before)
    # a gain asks for the mean of the points only
    stay = np.arange(1, len(scores) + 1) * curve.gain(before, top, best)
    left = np.arange(len(scores), 0, -1)  # points from each on
    after = scores[::-1].cumsum()[::-1] / left
    for r in (r for r in RAMPS if r < len(scores)):
        high = top[: len(scores) - r]
        level = np.minimum(after[r:], high)
        likelihood = stay[: len(level)] + left[r:] * curve.gain(after[r:], level, best)
        if r > 1:
            slope = sliding_window_view(scores[1:-1], r - 1)
            line = high[:, None] + (level - high)[:, None] * np.arange(1, r) / r
            likelihood = likelihood + np.sum(curve.gain(slope, line, best), axis=1)
        found[: len(level)] = np.maximum(found[: len(level)], likelihood)
    found = found[: max(1, at - first)]
    near = np.flatnonzero(found >= found.max() - 1.92)
    return first + int(near[0]), first + int(found.argmax()), first + int(near[-1])


class Watch:
    """The collapse rule along a live run, fed every step once: `episodes` behind a step's success, `group` a
    prompt.
    """

    def __init__(
        self, settings: CollapseSettings | None = None, episodes: int | None = None, group: int = 1
    ) -> None:
        from sorl.spec import CollapseSettings

        self.settings = settings or CollapseSettings()
        self._curve = _Curve(episodes, group, -math.log(self.settings.false_ending))
        self._severe = _FallRule(self._curve, self.settings, self.settings.severe)
        self._mild = _FallRule(self._curve, self.settings, self.settings.mild)
        self._hard = RuleWatch(HARD)
        self._critical = False
        self.diverged = False

    def step(self, step: int, measured: Mapping[str, float | None]) -> list[Event]:
        """Return the events of `step`, whose row of table `step` is `measured`; a missing or None score is no
        point.
        """
        events = self._hard.step(step, measured)
        curve = self._curve
        score = measured.get("success")
        share = measured.get("heldout_success")
        asked = measured.get("heldout_episodes")
        if not curve.scores and share is not None and asked:
            curve.untrained = float(share), int(asked)
            curve.start = curve.top = _Stretch(curve.bound(*curve.untrained, Z), float(share))
        if broken := score is not None and not math.isfinite(score):
            message = f"success is {score}: nothing can be measured any more"
            events.append(Event(step, "non_finite", "critical", message, "success", score))
        self._critical |= any(event.severity == "critical" for event in events)
        self.diverged |= any(event.kind == "non_finite" for event in events)
        if score is None or broken:
            return events
        curve.add(step, float(score))
        for rule, kind in ((self._mild, "mild"), (self._severe, "collapse")):
            change = rule.advance()
            if change == "fell" and (fall := rule.open):
                severity: Severity = "warning" if rule is self._mild else "critical"
                where = "steps {} to {}".format(*fall.best_steps) if fall.best_steps else "before training"
                message = f"success fell from {fall.best:.3f} ({where}) to {fall.level:.3f}; "
                message += f"the fall began after step {fall.onset}"
                events.append(Event(step, kind, severity, message, "success", fall.level, fall.best))
            elif change == "recovered" and rule is self._severe:
                fall = rule.closed[-1]
                message = (
                    f"success is back near its best of {fall.best:.3f}, {step - fall.onset} steps after it"
                    " fell"
                )
                events.append(Event(step, "recovered", "info", message, "success", float(score), fall.best))
        curve.keep_best(self._severe.settled)
        return events

    def crashed(self, step: int, message: str) -> Event:
        """Return the event of a run that cannot go on (engine crash, non-finite loss): its outcome is
        diverged.
        """
        self.diverged = True
        return Event(step, "diverged", "critical", message)

    @property
    def brink(self) -> int | None:
        """The last step near the best so far: the onset, should the rule find a fall now; None before the
        first.
        """
        curve = self._curve
        best = self._curve.best
        if not curve.steps or best.bound == -math.inf:
            return curve.steps[-1] if curve.steps else None
        near = best.mean - max(curve.spread(best.mean, 1), 0.02 * abs(best.mean))
        since = range(max(0, best.window[1] - 1), len(curve.scores))
        return curve.steps[next((i for i in reversed(since) if curve.scores[i] >= near), since[0])]

    @property
    def detection(self) -> int | None:
        """The step at which the first collapse was called; None without one."""
        fall = [*self._severe.closed, self._severe.open][0]
        return fall.detection if fall else None

    @property
    def verdict(self) -> Verdict:
        """What the rule says of the steps so far."""
        curve = self._curve
        fading = None
        severe = self._severe
        drops = (*severe.closed, *([severe.dated(severe.open, severe.since)] if severe.open else []))
        outcome: Outcome | None = None
        if self.diverged:
            outcome = "diverged"
        elif severe.open:
            outcome = "recovered" if severe.climbed else "collapsed"
        elif fading := severe.fading():
            outcome = "collapsed" if drops else "falling"
        elif drops:
            outcome = "recovered"
        elif self._mild.open and not self._mild.climbed:
            outcome = "mild"
        elif len(curve.scores) >= WINDOW:
            if curve.gained < curve.enough + curve.luck:
                outcome = curve.flat_word()
            else:
                outcome = "mild" if self._critical else "healthy"
        scores = curve.scores
        fall = drops[0] if drops else fading
        ends = range(max(1, min(WINDOW, len(scores))), len(scores) + 1)
        peak = max((median(scores[max(0, i - WINDOW) : i]) for i in ends), default=None)
        if peak is not None and fall and not fall.best_steps:
            peak = max(peak, fall.best)
        return Verdict(
            outcome, drops, None if drops else fading, peak, fmean(scores[-FINAL:]) if scores else None
        )


def judge(
    success: Sequence[float | None],
    settings: CollapseSettings | None = None,
    steps: Sequence[int] | None = None,
    episodes: int | None = None,
    group: int = 1,
) -> Verdict:
    """Return the verdict on a finished log of scores; `steps` numbers the points (0, 1, ... by default)."""
    watch = Watch(settings, episodes, group)
    for step, score in zip(steps if steps is not None else range(len(success)), success, strict=True):
        watch.step(step, {"success": score})
    return watch.verdict


# What each setting of the collapse rule is and why its default is what it is.
COLLAPSE_REASONS: dict[str, tuple[str, str]] = {
    "severe": (
        "share of the best that a collapse loses",
        "published collapses lose more than half; noise does not",
    ),
    "mild": ("share of the best that a mild fall loses", "the smallest loss that a user would act on"),
    "false_collapse": (
        "one run in 1 / this that lost nothing may be called collapsed",
        "a table of a hundred runs has about one wrong word; the measured rates are in docs/collapse.md",
    ),
    "false_ending": (
        (
            "one run in 1 / this that lost nothing may be called falling; the same odds for recovered and "
            "for learned"
        ),
        "said once, at the end of a run, so that no second look can take it back",
    ),
}


def collapse_rule() -> str:
    """Markdown: when a run has collapsed, since when, whether it came back, and the events that need no
    smoothing.
    """
    from sorl.spec import CollapseSettings

    defaults = CollapseSettings()
    settings = (
        [f"`collapse.{n}`", f"{getattr(defaults, n):g}", *reasons] for n, reasons in COLLAPSE_REASONS.items()
    )
    hard = ([f"`{rule.kind}`", rule.happens, rule.reason] for rule in HARD)
    words = ([f"`{word}`", meaning] for word, meaning in MEANINGS.items())
    text = files(__package__).joinpath("collapse_rule.md").read_text(encoding="utf-8")
    return text.format(
        prior=PRIOR,
        window=WINDOW,
        twice_window=2 * WINDOW,
        four_times_window=4 * WINDOW,
        final=FINAL,
        outcomes=markdown_table(("outcome", "the run"), words),
        settings=markdown_table(("setting", "default", "meaning", "reason"), settings),
        hard_events=markdown_table(("event", "happens when", "reason"), hard),
    )
