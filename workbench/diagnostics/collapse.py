"""The collapse rule: when has a run that had learned lost it, where did the loss begin, did it come back.

s_t is the training success of a step, s~_t its trailing median, P_t = max s~ so far (at t*). b is the success of the
untrained policy: held out, where it was evaluated before the first update, else the mean of the first n_0 points (by
which a policy after a warm start has already learned). b_0 is the same held-out success, else the first point, whose
rollouts no update has touched, where the number n of its episodes is known, else b. sigma = 1.4826 MAD of s - s~ over
the points so far, but at least the standard error of a share of n episodes at P or b: where success is a few episodes
in a batch, the deviations are mostly ties, their MAD is 0, and the rule would call the noise of a run that never
learned a collapse. The rule is causal: what it says at a step depends on the steps up to it, so a live run and its log
get the same verdict.

Event: at W points in a row the run is down, and at the last of them it had something to lose. Down is (P - s~)/P >=
delta, or the start is lost: s~ <= b_0 / 2 (the severe delta) with b_0 - s~ >= kappa sigma_start. It had something if P
- s~ >= kappa sigma_loss and P >= b + kappa sigma_gain (it had learned), or if its start is lost, be it in the first
update, before any median exists. Where b stands for b_0, a lost start counts only with P - s~ >= kappa sigma_loss. A
run that neither learned nor lost its start has not learned. What is compared are a median of w points and another one,
or a start, so the noise is that of their difference, with q = min(1, pi / (2 w)): sigma_loss = sigma sqrt(2 q),
sigma_gain^2 = sigma^2 q + (standard error of b)^2, and sigma_start likewise with that of b_0. The noise of single
points in their place called runs that went from 42 to 66 % success `no_learning`.
Onset: the last t >= t* with s~_t >= P - max(sigma, 0.05 P), where P is b_0 if no median came up to it, and the first
step if no median is that near. Detection: the first point at which the event rule holds.
Recovery: s~ >= P - 0.2 (P - trough) at W points in a row after detection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

import numpy as np

from workbench.diagnostics.events import Event, Severity
from workbench.diagnostics.hard import HARD_RULES, Hard
from workbench.spec import CollapseSettings

Outcome = Literal["healthy", "mild", "collapsed", "no_learning", "diverged"]
Ending = Literal["recovered", "terminal", "censored"]

ONSET_TOLERANCE = 0.05  # of the peak: less than the noise of one point counts as still at the peak
RECOVERED = 0.2  # of the loss may remain in a run that has recovered
ABRUPT = 50  # steps from onset to detection: published collapses inside one 50-step window are called abrupt
FINAL = 10  # steps that the final success is the mean of
NOTHING = 1e-12


@dataclass(frozen=True)
class Drop:
    """One fall from a peak; `onset`, `detection` and `recovered` are steps, `depth` the lowest smoothed score since."""

    peak: float
    peak_step: int
    onset: int
    detection: int
    depth: float
    recovered: int | None
    ending: Ending

    @property
    def drop(self) -> float:
        """Share of the peak that was lost at the lowest point."""
        return (self.peak - self.depth) / max(self.peak, NOTHING)

    @property
    def speed(self) -> int:
        """Steps from onset to detection."""
        return self.detection - self.onset

    @property
    def abrupt(self) -> bool:
        """True when the fall took at most 50 steps."""
        return self.speed <= ABRUPT


@dataclass(frozen=True)
class Verdict:
    """What the rule says of a run; `outcome` is None while there are too few points to say."""

    outcome: Outcome | None
    drops: tuple[Drop, ...]  # severe falls, in order
    mild_drops: tuple[Drop, ...]  # falls past the mild threshold, the severe ones among them
    hard: tuple[str, ...]  # kinds of hard events, in order
    peak: float | None  # highest smoothed score, or the start that was lost where none came up to it
    peak_step: int | None
    baseline: float | None
    sigma: float
    final: float | None  # mean score of the last ten points

    @property
    def first(self) -> Drop | None:
        """The first severe fall."""
        return self.drops[0] if self.drops else None

    @property
    def onset(self) -> int | None:
        """Step at which the first collapse begins."""
        return self.first.onset if self.first else None

    @property
    def detection(self) -> int | None:
        """First step at which the collapse rule holds."""
        return self.first.detection if self.first else None


def smoothing(window: int) -> float:
    """Standard error of the median of `window` normal points over that of one: sqrt(pi / (2 w)), 1 at w = 1."""
    return min(1.0, math.sqrt(math.pi / (2 * window)))


def _share_error(share: float, n: int) -> float:
    """Standard error of a share of `n` episodes."""
    return math.sqrt(max(0.0, share * (1.0 - share)) / n)


@dataclass
class _Curve:
    """The score so far and everything the rule derives from it."""

    settings: CollapseSettings
    episodes: int | None  # behind each score; None = unknown, and sigma has no floor
    steps: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    smooth: list[float] = field(default_factory=list)  # NaN until the window is full
    residuals: list[float] = field(default_factory=list)
    peak: float = -math.inf
    peak_index: int = -1
    sigma: float = 0.0
    untrained: tuple[float, int] | None = None  # held-out success before the first update, and on how many questions

    def add(self, step: int, score: float) -> None:
        window = self.settings.window
        self.steps.append(step)
        self.scores.append(score)
        if len(self.scores) < window:
            self.smooth.append(math.nan)
            return
        level = float(np.median(self.scores[-window:]))
        self.smooth.append(level)
        self.residuals.append(score - level)
        deviation = np.abs(np.asarray(self.residuals) - np.median(self.residuals))
        if level > self.peak:
            self.peak, self.peak_index = level, len(self.smooth) - 1
        self.sigma = max(1.4826 * float(np.median(deviation)), self._standard_error())

    def _standard_error(self) -> float:
        if self.episodes is None:
            return 0.0
        spread = max(max(0.0, level * (1.0 - level)) for level in (self.peak, self.baseline))
        return math.sqrt(spread / self.episodes)

    @property
    def baseline(self) -> float:
        return fmean(self.scores[: self.settings.baseline]) if self.untrained is None else self.untrained[0]

    @property
    def loss_noise(self) -> float:
        """How far two smoothed scores must lie apart to be more than noise."""
        return self.settings.sigmas * self.sigma * smoothing(self.settings.window) * math.sqrt(2)

    @property
    def gain_noise(self) -> float:
        """How far a smoothed score must lie above the baseline to be more than noise."""
        if self.untrained is None:
            return self._noise(self.sigma / math.sqrt(self.settings.baseline))
        return self._noise(_share_error(*self.untrained))

    def _noise(self, error: float) -> float:
        """How far a smoothed score must lie from a start with this standard error to be more than noise."""
        return self.settings.sigmas * math.hypot(self.sigma * smoothing(self.settings.window), error)

    @property
    def start(self) -> float:
        """Success before the first update: held out, else of the first step where its noise is known."""
        if self.untrained is not None:
            return self.untrained[0]
        return self.baseline if self.episodes is None else self.scores[0]

    @property
    def knows_start(self) -> bool:
        """Whether the start and its noise are those of the untrained policy."""
        return self.untrained is not None or self.episodes is not None

    def lost_start(self, level: float) -> bool:
        """Whether a smoothed score shows that what the run began with is gone."""
        if self.untrained is not None or self.episodes is None:
            noise = self.gain_noise
        else:
            noise = self._noise(_share_error(self.scores[0], self.episodes))
        gone = self.start - level
        return gone > NOTHING and gone >= self.settings.severe * self.start and gone >= noise

    @property
    def top(self) -> float:
        """What a fall is measured from: the peak, or the start where no smoothed score came up to it."""
        return max(self.peak, self.start)

    @property
    def onset(self) -> int:
        """Index of the last point near the top: where a fall that is under way began; there must be a peak."""
        near = self.top - max(self.sigma, ONSET_TOLERANCE * self.top)
        since = self.peak_index if self.peak >= self.start else 0
        return max((i for i in range(since, len(self.smooth)) if self.smooth[i] >= near), default=0)

    @property
    def decided(self) -> bool:
        """True once the baseline and the trailing median exist."""
        return len(self.scores) >= max(1 if self.untrained else self.settings.baseline, self.settings.window)


class _Falls:
    """The event rule at one threshold: at most one open fall, and those before it."""

    def __init__(self, curve: _Curve, threshold: float) -> None:
        self.curve, self.threshold = curve, threshold
        self.below = 0  # consecutive points with the drop
        self.above = 0  # consecutive points back near the peak of the open fall
        self.closed: list[Drop] = []
        self.open: Drop | None = None

    def advance(self) -> Literal["", "fell", "recovered"]:
        """Judge the newest point of the curve."""
        curve, points = self.curve, self.curve.settings.points
        level = curve.smooth[-1]
        if math.isnan(level):
            return ""
        if self.open is not None:
            fall = self.open = replace(self.open, depth=min(self.open.depth, level))
            back = level >= fall.peak - RECOVERED * (fall.peak - fall.depth)
            self.above = self.above + 1 if back else 0
            if self.above < points:
                return ""
            self.closed.append(replace(fall, recovered=curve.steps[-1], ending="recovered"))
            self.open, self.below = None, 0
            return "recovered"
        lost, started_higher = curve.peak - level, curve.lost_start(level)
        began_up = started_higher and curve.knows_start
        self.below = self.below + 1 if lost >= self.threshold * max(curve.peak, NOTHING) or began_up else 0
        learned = curve.peak >= curve.baseline + curve.gain_noise
        fell = lost >= curve.loss_noise and (learned or started_higher)
        if self.below < points or not curve.decided or not (fell or began_up):
            return ""
        onset = curve.onset
        self.open = Drop(
            peak=curve.top,
            peak_step=curve.steps[curve.peak_index if curve.peak >= curve.start else 0],
            onset=curve.steps[onset],
            detection=curve.steps[-1],
            depth=min(s for s in curve.smooth[onset:] if not math.isnan(s)),
            recovered=None,
            ending="terminal",
        )
        self.above = 0
        return "fell"

    def drops(self) -> tuple[Drop, ...]:
        """Every fall so far; the open one is censored until W points, its detection included, have passed."""
        if self.open is None:
            return tuple(self.closed)
        curve = self.curve
        since = len(curve.steps) - curve.steps.index(self.open.detection)
        ending: Ending = "terminal" if since >= curve.settings.points else "censored"
        return (*self.closed, replace(self.open, ending=ending))


class Watch:
    """The collapse rule along a live run: feed it every step once, in order; it says each thing when it happens.

    `episodes` is how many episodes a step's success is the share of, None when that is not known.
    """

    def __init__(self, settings: CollapseSettings | None = None, episodes: int | None = None) -> None:
        self.settings = settings or CollapseSettings()
        self._curve = _Curve(self.settings, episodes)
        self._severe = _Falls(self._curve, self.settings.severe)
        self._mild = _Falls(self._curve, self.settings.mild)
        self._hard = [Hard(rule, self.settings) for rule in HARD_RULES]
        self._kinds: list[str] = []
        self.diverged = False

    def step(self, step: int, measured: Mapping[str, float | None]) -> list[Event]:
        """The events of `step`, whose row of table `step` is `measured`; a missing or None score is no point."""
        events = [event for hard in self._hard if (event := hard.advance(step, measured.get(hard.rule.diagnostic)))]
        score = measured.get("success")
        share, asked = measured.get("heldout_success"), measured.get("heldout_episodes")
        if not self._curve.scores and share is not None and asked:
            self._curve.untrained = (float(share), int(asked))
        if score is not None and not math.isfinite(score):
            message = f"success is {score}: nothing can be measured any more"
            events.append(Event(step, "non_finite", "critical", message, "success", score))
        elif score is not None:
            self._curve.add(step, float(score))
            events += self._fall_events(step)
        self._kinds += [e.kind for e in events if e.kind not in ("collapse", "mild", "recovered")]
        self.diverged = self.diverged or "non_finite" in self._kinds
        return events

    def _fall_events(self, step: int) -> list[Event]:
        events: list[Event] = []
        if self._mild.advance() == "fell" and (fall := self._mild.open):
            events.append(self._fell(step, "mild", "warning", fall, self.settings.mild))
        change = self._severe.advance()
        if change == "fell" and (fall := self._severe.open):
            events.append(self._fell(step, "collapse", "critical", fall, self.settings.severe))
        elif change == "recovered":
            fall = self._severe.closed[-1]
            message = (
                f"success is back near its peak of {fall.peak:.3f}, {step - fall.onset} steps after it began to fall"
            )
            events.append(Event(step, "recovered", "info", message, "success", self._curve.smooth[-1], fall.peak))
        return events

    def _fell(self, step: int, kind: str, severity: Severity, fall: Drop, threshold: float) -> Event:
        level = self._curve.smooth[-1]
        message = (
            f"success fell from {fall.peak:.3f} (step {fall.peak_step}) to {level:.3f}: "
            f"{100 * (fall.peak - level) / fall.peak:.0f} % of the peak is lost; the fall began at step {fall.onset}"
        )
        return Event(step, kind, severity, message, "success", level, (1 - threshold) * fall.peak)

    def crashed(self, step: int, message: str) -> Event:
        """The run cannot go on (engine crash, non-finite loss): the outcome is diverged from here on."""
        self.diverged = True
        return Event(step, "diverged", "critical", message)

    @property
    def brink(self) -> int | None:
        """The last step near the peak so far: the onset, should the rule find a fall now; None without a peak."""
        curve = self._curve
        return None if curve.peak_index < 0 else curve.steps[curve.onset]

    @property
    def verdict(self) -> Verdict:
        """What the rule says of the steps so far."""
        curve = self._curve
        drops, mild = self._severe.drops(), self._mild.drops()
        outcome: Outcome | None = None
        if self.diverged:
            outcome = "diverged"
        elif drops:
            outcome = "collapsed"
        elif mild:
            outcome = "mild"
        elif curve.decided:
            outcome = "healthy" if curve.peak > curve.baseline + curve.gain_noise else "no_learning"
        known = curve.peak_index >= 0
        lost_start = bool(drops) and drops[0].peak > curve.peak  # no median ever came up to what it began with
        last = curve.scores[-FINAL:]
        return Verdict(
            outcome=outcome,
            drops=drops,
            mild_drops=mild,
            hard=tuple(self._kinds),
            peak=drops[0].peak if lost_start else curve.peak if known else None,
            peak_step=drops[0].peak_step if lost_start else curve.steps[curve.peak_index] if known else None,
            baseline=curve.baseline if curve.scores else None,
            sigma=curve.sigma,
            final=fmean(last) if last else None,
        )


def judge(
    success: Sequence[float | None],
    settings: CollapseSettings | None = None,
    steps: Sequence[int] | None = None,
    episodes: int | None = None,
) -> Verdict:
    """The verdict on a finished log of scores; `steps` numbers the points (0, 1, ... by default)."""
    watch = Watch(settings, episodes)
    for step, score in zip(steps if steps is not None else range(len(success)), success, strict=True):
        watch.step(step, {"success": score})
    return watch.verdict
