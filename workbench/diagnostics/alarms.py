"""The alarms of declared diagnostics, along a live run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from workbench.diagnostics.combined import CombinedWatch
from workbench.diagnostics.events import Event
from workbench.spec import Alarm, Diagnostic, Level

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
