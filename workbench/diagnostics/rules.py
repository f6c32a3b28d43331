"""The rules that say when something is off in a run: alarms, hard events, findings on several values, the guard."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

from workbench.spec import RATIO_TOLERANCE, Alarm, Diagnostic, Level, check

Severity = Literal["info", "warning", "critical"]


@dataclass(frozen=True)
class Event:
    """What happened at `step`, the diagnostic that showed it (empty without one), its value and the threshold."""

    step: int
    kind: str
    severity: Severity
    message: str
    diagnostic: str = ""
    value: float | None = None
    threshold: float | None = None


FIRST = 5  # steps whose mean is the baseline


@dataclass(frozen=True)
class HardRule:
    """A threshold without smoothing, on a diagnostic of table `step`; it fires at most once in a run.

    `relative` compares with the running maximum ("peak") or with the mean of the first five points ("baseline").
    `points` is how many points in a row must cross it.
    """

    kind: str
    diagnostic: str
    when: Literal["above", "below", "at least"]
    value: float
    relative: Literal["", "peak", "baseline"]
    points: int
    severity: Severity
    reason: str


HARD_RULES: tuple[HardRule, ...] = (
    HardRule(
        "non_finite",
        "non_finite",
        "above",
        0.0,
        "",
        1,
        "critical",
        "a NaN in a loss or gradient cannot be trained away; the run is over",
    ),
    HardRule(
        "format_collapse",
        "valid_action_frac",
        "below",
        0.5,
        "peak",
        5,
        "critical",
        "an agent that breaks the protocol in half of its turns no longer acts; relative to its own best, because "
        "protocols differ in difficulty",
    ),
    HardRule(
        "retriever_down",
        "retrieval_failed_frac",
        "above",
        0.5,
        "",
        1,
        "critical",
        "when most searches fail the policy learns to do without them; console.log says why they do",
    ),
    HardRule(
        "signal_collapse",
        "zero_advantage_frac",
        "at least",
        0.9,
        "",
        5,
        "warning",
        "when nine groups in ten have equal rewards, a group-relative method has almost no gradient left",
    ),
    HardRule(
        "entropy_collapse",
        "entropy",
        "below",
        0.1,
        "baseline",
        1,
        "warning",
        "a tenth of the starting entropy leaves nothing to explore with",
    ),
    HardRule(
        "entropy_explosion",
        "entropy",
        "above",
        3.0,
        "baseline",
        1,
        "warning",
        "entropy that triples is a policy falling back to noise",
    ),
)


class Hard:
    """One hard rule along a run."""

    def __init__(self, rule: HardRule) -> None:
        self.rule = rule
        self.first: list[float] = []
        self.best = -math.inf
        self.count = 0
        self.fired = False

    def advance(self, step: int, value: float | None) -> Event | None:
        """The event, where the value of this step sets it off."""
        rule = self.rule
        if self.fired or value is None or math.isnan(value):
            return None
        if rule.relative == "baseline" and len(self.first) < FIRST:
            self.first.append(value)
            return None
        self.best = max(self.best, value)
        scale = 1.0
        if rule.relative:
            scale = self.best if rule.relative == "peak" else sum(self.first) / len(self.first)
            if scale <= 0:
                return None
        threshold = rule.value * scale
        crossed = {"above": value > threshold, "below": value < threshold, "at least": value >= threshold}[rule.when]
        self.count = self.count + 1 if crossed else 0
        if self.count < rule.points:
            return None
        self.fired = True
        held = f" at {rule.points} points in a row" if rule.points > 1 else ""
        message = f"{rule.diagnostic} is {value:.4g}, {rule.when} {threshold:.4g}{held}: {rule.reason}"
        return Event(step, rule.kind, rule.severity, message, rule.diagnostic, value, threshold)


SMOOTH = 5  # points of the trailing median of the reward
DRIFT_POINTS, DRIFT = 50, 0.1  # so long one way, by more than so much
SIGNS = ("group_reward_std", "entropy")  # in this order; then the gradient norm, while the rollouts repeat themselves
LATER = {"grad_norm_max": "the gradient norm spikes", "repetition_frac": "the rollouts repeat themselves"}


@dataclass(frozen=True)
class Combined:
    """A finding of this kind as the documentation lists it."""

    kind: str
    severity: str
    happens: str
    reason: str


COMBINED = (
    Combined(
        "echo_trap", "warning",
        "the alarms of `step.group_reward_std` and of `step.entropy` stand at the same step; the message says whether "
        "`step.grad_norm_max` stands too and whether `step.repetition_frac` has doubled",
        "RAGEN's echo trap: rollouts of a prompt become alike, then certain, then the gradient spikes; two of three "
        "leave time to act",
    ),
    Combined(
        "reward_drift", "info",
        f"the trailing median of {SMOOTH} points of `step.reward` has not turned for {DRIFT_POINTS} points and has "
        f"moved by more than {DRIFT:g}",
        "rlwatch tells of a monotone reward: learning, or a reward that is being gamed; read the transcripts",
    ),
)  # fmt: skip


class CombinedWatch:
    """Feed it every step once, in order, with which alarms stand; each finding comes once until it is over."""

    def __init__(self) -> None:
        self._trapped = False
        self._first: list[float] = []  # repetition of the first points
        self._rewards: deque[float] = deque(maxlen=SMOOTH)
        self._run: list[float] = []  # medians since the last turn
        self._drifted = False

    def step(self, step: int, measured: Mapping[str, float | None], stands: Callable[[str], bool]) -> list[Event]:
        """The findings of `step`; `stands` tells whether the alarm of a diagnostic holds at it."""
        return [*self._echo(step, measured, stands), *self._drift(step, measured.get("reward"))]

    def _echo(self, step: int, measured: Mapping[str, float | None], stands: Callable[[str], bool]) -> list[Event]:
        repeated = measured.get("repetition_frac")
        known = repeated is not None and math.isfinite(repeated)
        if known and len(self._first) < 10:
            self._first.append(float(repeated or 0.0))
        trapped = all(stands(name) for name in SIGNS)
        new, self._trapped = trapped and not self._trapped, trapped
        if not new:
            return []
        holds = {
            "grad_norm_max": stands("grad_norm_max"),
            "repetition_frac": known and bool(self._first) and float(repeated or 0.0) > 2 * median(self._first),
        }
        also = [words for name, words in LATER.items() if holds[name]]
        message = "rollouts of a prompt earn the same and the policy no longer chooses: an echo trap"
        return [Event(step, "echo_trap", "warning", "; ".join([message, *also]), SIGNS[0], measured.get(SIGNS[0]))]

    def _drift(self, step: int, reward: float | None) -> list[Event]:
        if reward is None or not math.isfinite(reward):
            return []
        self._rewards.append(reward)
        if len(self._rewards) < SMOOTH:
            return []
        level = median(self._rewards)
        moved = level - self._run[0] if self._run else 0.0
        if self._run and (level - self._run[-1]) * moved < 0:  # it turned: the new stretch begins at the last level
            self._run, self._drifted = [self._run[-1]], False
        self._run.append(level)
        moved = self._run[-1] - self._run[0]
        if self._drifted or len(self._run) <= DRIFT_POINTS or abs(moved) <= DRIFT:
            return []
        self._drifted = True
        way = "up" if moved > 0 else "down"
        message = f"reward went only {way} for {len(self._run) - 1} points, by {abs(moved):.3f}"
        return [Event(step, "reward_drift", "info", message, "reward", reward, DRIFT)]


COOLDOWN = 10  # steps between two alarms of one diagnostic: a value that flickers around its mark is one finding


class _Wire:
    """One trip-wire: counts consecutive crossings, fires once, is armed again when the value has come back."""

    def __init__(self, name: str, alarm: Alarm) -> None:
        self.name, self.alarm = name, alarm
        self.first: list[float] = []
        self.count = 0
        self.armed = True
        self.last: int | None = None

    def threshold(self) -> float | None:
        """The mark; None while a relative one has no baseline (or a baseline that nothing can be a multiple of)."""
        if not self.alarm.relative:
            return self.alarm.value
        if len(self.first) < self.alarm.warmup:
            return None
        base = median(self.first)
        return self.alarm.value * base if base > 0 else None

    def advance(self, step: int, value: float) -> Event | None:
        alarm = self.alarm
        if alarm.relative and len(self.first) < alarm.warmup:
            if math.isfinite(value):
                self.first.append(value)
            return None
        threshold = self.threshold()
        if threshold is None:
            return None
        if not (value > threshold if alarm.when == "above" else value < threshold):
            self.count, self.armed = 0, True
            return None
        self.count += 1
        cooling = self.last is not None and step - self.last < COOLDOWN
        if self.count < alarm.points or not self.armed or cooling:
            return None
        self.armed, self.last = False, step
        held = f" at {alarm.points} points in a row" if alarm.points > 1 else ""
        message = f"{self.name} is {value:.4g}, {alarm.when} {threshold:.4g}{held}: {alarm.reason}"
        return Event(step, "alarm", alarm.severity, message, self.name, value, threshold)


class AlarmWatch:
    """Feed it the row of table `step` of every step once, in order; it says which alarms went off, alone or combined.

    A measured value that is NaN or Inf is an event of its own (kind non_finite), once until it is finite again.
    """

    def __init__(self, catalogue: Sequence[Diagnostic]) -> None:
        self._wires = {d.name: _Wire(d.name, d.alarm) for d in catalogue if d.level is Level.STEP and d.alarm}
        self._broken: set[str] = set()
        self._combined = CombinedWatch()

    def stands(self, name: str) -> bool:
        """Whether the alarm of a diagnostic holds at the newest step, be it told or kept quiet."""
        return name in self._wires and self._wires[name].count >= self._wires[name].alarm.points

    def step(self, step: int, measured: Mapping[str, float | None]) -> list[Event]:
        """The alarms of `step`; a None (not measured) neither sets off nor clears anything."""
        events: list[Event] = []
        for name, value in measured.items():
            if value is None:
                continue
            if not math.isfinite(value):
                if name not in self._broken:
                    message = f"{name} is {value}"
                    events.append(Event(step, "non_finite", "warning", message, name, value))
                self._broken.add(name)
            else:
                self._broken.discard(name)
            if name in self._wires and not math.isnan(value) and (event := self._wires[name].advance(step, value)):
                events.append(event)
        return [*events, *self._combined.step(step, measured, self.stands)]


class _Violation(NamedTuple):
    message: str
    diagnostic: str
    value: float
    threshold: float | None = None


class GuardWatch:
    """The checks of the guard along a live run: feed it the row of table `step` of every step once, in order.

    A violation that lasts is one event; a step without it arms the check again.
    """

    def __init__(self) -> None:
        self._batches: dict[float, int] = {}  # fingerprint -> the first step that trained on it
        self._broken: set[str] = set()

    def step(
        self, step: int, measured: Mapping[str, float | None], mismatches: Sequence[tuple[int, int]] = ()
    ) -> list[Event]:
        """The violations of `step`; `mismatches` says where those are that `measured` counts."""
        found = {
            "first_ratio": _first_ratio(measured),
            "stuck_batch": self._stuck_batch(step, measured),
            "token_identity": _token_identity(measured, mismatches),
        }
        events = [
            Event(step, check(name).kind, check(name).severity, *violation)
            for name, violation in found.items()
            if violation is not None and name not in self._broken
        ]
        self._broken = {name for name, violation in found.items() if violation is not None}
        return events

    def _stuck_batch(self, step: int, measured: Mapping[str, float | None]) -> _Violation | None:
        seen = measured.get("batch_hash")
        if seen is None:
            return None
        first = self._batches.setdefault(seen, step)
        if first == step:
            return None
        return _Violation(f"the step trained on the very tokens of step {first}", "batch_hash", seen)


def _first_ratio(measured: Mapping[str, float | None]) -> _Violation | None:
    moved = measured.get("first_log_ratio_abs_max")
    if moved is None or not moved > RATIO_TOLERANCE:
        return None
    message = f"the first update saw a log-ratio of {moved:.3g} nats where it is 0 by construction"
    return _Violation(message, "first_log_ratio_abs_max", moved, RATIO_TOLERANCE)


def _token_identity(measured: Mapping[str, float | None], mismatches: Sequence[tuple[int, int]]) -> _Violation | None:
    count = measured.get("token_mismatches")
    if not count:
        return None
    where = f", first in trajectory {mismatches[0][0]}, turn {mismatches[0][1]}" if mismatches else ""
    message = f"{int(count)} trained trajectories are not the tokens and turns that were sampled{where}"
    return _Violation(message, "token_mismatches", count, 0.0)
