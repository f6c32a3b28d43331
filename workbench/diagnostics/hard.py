"""Hard events: a threshold on one diagnostic of a step, without smoothing, that a run can cross once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from workbench.diagnostics.events import Event, Severity

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
