"""The rules that raise an event when something is off: alarms, hard events, findings on several values, the
guard.

A rule is declared once and evaluated one way. At each step its condition holds, does not hold, or cannot be
judged (nothing was measured, so nothing changes); the event comes at the step at which it begins to hold. The
collapse rule (rule.py) raises events of the same type.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal, NamedTuple

from sorl.measures.declare import mark_size, mark_words
from sorl.spec import RATIO_TOLERANCE, Alarm, Diagnostic, Level, check

Severity = Literal["info", "warning", "critical"]

# steps between two alarms of one diagnostic: a value that flickers around its mark is one finding
COOLDOWN = 10
SMOOTH = 5  # points of the trailing median of the reward
# so long one way, by more than so much
DRIFT_POINTS = 50
DRIFT = 0.1


@dataclass(frozen=True)
class Event:
    """What happened at `step`, the diagnostic that showed it (empty without one), its value and the
    threshold.
    """

    step: int
    kind: str
    severity: Severity
    message: str
    diagnostic: str = ""
    value: float | None = None
    threshold: float | None = None


class Row(NamedTuple):
    """A row of table `step` as a condition sees it; a column that was not measured is absent or None."""

    step: int
    measured: Mapping[str, float | None]
    # diagnostics whose alarm holds at this step, whether it was raised now or before
    alarmed: Collection[str]
    mismatches: Sequence[tuple[int, int]]  # (trajectory, turn) of the trained rows that are not as sampled


class Found(NamedTuple):
    """A condition that holds: the words of the event, the diagnostic that shows it, its value and the
    threshold.
    """

    message: str
    diagnostic: str
    value: float | None = None
    threshold: float | None = None


Judged = Found | Literal[False] | None  # None: it cannot be judged
Memory = dict[Any, Any]  # what a rule keeps from step to step of a run


@dataclass(frozen=True)
class Rule:
    """What raises events of `kind`: when it happens in words, why that matters, and its condition.

    After an event the condition has to end before the next one, and `pause` steps have to pass; with `once`
    there is no next one. `alarm` is the diagnostic of an alarm.
    """

    kind: str
    severity: Severity
    happens: str
    reason: str
    condition: Callable[[Row, Memory], Judged]
    pause: int = 0
    once: bool = False
    alarm: str = ""


class RuleWatch:
    """Rules along a run: feed it the row of table `step` of every step once, in order; it
    returns the events.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules: list[tuple[Rule, Memory]] = [
            (rule, {"armed": True, "last": -math.inf}) for rule in rules
        ]
        self._alarmed: set[str] = set()

    def step(
        self, step: int, measured: Mapping[str, float | None], mismatches: Sequence[tuple[int, int]] = ()
    ) -> list[Event]:
        """Return the events of `step`; `mismatches` are the places that column token_mismatches counts."""
        row = Row(step, measured, self._alarmed, mismatches)
        events = []
        for rule, memory in self._rules:
            found = None if rule.once and not memory["armed"] else rule.condition(row, memory)
            if found is None:
                continue
            if rule.alarm:
                (self._alarmed.add if found else self._alarmed.discard)(rule.alarm)
            if not found:
                memory["armed"] = True
            elif memory["armed"] and step - memory["last"] >= rule.pause:
                memory["armed"] = False
                memory["last"] = step
                events.append(Event(step, rule.kind, rule.severity, *found))
        return events


def _beyond(name: str, mark: Alarm, why: str, row: Row, memory: Memory) -> Judged:
    value = row.measured.get(name)
    if value is None or math.isnan(value):
        return None
    first: list[float] = memory.setdefault("first", [])  # points that a relative mark is a multiple of
    unit = 1.0
    memory["best"] = max(memory.get("best", -math.inf), value)
    if mark.relative == "peak":
        unit = memory["best"]
    elif mark.relative and len(first) < mark.warmup:
        first.extend([value] if math.isfinite(value) else [])
        return None
    elif mark.relative:
        unit = median(first) if mark.relative == "baseline" else sum(first) / len(first)
    if unit <= 0:  # nothing can be a multiple of it
        return None
    threshold = mark.value * unit
    crossed = {"above": value > threshold, "below": value < threshold, "at least": value >= threshold}[
        mark.when
    ]
    memory["count"] = memory.get("count", 0) + 1 if crossed else 0
    if memory["count"] < mark.points:
        return False
    size = f" ({mark_size(mark)})" if mark.relative else ""
    held = f", {mark.points} points in a row" if mark.points > 1 else ""
    return Found(f"{name} {value:.3g}, {mark.when} {threshold:.3g}{size}{held}{why}", name, value, threshold)


def _not_finite(name: str, row: Row, memory: Memory) -> Judged:
    value = row.measured.get(name)
    return None if value is None else not math.isfinite(value) and Found(f"{name} is {value}", name, value)


def _crossing(kind: str, diagnostic: str, mark: Alarm, **more: Any) -> Rule:
    happens = f"`step.{diagnostic}` {mark_words(mark)}"
    # Where the mark of an alarm comes from stands in the dictionary; why a hard event matters, in its
    # message.
    why = "" if kind == "alarm" else f": {mark.reason}"
    return Rule(kind, mark.severity, happens, mark.reason, partial(_beyond, diagnostic, mark, why), **more)


def alarms(catalogue: Sequence[Diagnostic]) -> Iterator[Rule]:
    """Of each step diagnostic the rule that a value is NaN or Inf, and that of its alarm; then those on
    several.
    """
    for d in (d for d in catalogue if d.level is Level.STEP):
        reason = "a value that is NaN or Inf says nothing any more"
        yield Rule(
            "non_finite", "warning", f"`step.{d.name}` is NaN or Inf", reason, partial(_not_finite, d.name)
        )
        if d.alarm is not None:
            yield _crossing("alarm", d.name, d.alarm, pause=COOLDOWN, alarm=d.name)
    yield from COMBINED


def _hard(kind: str, diagnostic: str, *mark: Any, **more: Any) -> Rule:
    return _crossing(kind, diagnostic, Alarm(*mark, **more), once=True)


HARD = (
    _hard(
        "non_finite",
        "non_finite",
        "above",
        0.0,
        "a NaN in a loss or gradient cannot be trained away; the run is over",
        severity="critical",
    ),
    _hard(
        "format_collapse",
        "valid_action_frac",
        "below",
        0.5,
        "an agent that breaks the protocol in half of its turns no longer acts; relative to its own best,"
        " because protocols differ in difficulty",
        points=5,
        relative="peak",
        severity="critical",
    ),
    _hard(
        "retriever_down",
        "retrieval_failed_frac",
        "above",
        0.5,
        "when most searches fail the policy learns to do without them; console.log says why they fail",
        severity="critical",
    ),
    _hard(
        "signal_collapse",
        "zero_advantage_frac",
        "at least",
        0.9,
        "when nine groups in ten have equal rewards, a group-relative method has almost no gradient left",
        points=5,
    ),
    _hard(
        "entropy_collapse",
        "entropy",
        "below",
        0.1,
        "a tenth of the starting entropy leaves nothing to explore with",
        relative="start",
        warmup=5,
    ),
    _hard(
        "entropy_explosion",
        "entropy",
        "above",
        3.0,
        "entropy that triples is a policy falling back to noise",
        relative="start",
        warmup=5,
    ),
)


def _echo_trap(row: Row, memory: Memory) -> Judged:
    first: list[float] = memory.setdefault("first", [])  # repetition at the first points
    repeated = row.measured.get("repetition_frac")
    known = repeated if repeated is not None and math.isfinite(repeated) else None
    if known is not None and len(first) < 10:
        first.append(known)
    if not {"group_reward_std", "entropy"} <= set(row.alarmed):
        return False
    message = "rollouts of a prompt earn the same and the policy no longer chooses: an echo trap"
    if "grad_norm_max" in row.alarmed:
        message += "; the gradient norm spikes"
    if known is not None and known > 2 * median(first):
        message += "; the rollouts repeat themselves"
    return Found(message, "group_reward_std", row.measured.get("group_reward_std"))


def _reward_drift(row: Row, memory: Memory) -> Judged:
    reward = row.measured.get("reward")
    if reward is None or not math.isfinite(reward):
        return None
    rewards: deque[float] = memory.setdefault("rewards", deque(maxlen=SMOOTH))
    since: list[float] = memory.setdefault("since", [])  # medians since the last turn
    rewards.append(reward)
    if len(rewards) < SMOOTH:
        return None
    level = median(rewards)
    # it turned: a new stretch begins at the last level
    if since and (level - since[-1]) * (level - since[0]) < 0:
        del since[:-1]
    since.append(level)
    moved = since[-1] - since[0]
    if len(since) <= DRIFT_POINTS or abs(moved) <= DRIFT:
        return False
    message = (
        f"reward went only {'up' if moved > 0 else 'down'} for {len(since) - 1} points, by {abs(moved):.3f}"
    )
    return Found(message, "reward", reward, DRIFT)


COMBINED = (
    Rule(
        "echo_trap",
        "warning",
        "the alarms of `step.group_reward_std` and of `step.entropy` stand at the same step; the message says"
        " whether `step.grad_norm_max` stands too and whether `step.repetition_frac` has doubled",
        "RAGEN's echo trap: rollouts of a prompt become alike, then certain, then the gradient spikes; two of"
        " three leave time to act",
        _echo_trap,
    ),
    Rule(
        "reward_drift",
        "info",
        f"the trailing median of {SMOOTH} points of `step.reward` has not turned for {DRIFT_POINTS} points"
        f" and has moved by more than {DRIFT:g}",
        "rlwatch reports a monotone reward: learning, or a reward that is being gamed; read the transcripts",
        _reward_drift,
    ),
)


def _first_ratio(row: Row, memory: Memory) -> Judged:
    moved = row.measured.get("first_log_ratio_abs_max") or 0.0
    message = f"the first update saw a log-ratio of {moved:.3g} nats where it is 0 by construction"
    return moved > RATIO_TOLERANCE and Found(message, "first_log_ratio_abs_max", moved, RATIO_TOLERANCE)


def _stuck_batch(row: Row, memory: Memory) -> Judged:
    seen = row.measured.get("batch_hash")
    if seen is None or (earlier := memory.setdefault(seen, row.step)) == row.step:
        return False
    return Found(f"the step trained on the very tokens of step {earlier}", "batch_hash", seen)


def _token_identity(row: Row, memory: Memory) -> Judged:
    if not (count := row.measured.get("token_mismatches")):
        return False
    where = ", first in trajectory {}, turn {}".format(*row.mismatches[0]) if row.mismatches else ""
    message = f"{int(count)} trained trajectories are not the tokens and turns that were sampled{where}"
    return Found(message, "token_mismatches", count, 0.0)


def _guard_rule(name: str, watch: Callable[[Row, Memory], Judged]) -> Rule:
    declared = check(name)
    return Rule(declared.kind, declared.severity, declared.flags, declared.reason, watch)


# The checks of the fair-comparison guard that watch a run.
_GUARD = {"first_ratio": _first_ratio, "stuck_batch": _stuck_batch, "token_identity": _token_identity}
GUARD_RULES = tuple(_guard_rule(name, watch) for name, watch in _GUARD.items())
