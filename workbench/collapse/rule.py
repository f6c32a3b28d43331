"""The collapse rule: by the counts behind success, has a run lost what it had, since when, and did it come
back.

The rule is causal: a live run and its log get the same verdict. Only the onset looks both ways. `describe.py`
says the rule in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

from sorl.collapse.curve import FINAL, TINY, WINDOW, Curve, Stretch, Z
from sorl.collapse.events import HARD, Event, RuleWatch, Severity
from sorl.collapse.onset import find_onset
from sorl.spec import Outcome

if TYPE_CHECKING:
    from sorl.spec import CollapseSettings

LATEST = (1, 2, 3, 4, 5, 7, 10)  # lengths of the last stretch that may be down
# steps before a fall shows and after it was detected that its onset is judged by
FAR = 64
LATER = 24


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

    def __init__(self, curve: Curve, settings: CollapseSettings, loss: float) -> None:
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
        earliest = max(first, self.up_since, 2 * since - at - FAR)
        onset = find_onset(curve, earliest, at, end, fall.best)
        return replace(
            fall,
            onset=curve.steps[onset.estimate],
            onset_low=curve.steps[onset.low],
            onset_high=curve.steps[onset.high],
        )


def _fall_sentence(fall: Drop) -> str:
    where = "steps {} to {}".format(*fall.best_steps) if fall.best_steps else "before training"
    return (
        f"success fell from {fall.best:.3f} ({where}) to {fall.level:.3f}; "
        f"the fall began after step {fall.onset}"
    )


class Watch:
    """The collapse rule along a live run, fed every step once: `episodes` behind a step's success, `group` a
    prompt.
    """

    def __init__(
        self, settings: CollapseSettings | None = None, episodes: int | None = None, group: int = 1
    ) -> None:
        from sorl.spec import CollapseSettings

        self.settings = settings or CollapseSettings()
        self._curve = Curve(episodes, group, -math.log(self.settings.false_ending))
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
            curve.start = curve.top = Stretch(curve.bound(*curve.untrained, Z), float(share))
        if broken := score is not None and not math.isfinite(score):
            message = f"success is {score}: nothing can be measured any more"
            events.append(Event(step, "non_finite", "critical", message, "success", score))
        self._critical |= any(event.severity == "critical" for event in events)
        self.diverged |= any(event.kind == "non_finite" for event in events)
        if score is None or broken:
            return events
        curve.add(step, float(score))
        events += self._changes(step, float(score))
        curve.keep_best(self._severe.settled)
        return events

    def _changes(self, step: int, score: float) -> Iterator[Event]:
        """Yield the falls that begin and the one that ends with the newest score."""
        for rule, kind in ((self._mild, "mild"), (self._severe, "collapse")):
            change = rule.advance()
            if change == "fell" and rule.open:
                severity: Severity = "warning" if rule is self._mild else "critical"
                fall = rule.open
                yield Event(step, kind, severity, _fall_sentence(fall), "success", fall.level, fall.best)
            elif change == "recovered" and rule is self._severe:
                fall = rule.closed[-1]
                message = (
                    f"success is back near its best of {fall.best:.3f}, {step - fall.onset} steps after it"
                    " fell"
                )
                yield Event(step, "recovered", "info", message, "success", score, fall.best)

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
